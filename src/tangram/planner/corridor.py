"""Which slices and GPUs the stages of a plan below a time can have: bounds from both sides at once.

In front of a stage the guide of the search (:mod:`tangram.planner.lattice`) says what the other stages take
at least; behind it the same programme says so, over the model turned round. With A and B the least sums of
``t + X`` in front and behind, and P and Q the least paces there, a stage of time ``t`` is part of no plan
that takes less than

    max(A + t + B,  A + m t,  A + t + m Q,  m P):

one micro-batch passes all stages twice; and the stage that is busy with all ``m`` of them waits until the
first one has passed the stages in front of it, and they wait for the last one. Whichever way the GPUs that
the stage leaves are shared out between front and behind: the least of all counts.

Complexity: ``O(slices x lattice)`` per number of GPUs of each island.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from tangram.cost.types import IntArray
from tangram.planner.lattice import PrefixBound, prefix_bound
from tangram.planner.pairs import Pair
from tangram.planner.problem import FAR_NS, Edges, Problem

_CHUNK_CELLS = 1 << 18


def pairs_within(
    problem: Problem, front: PrefixBound, time_ns: int, gpus_per_unit: Sequence[int]
) -> frozenset[Pair]:
    """Returns the pairs that plans which take at most a time can have stages, or runs of stages, on.

    Args:
        problem: What is composed.
        front: Its guide, for plans of that time.
        time_ns: The time.
        gpus_per_unit: Of each island's counter.
    """
    pieces, num = problem.pieces, problem.num_atoms
    behind = _turned_round(problem, time_ns)
    found: set[Pair] = set()
    for island, units in sorted(set(zip(pieces.island.tolist(), pieces.gpus.tolist(), strict=True))):
        own = np.flatnonzero((pieces.island == island) & (pieces.gpus == units))
        slices, slice_of = np.unique(pieces.start[own] * (num + 1) + pieces.stop[own], return_inverse=True)
        start, stop = np.divmod(slices, num + 1)
        least_ns, busy_ns = np.full((2, len(slices)), FAR_NS)
        np.minimum.at(least_ns, slice_of, pieces.time_ns[own])
        np.minimum.at(busy_ns, slice_of, pieces.occupied_ns[own])
        first, rest = _shares(front, island, units)
        rows = max(1, _CHUNK_CELLS // len(first))
        for lo in range(0, len(slices), rows):
            here = slice(lo, lo + rows)
            at = (0, start[here, None], first), (0, num - stop[here, None], rest)
            times = (least_ns[here, None], busy_ns[here, None])
            able = _least_ns(front, behind, at, times, problem.num_micro_batches) <= time_ns
            gpus = units * gpus_per_unit[island]
            found |= {
                (int(start[here][i]), int(stop[here][i]), island, gpus) for i in np.flatnonzero(able).tolist()
            }
    return frozenset(found)


def _turned_round(problem: Problem, time_ns: int) -> PrefixBound:
    """The guide of the stages behind: transfers take no time, and the last stage holds one micro-batch."""
    pieces, num = problem.pieces, problem.num_atoms
    none = np.zeros_like(problem.edges_at_best.one_way_ns)
    held = np.where(pieces.stop == num, np.maximum(pieces.max_in_flight, 2), pieces.max_in_flight)
    turned = replace(
        problem,
        pieces=replace(pieces, start=num - pieces.stop, stop=num - pieces.start, max_in_flight=held),
        edges_at_best=Edges(none, none, none, none),
        same_node=None,
    )
    return prefix_bound(turned, time_ns // problem.num_micro_batches + 1)


def _shares(guide: PrefixBound, island: int, units: int) -> tuple[IntArray, IntArray]:
    """Codes of what stages in front may use, and of what is left for those behind."""
    lattice = guide.lattice
    codes = np.arange(lattice.size)
    used = codes // lattice.strides[island] % lattice.shape[island]
    first = np.flatnonzero(used + units <= lattice.capacity[island])
    return first, lattice.size - 1 - units * lattice.strides[island] - first


def _least_ns(
    front: PrefixBound,
    behind: PrefixBound,
    at: tuple[tuple[int, IntArray, IntArray], tuple[int, IntArray, IntArray]],
    times: tuple[IntArray, IntArray],
    num_micro_batches: int,
) -> IntArray:
    """The bound of the module, per slice."""
    least_ns, busy_ns = times
    far_ns = FAR_NS // (2 * num_micro_batches)  # A pace; where it is that long there is no time either.
    ahead = front.time_ns[at[0]]
    through = ahead + least_ns
    bound = np.maximum(through + behind.time_ns[at[1]], ahead + busy_ns)
    bound = np.maximum(bound, through + num_micro_batches * np.minimum(behind.period_ns[at[1]], far_ns))
    bound = np.maximum(bound, num_micro_batches * np.minimum(front.period_ns[at[0]], far_ns))
    least: IntArray = bound.min(axis=1)
    return least
