"""Limits of the search: whatever is given up, no bound is above what a plan takes, and "proven" is true.

The space of plans is what ``instances.all_pipelines`` lists; the referee is the simulator.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from dataclasses import fields, replace

import numpy as np
import pytest
from adversarial import adversarial_problem
from efforts import EVERYTHING, listing
from instances import PlainStage, all_pipelines, plain_closed_form, random_problem
from referee import plain_simulation, referee

from tangram.planner.compose import Composer
from tangram.planner.effort import Effort
from tangram.planner.frontier import Objective
from tangram.planner.lattice import prefix_bound
from tangram.planner.prober import Prober
from tangram.planner.problem import FAR_NS, Edges, Pieces, Problem

MAX_PLANS = 1_200

TIGHT = {
    "no listing": listing(0),
    "listing of one plan": listing(plans=1),
    "one label": listing(1, easy_labels=1, label_limit=1),
    "one merged label": listing(1, easy_labels=1, label_limit=1, merged_labels=1),
    "few labels": listing(10, 2, easy_labels=3, label_limit=20),
    "one level": listing(15, levels=1, label_limit=15),
    "easy search given up": Effort(easy_labels=0),
    "two levels": Effort(easy_labels=2, levels=2),
    "one finalist": listing(0, finalists=1, margin_frac=0.0, beam=1),
    "everything": EVERYTHING,
}


def problems(count: int, first: int) -> Iterator[Problem]:
    found = 0
    for seed in itertools.count(first):
        problem = adversarial_problem(seed) if seed % 2 else random_problem(seed, max_atoms=6)
        size = sum(1 for _ in itertools.islice(all_pipelines(problem), MAX_PLANS + 1))
        if 0 < size <= MAX_PLANS:
            found += 1
            yield problem
        if found == count:
            return


def at_best(problem: Problem, fraction: float) -> Problem:
    """The same problem where the best placement halves its edges, say."""
    one_way = (problem.edges.one_way_ns * fraction).astype(np.int64)
    occupancy = np.minimum((problem.edges.occupancy_ns * fraction).astype(np.int64), one_way)
    return replace(
        problem,
        edges_at_best=Edges(one_way, 2 * one_way, occupancy, np.minimum(problem.edges.nic_ns, occupancy)),
    )


def compose(problem: Problem, effort: Effort, actual: Problem | None = None) -> Composer:
    """Composes; the referee may know other edges than the ones that plans are ranked with."""
    composer = Composer(lambda _, chain: referee(actual or problem, chain), effort)
    composer.consider(0, problem)
    composer.settle()
    return composer


def simulated(problem: Problem, pace_floor_ns: int) -> list[int]:
    return [plain_simulation(problem, stages) for stages in all_pipelines(problem, pace_floor_ns)]


@pytest.mark.parametrize("name", TIGHT)
def test_bound_and_proof_hold_under_every_limit(name: str) -> None:
    proven = 0
    for problem in problems(40, first=3000):
        composer = compose(problem, TIGHT[name])
        fastest = min(simulated(problem, composer.pace_floors_ns[0]))
        assert composer.lower_bound_ns() <= fastest
        assert composer.lower_bound_ns() <= composer.cutoff_ns
        if composer.best is not None:
            assert composer.best.time_ns >= fastest
        if composer.proven[0]:
            assert composer.best is not None
            assert composer.best.time_ns == fastest == composer.lower_bound_ns()
        proven += composer.proven[0]
    if name in ("everything", "easy search given up"):
        assert proven > 30


@pytest.mark.parametrize("name", ["no listing", "few labels", "everything"])
@pytest.mark.parametrize("share", [0.0, 0.5])
def test_bound_holds_where_placement_decides_the_edges(name: str, share: float) -> None:
    """Edges turn out anywhere between expected and best."""
    rng = random.Random(4)
    for problem in problems(40, first=4000):
        expected = at_best(problem, share)
        part = share + (1 - share) * rng.random()
        actual = replace(expected, edges=at_best(expected, part).edges_at_best)
        composer = compose(expected, TIGHT[name], actual)
        fastest = min(plain_simulation(actual, stages) for stages in all_pipelines(expected))
        assert composer.lower_bound_ns() <= fastest
        if composer.proven[0]:
            assert composer.best is not None
            assert composer.best.time_ns == fastest


def test_stairs_ascend_and_stay_below_the_best_plan() -> None:
    for problem in problems(60, first=5000):
        for effort in (TIGHT["everything"], TIGHT["few labels"]):
            composer = compose(problem, effort)
            pace, fill = composer.stairs_ns[0]
            assert pace <= fill
            fastest = min(simulated(problem, composer.pace_floors_ns[0]))
            assert fill <= fastest


def test_merged_labels_bound_every_plan() -> None:
    """Labels thrown together promise less than the exact bound search, never more."""
    close = 0
    for problem in problems(60, first=5500):
        prober = Prober(problem, Effort())
        exact = prober.search(Objective.LOWER_BOUND, FAR_NS).chains[0].value_ns
        merged = prober.merged_bound_ns(FAR_NS)
        assert merged <= exact
        assert merged <= min(simulated(problem, prober.pace_floor_ns))
        assert prober.merged_bound_ns(exact) <= exact
        pinned = replace(problem, num_stages=2)
        two = [plain_simulation(problem, p) for p in all_pipelines(problem) if len(p) == 2]
        assert Prober(pinned, Effort()).merged_bound_ns(FAR_NS) <= min(two, default=FAR_NS)
        close += merged >= 0.8 * exact
    assert close > 30


def test_incumbent_cuts_off_what_cannot_beat_it() -> None:
    """With a time to beat, only faster plans count, and the proof speaks of them."""
    for problem in problems(40, first=6000):
        fastest = compose(problem, TIGHT["everything"]).cutoff_ns
        for incumbent in (fastest, fastest + 1, 2 * fastest):
            composer = Composer(referee, TIGHT["everything"], incumbent_ns=incumbent)
            composer.consider(0, problem)
            composer.settle()
            assert composer.proven[0]
            assert composer.cutoff_ns == fastest
            assert composer.lower_bound_ns() == fastest
            if incumbent == fastest and composer.best is not None:
                assert composer.best.time_ns >= fastest


def test_several_problems_share_one_incumbent() -> None:
    """The best over several problems is the best of each, whatever the order."""
    for first in range(0, 60, 3):
        three = list(problems(3, first=7000 + 17 * first))
        alone = [compose(problem, TIGHT["everything"]).cutoff_ns for problem in three]
        for order in itertools.permutations(range(3)):
            composer = Composer(referee, TIGHT["everything"])
            for idx in order:
                composer.consider(idx, three[idx])
            composer.settle()
            assert composer.cutoff_ns == composer.lower_bound_ns()
            assert all(composer.proven.values())
            assert composer.cutoff_ns == min(alone)


def test_pace_floor_is_below_the_period_of_every_plan() -> None:
    """Extra warm-up is judged by the least period; that one no plan beats."""
    for problem in problems(60, first=8000):
        prober = Prober(problem, Effort())
        prober.settle_floor(FAR_NS)
        slowest = min(max(s.t for s in stages) for stages in all_pipelines(problem))
        assert 0 < prober.pace_floor_ns <= slowest
        assert prober.promise(FAR_NS)[0] <= min(simulated(problem, prober.pace_floor_ns))
        floor = prober.pace_floor_ns
        prober.settle_floor(prober.promise(FAR_NS)[0])
        assert prober.pace_floor_ns == floor  # Once and for all.


def test_first_chains_are_plans_and_never_better_than_the_best() -> None:
    for problem in problems(60, first=9000):
        best = min(plain_closed_form(problem, stages) for stages in all_pipelines(problem))
        prober = Prober(problem, Effort(beam=3))
        chains = prober.first_chains()
        for chain in chains:
            assert chain.value_ns >= best
        below = Prober(problem, Effort(beam=3)).first_chains(below_ns=best)
        assert below == []
        for island in range(len(problem.capacity)):
            for chain in Prober(problem, Effort(beam=3)).first_chains(must_use=island):
                assert any(problem.pieces.island[piece] == island for piece in chain.pieces)


def test_the_better_guide_changes_no_answer() -> None:
    """Levels only save labels."""
    efforts = (Effort(levels=1), Effort(easy_labels=0), Effort(easy_labels=0, levels=3), Effort())
    for problem in problems(50, first=10_000):
        for objective in (Objective.CLOSED_FORM, Objective.LOWER_BOUND):
            values = set()
            for effort in efforts:
                found = Prober(problem, effort).search(objective, FAR_NS)
                assert found.exhausted
                values.add(found.chains[0].value_ns)
            assert len(values) == 1


def test_a_guide_that_serves_another_search_allows_all_that_one_of_its_own_does() -> None:
    reused = looser = made = 0
    for problem in problems(60, 1300):
        large = replace(problem, pieces=_scaled(problem, 1_000))
        optimum = min(plain_simulation(large, plan) for plan in all_pipelines(large))
        for share in (0.9, 1.0, 1.3):
            prober = Prober(large, EVERYTHING)
            first = prober.guide(int(share * optimum))
            for other in (1.009, 0.995, 0.985, 0.9, 0.7):
                cutoff_ns = int(share * other * optimum)
                guide = prober.guide(cutoff_ns)
                reused += guide is first
                made += guide is not first
                assert other < 1 or guide is not first
                own = prefix_bound(large, cutoff_ns // max(large.num_micro_batches - 1, 1) + 1)
                assert (guide.time_ns <= own.time_ns).all()
                assert (guide.period_ns <= own.period_ns).all()
                looser += int((guide.time_ns < own.time_ns).any())
    assert reused > 100
    assert made > 100
    assert looser > 5


def _scaled(problem: Problem, factor: int) -> Pieces:
    """The pieces with times so long that a per cent of them is some nanoseconds."""
    pieces = problem.pieces
    names = [field.name for field in fields(pieces) if field.name.endswith("_ns")]
    return replace(pieces, **{name: getattr(pieces, name) * factor for name in names})


def test_quick_search_claims_nothing() -> None:
    for problem in problems(20, first=11_000):
        composer = compose(problem, Effort(quick=True))
        assert composer.best is not None
        assert not composer.proven[0]
        assert composer.lower_bounds_ns[0] == 0
        assert composer.best.time_ns >= min(simulated(problem, composer.pace_floors_ns[0]))


def test_best_with_an_island_uses_it() -> None:
    used = 0
    for problem in problems(30, first=12_000):
        composer = compose(problem, Effort())
        everything: list[list[PlainStage]] = list(all_pipelines(problem))
        for island in range(len(problem.capacity)):
            with_island = [
                plain_simulation(problem, stages)
                for stages in everything
                if any(problem.pieces.island[s.piece] == island for s in stages)
            ]
            best = composer.best_with(0, problem, island)
            found = best.time_ns if best else None
            if found is not None:
                used += 1
                assert with_island
                assert found >= min(with_island)
    assert used > 20


def test_nothing_to_compose() -> None:
    """Without pieces, or with pieces that cannot cover the model, there is no plan and nothing is proven
    wrongly.
    """
    problem = next(problems(1, first=13_000))
    some = np.flatnonzero(problem.pieces.start > 0)
    for idx in (some, some[:0]):
        composer = compose(replace(problem, pieces=problem.pieces.take(idx)), Effort())
        assert composer.best is None
        assert composer.cutoff_ns == composer.lower_bound_ns() == FAR_NS
