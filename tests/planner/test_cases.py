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
from tangram.planner.problem import Problem

MAX_PLANS = 200


def listed(seeds: int) -> Iterator[tuple[int, Problem, list[tuple[int, list[PlainStage]]]]]:
    """Problems with all their pipelines and what each of them takes."""
    for seed in range(seeds):
        problem = adversarial_problem(seed) if seed % 2 else random_problem(seed, max_atoms=6)
        plans = list(itertools.islice(all_pipelines(problem), MAX_PLANS + 1))
        if 0 < len(plans) <= MAX_PLANS:
            yield seed, problem, [(plain_simulation(problem, plan), plan) for plan in plans]


def test_a_time_above_the_fastest_plan_is_never_refuted() -> None:
    known = proven = by_prices = 0
    for _, problem, plans in listed(100):
        best = min(time_ns for time_ns, _ in plans)
        known += 1
        for above in (best + 1, int(1.2 * best) + 2):
            assert not proves_by_cases(problem, above, 40)
        proven += proves_by_cases(problem, int(0.93 * best), 80)
        by_prices += dual_bound_ns(problem, best, 60) >= int(0.93 * best)
    assert known > 40
    assert proven > 0.6 * known
    assert proven > by_prices


def test_every_plan_below_the_time_stays_in_the_cases_that_hold_it() -> None:
    tried = left_out = 0
    for seed, problem, plans in listed(120):
        rng = random.Random(seed)
        below_ns = max(time_ns for time_ns, _ in plans) + 1
        relaxation = Relaxation.of(problem, below_ns)
        assert relaxation is not None
        work = Casework(problem, relaxation, np.maximum(np.array(problem.capacity, dtype=np.float64), 1.0))
        place = {piece: at for at, piece in enumerate(relaxation.slices.order.tolist())}
        for _, plan in rng.sample(plans, min(12, len(plans))):
            path = np.array([place[stage.piece] for stage in plan])
            uses = work._uses(path)
            islands, count = len(problem.capacity), len(work._milestones)
            more = sum(stage.t for stage in plan)
            trips = uses[islands : islands + count]
            spread = np.array([rng.random() for _ in range(count)])
            low = trips * spread
            high = np.maximum.accumulate(trips + (1 - spread) * more)
            case = Case(low, high, np.ones(len(uses)) / len(uses))
            allowed = work.allowed(case)
            assert allowed[path].all()
            left_out += int((~allowed).sum())
            assert (uses <= work._limits(case) * (1 + 1e-9)).all()
            weights = np.array([rng.random() for _ in range(len(uses))])
            part = relaxation.only(allowed)
            assert work._path(part, case, weights / weights.sum())[0] <= 1 + 1e-9
            assert not work.refute(case, 10).done
            tried += 1
    assert tried > 200
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
