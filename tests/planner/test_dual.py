"""The bound for clusters of any size: never above what any pipeline takes, and not vacuous."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
from adversarial import adversarial_problem
from instances import all_pipelines, random_problem
from referee import plain_simulation

from tangram.planner.dual import Multipliers, Relaxation, dual_bound_ns
from tangram.planner.frontier import FrontierSearch, Objective
from tangram.planner.lattice import prefix_bound
from tangram.planner.problem import FAR_NS, Problem

MAX_PLANS = 200


def fastest_ns(problem: Problem) -> int | None:
    """By listing all pipelines; None where they are too many, or none."""
    plans = list(itertools.islice(all_pipelines(problem), MAX_PLANS + 1))
    if not 0 < len(plans) <= MAX_PLANS:
        return None
    return min(plain_simulation(problem, plan) for plan in plans)


def test_no_pipeline_beats_the_bound() -> None:
    known, shares = 0, []
    for seed in range(300):
        problem = adversarial_problem(seed) if seed % 2 else random_problem(seed, max_atoms=6)
        best = fastest_ns(problem)
        if best is None:
            continue
        known += 1
        bound = dual_bound_ns(problem, best, 30)
        assert bound <= best
        # Asked for more than the fastest plan takes, it must not prove what is false.
        assert dual_bound_ns(problem, 2 * best, 10) <= best
        shares.append(bound / best)
    assert known > 60
    assert np.mean(shares) > 0.75


def test_any_prices_and_weights_give_a_bound() -> None:
    rng = np.random.default_rng(7)
    tried = 0
    for seed in range(120):
        problem = random_problem(seed, max_atoms=6)
        best = fastest_ns(problem)
        relaxation = Relaxation.of(problem, FAR_NS)
        if best is None or relaxation is None:
            continue
        weights = rng.exponential(size=(2, problem.num_atoms))
        prices = rng.exponential(size=len(problem.capacity)) * best / 5
        cost, path = relaxation.path(relaxation.costs_ns(Multipliers(prices, weights / float(weights.sum()))))
        tried += 1
        assert path
        assert cost - float((prices * np.array(problem.capacity)).sum()) <= best * (1 + 1e-9)
    assert tried > 40


def test_where_no_plan_is_fast_enough_the_time_asked_for_is_the_bound() -> None:
    proven = 0
    for seed in range(60):
        problem = random_problem(seed, max_atoms=5)
        best = fastest_ns(problem)
        if best is not None:
            proven += dual_bound_ns(problem, best // 2, 20) == best // 2
    assert proven > 15


def test_nothing_that_fits_in_memory_beats_any_time() -> None:
    problem = random_problem(5)
    assert problem.num_micro_batches > 1
    pieces = problem.pieces.take(
        np.flatnonzero(problem.pieces.stop - problem.pieces.start < problem.num_atoms)
    )
    tight = replace(problem, pieces=replace(pieces, max_in_flight=np.ones_like(pieces.max_in_flight)))
    assert dual_bound_ns(tight, 10**12, 3) == 10**12


def test_many_equal_stages_are_bounded_closely() -> None:
    """Where whole atoms and whole stages matter little, prices are nearly as good as counters."""
    gaps = []
    for seed in range(400):
        problem = random_problem(seed, transfers=0.0)
        if problem.num_micro_batches < 16 or problem.num_atoms < 7 or min(problem.capacity) < 2:
            continue
        found = FrontierSearch(problem, prefix_bound(problem, FAR_NS), Objective.LOWER_BOUND, FAR_NS).run()
        if found.lowest_ns is not None:
            gaps.append(dual_bound_ns(problem, found.lowest_ns, 40) / found.lowest_ns)
    assert len(gaps) > 5
    assert max(gaps) <= 1.0
    assert np.mean(gaps) > 0.75


def test_the_same_question_has_the_same_bound() -> None:
    problem = random_problem(11)
    assert len({dual_bound_ns(problem, 10**6, 20) for _ in range(3)}) == 1
