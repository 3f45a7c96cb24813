"""The shortest pace of which there is a block plan (:mod:`tangram.planner.blocks`)."""

from __future__ import annotations

import numpy as np

from tangram.planner.blocks import BlockPlanner
from tangram.planner.problem import Problem

_PACE_HALVINGS = 7
_ANY_HALVINGS, _LAST_SHIFT = 2, 4  # with other orders, for paces shorter by up to 1/16
_MOST_DOUBLINGS = 24


def shortest_pace(
    problem: Problem, planner: BlockPlanner, order: tuple[int, ...] | None
) -> tuple[int, tuple[int, ...] | None]:
    """Returns the shortest pace, within about a per cent, of which there is a block plan, and the order of
    its islands; None when there is none.

    Args:
        problem: What to compose.
        planner: Of that problem.
        order: Of the islands, as it was best at another micro-batch size; None when nothing is known: then
            other orders are tried where the one that is found ends.
    """
    pieces, any_step = problem.pieces, int(problem.pieces.head_step_ns.max())
    slowest = int(pieces.period_ns.max())
    low, high = 0, _least_pace_ns(problem)
    for _ in range(_MOST_DOUBLINGS):
        chain, _, found = planner.plan(high, any_step, order)
        if chain is not None:
            break
        if not low and planner.plan(slowest, any_step, order)[0] is None:
            if order is not None:
                return shortest_pace(problem, planner, None)
            return slowest, None
        low, high = high, high + (high >> 1)
    else:
        return high, None
    high, found = _halved(planner, low, high, found, any_order=False)
    if len(found) == 1 or order is not None:
        return high, found
    return _halved(planner, high - (high >> _LAST_SHIFT), high, found, any_order=True)


def _halved(
    planner: BlockPlanner, low: int, high: int, order: tuple[int, ...], *, any_order: bool
) -> tuple[int, tuple[int, ...]]:
    """Narrows down the shortest pace between one of which there may be no plan and one of which there is."""
    any_step = int(planner.problem.pieces.head_step_ns.max())
    for _ in range(_ANY_HALVINGS if any_order else _PACE_HALVINGS):
        middle = (low + high) // 2
        chain, _, found = planner.plan(middle, any_step, None if any_order else order)
        if chain is None:
            low = middle
        else:
            high, order = middle, found
    return high, order


def _least_pace_ns(problem: Problem) -> int:
    """A pace about which to begin: what all GPUs together need, were every piece as good as the best."""
    pieces = problem.pieces
    effort = pieces.time_ns * pieces.gpus / (pieces.stop - pieces.start)
    rate = 0.0
    for island, capacity in enumerate(problem.capacity):
        own = effort[pieces.island == island]
        if len(own):
            rate += capacity / max(float(np.quantile(own, 0.1)), 1.0)
    return max(int(problem.num_atoms / rate), 1) if rate else int(pieces.period_ns.max())
