"""Bounds by cases: nothing is refuted that there is, and more is refuted than by prices and weights alone."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator

import numpy as np
from adversarial import adversarial_problem
from instances import PlainStage, all_pipelines, random_problem
from referee import plain_simulation

from tangram.planner.cases import Case, Casework, proves_by_cases
from tangram.planner.dual import Relaxation, dual_bound_ns
from tangram.planner.problem import Edges, Problem, single_stage_pieces

MAX_PLANS = 200


def listed(seeds: int) -> Iterator[tuple[int, Problem, list[tuple[int, list[PlainStage]]]]]:
    """Problems with all their pipelines and what each of them takes."""
    for seed in range(seeds):
        problem = adversarial_problem(seed) if seed % 2 else random_problem(seed, max_atoms=6)
        plans = list(itertools.islice(all_pipelines(problem), MAX_PLANS + 1))
        if 0 < len(plans) <= MAX_PLANS:
            yield seed, problem, [(plain_simulation(problem, plan), plan) for plan in plans]


def test_a_time_above_the_fastest_plan_is_never_refuted() -> None:
    known = proven = only_so = 0
    for _, problem, plans in listed(80):
        best = min(time_ns for time_ns, _ in plans)
        known += 1
        for above in (best + 1, int(1.2 * best) + 2):
            assert not proves_by_cases(problem, above, 40)
        by_cases = proves_by_cases(problem, int(0.93 * best), 80)
        proven += by_cases
        only_so += by_cases and dual_bound_ns(problem, best, 60) < int(0.93 * best)
    assert known > 30
    assert proven > 0.6 * known
    assert only_so > 0  # prices and weights see step ends behind the first stage, cases do not


def test_every_plan_stays_in_the_cases_that_hold_it_just_below_its_time() -> None:
    tried = left_out = 0
    for seed, problem, plans in listed(240):
        rng = random.Random(seed)
        # The fastest are those whose bounds are tight.
        for time_ns, plan in sorted(plans, key=lambda known: known[0])[:8]:
            relaxation = Relaxation.of(problem, time_ns + 1)
            assert relaxation is not None
            work = Casework(
                problem, relaxation, np.maximum(np.array(problem.capacity, dtype=np.float64), 1.0)
            )
            place = {piece: at for at, piece in enumerate(relaxation.slices.order.tolist())}
            path = np.array([place[stage.piece] for stage in plan])
            uses = work._uses(path)
            islands, count = len(problem.capacity), len(work._milestones)
            trips = uses[islands : islands + count]
            spread = np.array([rng.choice([1.0, rng.random()]) for _ in range(count)])
            high = np.maximum.accumulate(trips + (1 - spread) * sum(stage.t for stage in plan))
            case = Case(trips * spread, high, np.ones(len(uses)) / len(uses))
            allowed = work.allowed(case)
            assert allowed[path].all()
            left_out += int((~allowed).sum())
            assert (uses <= work._limits(case) * (1 + 1e-9)).all()
            weights = np.array([rng.random() for _ in range(len(uses))])
            part = relaxation.only(allowed)
            assert work._path(part, case, weights / weights.sum())[0] <= 1 + 1e-9
            assert not work.refute(case, 4).done
            tried += 1
    assert tried > 400
    assert left_out > tried  # cases do leave pieces out


def test_the_halves_of_a_case_hold_all_that_it_held() -> None:
    rng = random.Random(5)
    for _, problem, plans in listed(60):
        below_ns = max(time_ns for time_ns, _ in plans) + 1
        relaxation = Relaxation.of(problem, below_ns)
        assert relaxation is not None
        work = Casework(problem, relaxation, np.maximum(np.array(problem.capacity, dtype=np.float64), 1.0))
        place = {piece: at for at, piece in enumerate(relaxation.slices.order.tolist())}
        islands, count = len(problem.capacity), len(work._milestones)
        low, high = np.zeros(count), np.full(count, float(below_ns))
        low[-1] = work._least[-1]
        case = Case(low, high, np.ones(islands + count + problem.num_atoms))
        _, plan = rng.choice(plans)
        trips = work._uses(np.array([place[stage.piece] for stage in plan]))[islands : islands + count]
        for _ in range(12):
            found = work.refute(case, 3)
            halves = [
                half
                for half in work._split(case, found)
                if (half.low_ns <= trips * (1 + 1e-9)).all() and (trips <= half.high_ns * (1 + 1e-9)).all()
            ]
            assert halves
            case = halves[0]


def test_equal_stages_are_bounded_exactly_in_the_case_that_is_theirs() -> None:
    """In 1F1B of equal stages every one of them shows the whole time: what it waits for is all counted."""
    count, m = 4, 9
    cuts = np.arange(count)
    same = np.full(count, 10, dtype=np.int64)
    pieces = single_stage_pieces(
        start=cuts,
        stop=cuts + 1,
        island=0,
        gpus=1,
        link_class=0,
        max_in_flight=count - cuts,
        forward_ns=same,
        backward_ns=2 * same,
        step_ns=0 * same,
        num_micro_batches=m,
        payload=cuts,
    )
    nothing = np.zeros((1, 1), dtype=np.int64)
    edges = Edges(nothing, nothing, nothing, nothing)
    problem = Problem(count, (count,), m, pieces, edges, edges, 0)
    time_ns = (m + count - 1) * 30
    for below_ns, stays in ((time_ns + 1, True), (time_ns - 1, False)):
        relaxation = Relaxation.of(problem, below_ns)
        assert relaxation is not None
        work = Casework(problem, relaxation, np.array([float(count)]))
        trips = 30.0 * np.arange(1, count + 1)
        case = Case(trips, trips, np.ones(1 + 2 * count) / (1 + 2 * count))
        assert (work.allowed(case) == stays).all()
    assert proves_by_cases(problem, time_ns - 1, 50)
    assert not proves_by_cases(problem, time_ns + 1, 50)
