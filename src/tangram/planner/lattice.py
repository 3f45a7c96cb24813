"""A relaxed dynamic programme over what is left: the guide of the exact search.

``PrefixBound.time_ns[j, q]`` is a lower bound on ``sum (t + X)`` over the stages that cover atoms ``[0, j)`` with at most the
resources ``q`` (islands' units left, as one mixed-radix number), every piece within a pace, windows and the class of
neighbours relaxed. ``PrefixBound.period_ns[j, q]`` bounds the slowest of those stages. "At most" is meant: leaving GPUs out is
simply not using them.

Complexity: ``O(pieces x lattice)`` additions, done as one numpy operation per (cut, island, size).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tangram.cost.types import IntArray
from tangram.planner.problem import FAR_NS, Problem


@dataclass(frozen=True, slots=True)
class Lattice:
    """Mixed-radix numbering of how many units of each island are in use."""

    capacity: tuple[int, ...]

    @property
    def shape(self) -> tuple[int, ...]:
        """Units of each island, plus one."""
        return tuple(c + 1 for c in self.capacity)

    @property
    def size(self) -> int:
        """Number of points."""
        return int(np.prod(self.shape))

    @property
    def strides(self) -> IntArray:
        """What one unit of each island adds to a code."""
        tail = [int(np.prod(self.shape[k + 1 :])) for k in range(len(self.capacity))]
        return np.array(tail, dtype=np.int64)


@dataclass(frozen=True, slots=True, eq=False)
class PrefixBound:
    """Lower bounds for covering ``[0, j)``; int64 arrays of shape ``(num_atoms + 1, lattice.size)``."""

    lattice: Lattice
    time_ns: IntArray
    period_ns: IntArray


def prefix_bound(problem: Problem, max_period_ns: int) -> PrefixBound:
    """Computes the relaxed programme, using only pieces whose own pace is at most ``max_period_ns``.

    The pace of a piece is the smaller of what the closed form and the lower bound make of it, so that one guide
    serves both objectives.
    """
    lattice = Lattice(problem.capacity)
    pieces = problem.pieces
    least_window = min(2, problem.num_micro_batches)
    wait = problem.edges_at_best.round_trip_ns.min(axis=1, initial=FAR_NS)
    pace = np.minimum(pieces.period_ns, pieces.occupied_ns // problem.num_micro_batches)
    usable = (pace <= max_period_ns) & (pieces.max_in_flight >= least_window)
    usable &= pieces.stop < problem.num_atoms
    idx = np.flatnonzero(usable)
    groups = _fastest_per_slice(problem, idx, wait, pace)

    shape = (problem.num_atoms + 1, *lattice.shape)
    time = np.full(shape, FAR_NS, dtype=np.int64)
    period = np.full(shape, FAR_NS, dtype=np.int64)
    time[0] = 0
    period[0] = 0
    axes = len(lattice.shape)
    for (stop, island, gpus), (starts, times, periods) in groups:
        source: list[slice] = [slice(None)] * axes
        target = source.copy()
        source[island] = slice(0, lattice.shape[island] - gpus)
        target[island] = slice(gpus, None)
        column = (len(starts),) + (1,) * axes
        ahead = time[(starts, *source)] + times.reshape(column)
        into = time[(stop, *target)]
        np.minimum(into, ahead.min(axis=0), out=into)
        slowest = np.maximum(period[(starts, *source)], periods.reshape(column))
        into = period[(stop, *target)]
        np.minimum(into, slowest.min(axis=0), out=into)
    flat = (problem.num_atoms + 1, lattice.size)
    return PrefixBound(lattice, np.minimum(time, FAR_NS).reshape(flat), period.reshape(flat))


def _fastest_per_slice(
    problem: Problem, idx: IntArray, wait: IntArray, pace: IntArray
) -> list[tuple[tuple[int, int, int], tuple[IntArray, IntArray, IntArray]]]:
    """Groups pieces by (stop, island, size), ascending in stop; keeps the fastest of each slice."""
    pieces = problem.pieces
    if len(idx) == 0:
        return []
    time = pieces.time_ns[idx] + wait[pieces.tail_class[idx]]
    columns = (time, pieces.start[idx], pieces.gpus[idx], pieces.island[idx], pieces.stop[idx])
    order = np.lexsort(columns)
    time, start, gpus, island, stop = (c[order] for c in columns)
    period = pace[idx][order]
    new_slice = np.ones(len(order), dtype=np.bool_)
    new_slice[1:] = (
        (np.diff(start) != 0) | (np.diff(gpus) != 0) | (np.diff(island) != 0) | (np.diff(stop) != 0)
    )
    first = np.flatnonzero(new_slice)
    least_period = np.minimum.reduceat(period, first)
    time, start, gpus, island, stop = (c[first] for c in (time, start, gpus, island, stop))
    new_group = np.ones(len(first), dtype=np.bool_)
    new_group[1:] = (np.diff(gpus) != 0) | (np.diff(island) != 0) | (np.diff(stop) != 0)
    bounds = [*np.flatnonzero(new_group).tolist(), len(first)]
    return [
        (
            (int(stop[lo]), int(island[lo]), int(gpus[lo])),
            (start[lo:hi], time[lo:hi], least_period[lo:hi]),
        )
        for lo, hi in zip(bounds, bounds[1:], strict=False)
    ]
