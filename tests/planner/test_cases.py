"""Bounds by cases: nothing is refuted that there is, and more is refuted than by prices and weights alone."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from listed_plans import alone, listed, with_kinds

from tangram.planner.cases import Casework
from tangram.planner.dual import dual_bound_ns
from tangram.planner.problem import Problem, single_stage_pieces


def proves(problem: Problem, below_ns: int, most_cases: int = 300) -> bool:
    return Casework.of(problem, below_ns).proves(below_ns, most_cases)


def test_a_time_above_the_fastest_plan_is_never_refuted() -> None:
    known = proven = only_so = 0
    for seed, problem, plans in listed(160):
        best = min(time_ns for time_ns, _ in plans)
        known += 1
        told_apart = replace(problem, atom_kinds=with_kinds(problem, seed))
        for above in (best + 1, best + best // 50 + 1, int(1.2 * best) + 2):
            assert not proves(problem, above)
            assert not proves(told_apart, above)
        by_cases = proves(told_apart, int(0.9 * best))
        proven += by_cases
        only_so += by_cases and dual_bound_ns(problem, best, 60) < int(0.9 * best)
    assert known > 60
    assert proven > 0.5 * known
    assert only_so > 1  # In the mean of several plans islands may be used more than once over.


def test_kinds_of_atoms_prove_no_less() -> None:
    for seed, problem, plans in listed(60):
        target = int(0.85 * min(time_ns for time_ns, _ in plans))
        if proves(problem, target):
            assert proves(replace(problem, atom_kinds=with_kinds(problem, seed)), target)


def test_what_a_casework_for_longer_times_proves_one_for_this_time_does_too() -> None:
    for _, problem, plans in listed(40):
        best = min(time_ns for time_ns, _ in plans)
        work = Casework.of(problem, 2 * best)
        for share in (0.5, 0.8, 0.9, 1.1):
            if work.proves(int(share * best), 200):
                assert proves(problem, int(share * best), 200)


def test_what_cannot_be_refuted_is_left() -> None:
    for _, problem, plans in listed(40):
        best = min(time_ns for time_ns, _ in plans)
        work = Casework.of(problem, best + 1)
        assert not work.proves(best + 1, 50)
        assert work.left
        assert work.proves(1, 50)
        assert not work.left


def equal_stages(count: int, m: int, capacity: int) -> Problem:
    """A chain of equal atoms, a stage of one atom on each GPU; memory for plain 1F1B."""
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
    return alone(count, capacity, m, pieces)


def test_equal_stages_are_bounded_exactly() -> None:
    """In 1F1B of equal stages every one of them shows the whole time: what it waits for is all counted."""
    time_ns = (9 + 4 - 1) * 30
    assert proves(equal_stages(4, 9, 4), time_ns - 1)
    assert not proves(equal_stages(4, 9, 4), time_ns + 1)


def test_an_island_is_used_only_once() -> None:
    """Three GPUs do not hold four stages of one atom each, however long it may take."""
    assert proves(equal_stages(4, 9, 3), 10**6)
