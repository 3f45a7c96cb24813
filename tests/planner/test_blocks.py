"""Block plans: legal, of the pace asked for, and as far as listing all of them reaches."""

from __future__ import annotations

import itertools
import random

import numpy as np
from instances import PlainStage, all_pipelines, random_problem
from test_frontier import check_chain

from tangram.planner.blocks import BlockPlanner, uncovered
from tangram.planner.problem import FAR_NS, Edges, Pieces, Problem, single_stage_pieces

MAX_PLANS = 1500


def whole_problem(seed: int) -> Problem:
    """A random problem without transfers in which every slice fits every size, if the window allows."""
    rng = random.Random(seed)
    num, islands = rng.randint(3, 6), rng.randint(1, 3)
    weights = [rng.randint(20, 200) for _ in range(num)]
    slices = [(start, stop) for start in range(num) for stop in range(start + 1, num + 1)]
    start, stop = np.array(slices).T
    m, parts = rng.choice([4, 16]), []
    for island in range(islands):
        speed, memory = rng.uniform(0.5, 3.0), rng.randint(num, 4 * num)
        for gpus in (1, 2):
            total = np.array([sum(weights[a:b]) for a, b in slices]) * speed / gpus**0.8
            parts.append(
                single_stage_pieces(
                    start=start,
                    stop=stop,
                    island=island,
                    gpus=gpus,
                    link_class=island,
                    max_in_flight=memory * gpus // (stop - start),
                    forward_ns=total.astype(np.int64),
                    backward_ns=(2 * total).astype(np.int64),
                    step_ns=(stop - start) * rng.choice([0, 50]),
                    num_micro_batches=m,
                    payload=np.arange(len(slices)),
                )
            )
    nothing = np.zeros((islands, islands), dtype=np.int64)
    edges = Edges(nothing, nothing, nothing, nothing)
    capacity = tuple(rng.randint(1, 3) for _ in range(islands))
    return Problem(num, capacity, m, Pieces.concatenate(parts), edges, edges, 0)


def block_pipelines(problem: Problem) -> list[list[PlainStage]] | None:
    """All pipelines in which no island recurs; None where they are too many."""
    plans = list(itertools.islice(all_pipelines(problem), MAX_PLANS + 1))
    if not 0 < len(plans) <= MAX_PLANS:
        return None
    return [
        plan
        for plan in plans
        if len(list(itertools.groupby(s.island for s in plan))) == len({s.island for s in plan})
    ]


def pace_of(plan: list[PlainStage]) -> int:
    return max(stage.t for stage in plan)


def test_block_plans_are_legal_and_as_fast_as_listing_finds() -> None:
    compared = 0
    for seed in range(120):
        problem = whole_problem(seed)
        plans = block_pipelines(problem)
        if not plans:
            continue
        least = min(pace_of(plan) for plan in plans)
        planner = BlockPlanner(problem, FAR_NS)
        steps = int(problem.pieces.head_step_ns.max())
        chain, missing, order = planner.plan(least, steps)
        assert chain is not None
        assert missing == 0
        check_chain(problem, chain)
        at = list(chain.pieces)
        assert int(problem.pieces.period_ns[at].max()) <= least
        islands = [key for key, _ in itertools.groupby(problem.pieces.island[at].tolist())]
        assert len(islands) == len(set(islands))
        assert sorted(order) == list(range(len(problem.capacity)))
        # In that order it is found again, and a shorter pace is not.
        again, _, _ = planner.plan(least, steps, order)
        assert again == chain
        none, missing, _ = planner.plan(least - 1, steps)
        assert none is None
        assert missing > 0
        compared += 1
    assert compared > 25


def test_step_ends_are_limited() -> None:
    limited = 0
    for seed in range(120):
        problem = random_problem(seed, max_atoms=6)
        if not len(problem.pieces):
            continue
        slowest, steps = int(problem.pieces.period_ns.max()), problem.pieces.head_step_ns
        chain, _, _ = BlockPlanner(problem, FAR_NS).plan(slowest, int(steps.max()) // 2)
        if chain is not None:
            check_chain(problem, chain)
            assert int(steps[list(chain.pieces)].max()) <= int(steps.max()) // 2
            limited += 1
    assert limited > 10


def test_what_no_block_plan_covers_is_counted() -> None:
    problem = random_problem(4)
    assert uncovered(problem) == 0
    front = problem.pieces.take(np.flatnonzero(problem.pieces.start >= 2))
    assert uncovered(Problem(problem.num_atoms, problem.capacity, 4, front, *[problem.edges] * 2, 0)) == 2
