"""The least of several bounds is raised, soundly and no other; a search that gives up is bounded by cases."""

from __future__ import annotations

from efforts import EVERYTHING
from instances import all_pipelines
from listed_plans import listed
from referee import plain_simulation, referee

from tangram.planner.compose import Composer
from tangram.planner.effort import Effort
from tangram.planner.raising import Raiser

HOPELESS = Effort(easy_labels=1, label_limit=2, merged_labels=2, finalists=1, beam=1)
"""Every search gives up, and every beam finds one plan at best."""


def raised(raiser: Raiser, bounds: dict[int, int], best: int, *, closely: bool) -> list[int]:
    """Raises the least of some bounds; returns the indices in the order in which they were raised."""
    order: list[int] = []

    def note(idx: int, bound_ns: int) -> None:
        assert bounds[idx] == min(bounds.values())
        assert bound_ns > bounds[idx]
        bounds[idx] = bound_ns
        order.append(idx)

    raiser.raise_least(bounds, best, note, closely=closely)
    return order


def test_the_least_bound_is_raised_and_never_above_a_plan() -> None:
    known = [(problem, min(time_ns for time_ns, _ in plans)) for _, problem, plans in listed(120)]
    shown = open_ones = 0
    for three in zip(known[::3], known[1::3], known[2::3], strict=False):
        raiser, fastest = Raiser(), [best for _, best in three]
        # As if the best plan were one of the slowest of the three.
        best = max(fastest)
        bounds = {
            idx: best if raiser.proves(idx, problem, best) else 0 for idx, (problem, _) in enumerate(three)
        }
        assert all(bounds[idx] <= fastest[idx] for idx in raiser.cases)
        assert all(fastest[idx] >= best for idx in bounds if idx not in raiser.cases)
        raised(raiser, bounds, best, closely=False)
        before = dict(bounds)
        raised(raiser, bounds, best, closely=True)
        assert all(before[idx] <= bounds[idx] <= fastest[idx] for idx in raiser.cases)
        shown += sum(bound > 0 for bound in bounds.values())
        open_ones += len(raiser.cases)
        least = min(bounds, key=lambda idx: (bounds[idx], idx))
        if bounds[least] < best:
            narrowest = int(1.0008 * bounds[least]) + 2
            assert not raiser.cases[least].proves(min(narrowest, best), 800)
    assert open_ones > 20
    assert shown > 40


def test_a_problem_without_cases_ends_it() -> None:
    bounds = {0: 5}
    assert raised(Raiser(), bounds, 10, closely=True) == []
    assert bounds == {0: 5}


def test_a_search_that_gives_up_is_bounded_by_cases_and_keeps_its_word() -> None:
    closed = raised_at_all = 0
    for _, problem, plans in listed(160):
        composer = Composer(referee, HOPELESS)
        composer.consider(0, problem)
        composer.settle()
        optimum = min(time_ns for time_ns, _ in plans)
        floor = composer.pace_floors_ns[0]
        own = min(
            (plain_simulation(problem, plan) for plan in all_pipelines(problem, floor)), default=optimum
        )
        assert composer.lower_bound_ns() <= own
        if composer.best is None:
            continue
        assert composer.best.time_ns >= optimum
        if composer.proven[0]:
            assert composer.best.time_ns <= own
        closed += composer.proven[0]
        raised_at_all += composer.lower_bound_ns() > composer.stairs_ns[0][0]
    assert closed > 10
    assert raised_at_all > 10


def test_an_incumbent_of_which_cases_show_that_it_is_the_best_ends_the_search() -> None:
    ended = 0
    for _, problem, plans in listed(80):
        optimum = min(time_ns for time_ns, _ in plans)
        composer = Composer(referee, HOPELESS, incumbent_ns=int(0.7 * optimum))
        composer.consider(0, problem)
        if composer.proven[0]:
            ended += 1
            assert composer.stairs_ns[0][1] == composer.cutoff_ns
            assert not composer.open_problems()
        thorough = Composer(referee, EVERYTHING, incumbent_ns=int(0.7 * optimum))
        thorough.consider(0, problem)
        assert thorough.proven[0]
    assert ended > 20
