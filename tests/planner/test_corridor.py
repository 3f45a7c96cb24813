"""What a plan below a time can have, against all plans: nothing of any of them is left out."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest
from adversarial import adversarial_problem
from instances import PlainStage, all_pipelines, node_problem, random_problem
from referee import plain_simulation

from tangram.planner.corridor import pairs_within
from tangram.planner.lattice import prefix_bound
from tangram.planner.pairs import Pair
from tangram.planner.problem import Problem

MAX_PLANS = 600


def problems(block: int) -> Iterator[tuple[Problem, list[tuple[int, list[PlainStage]]]]]:
    """Small problems of all kinds, and what each of their plans takes."""
    for seed in range(block, 120, 4):
        problem = (
            random_problem(seed, max_atoms=6),
            adversarial_problem(seed),
            node_problem(seed, tied=False),
            node_problem(seed, tied=True),
        )[seed // 4 % 4]
        plans = list(itertools.islice(all_pipelines(problem), MAX_PLANS + 1))
        if 0 < len(plans) <= MAX_PLANS:
            yield problem, [(plain_simulation(problem, plan), plan) for plan in plans]


def pairs_of(problem: Problem, plan: list[PlainStage], units: list[int]) -> set[Pair]:
    pieces = problem.pieces
    return {
        (
            int(pieces.start[p]),
            int(pieces.stop[p]),
            int(pieces.island[p]),
            int(pieces.gpus[p]) * units[pieces.island[p]],
        )
        for p in {stage.piece for stage in plan}
    }


@pytest.mark.parametrize("block", range(4))
def test_every_pair_of_a_plan_within_a_time_is_kept(block: int) -> None:
    left_out = 0
    for problem, plans in problems(block):
        units = [1 + island for island in range(len(problem.capacity))]
        everything = set().union(*(pairs_of(problem, plan, units) for _, plan in plans))
        times = sorted(time for time, _ in plans)
        for time_ns in (times[0], times[len(times) // 8], times[-1]):
            period_ns = time_ns // max(problem.num_micro_batches - 1, 1) + 1
            for levels in (1, 4):
                front = prefix_bound(problem, period_ns, levels)
                kept = pairs_within(problem, front, time_ns, units)
                for time, plan in plans:
                    if time <= time_ns:
                        assert pairs_of(problem, plan, units) <= kept
                left_out += len(everything - kept)
    assert left_out
