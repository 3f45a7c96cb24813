"""A relaxed dynamic programme over what is left: the guide of the exact search.

``PrefixBound.time_ns[k, j, q]`` is a lower bound on ``sum (t + X)`` over the stages that cover atoms ``[0,
j)`` with at most the resources ``q`` (islands' units left, as one mixed-radix number) in front of a suffix
whose first stage has a window of at least ``k + 1``. Windows rise by at least one per stage, which decides
what fits in memory; the last level stands for all larger windows. The class of neighbours and extra
warm-up are relaxed. ``PrefixBound.period_ns[k, j, q]`` bounds the slowest of those stages. "At most" is
meant: leaving GPUs out is simply not using them.

One level is quick and enough where memory is plenty; where it is tight, more levels keep the exact search
small.

Complexity: ``O(levels x slices x lattice)`` additions, done as one numpy operation per (cut, island, size).
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from tangram.cost.types import IntArray
from tangram.planner.groups import begins
from tangram.planner.problem import FAR_NS, Problem


@dataclass(frozen=True, slots=True, eq=False)
class Lattice:
    """Mixed-radix numbering of how many units of each island are in use.

    Attributes:
        capacity: Units of each island; shape ``(num_islands,)``.
        shape: Units of each island, plus one.
        strides: What one unit of each island adds to a code; shape ``(num_islands,)``.
    """

    capacity: IntArray
    shape: tuple[int, ...]
    strides: IntArray

    @staticmethod
    def of(capacity: tuple[int, ...]) -> Lattice:
        """Numbers the points of a cluster."""
        shape = tuple(units + 1 for units in capacity)
        strides = [prod(shape[k + 1 :]) for k in range(len(shape))]
        return Lattice(np.array(capacity, dtype=np.int64), shape, np.array(strides, dtype=np.int64))

    @property
    def size(self) -> int:
        """Number of points."""
        return prod(self.shape)

    def left(self, used: IntArray) -> IntArray:
        """Returns the codes of what is left; ``used`` has shape ``(..., num_islands)``."""
        codes: IntArray = (self.capacity - used) @ self.strides
        return codes


@dataclass(frozen=True, slots=True, eq=False)
class PrefixBound:
    """Lower bounds for covering ``[0, j)``; int64 arrays of shape
    ``(levels, num_atoms + 1, lattice.size)``.

    Attributes:
        lattice: Numbers what is left.
        time_ns, period_ns: As the module says.
        forward_frac: Of every piece, ``sum (f + x)`` is at least this share of ``sum (t + X)``.
    """

    lattice: Lattice
    time_ns: IntArray
    period_ns: IntArray
    forward_frac: float

    def forward_ns(self, time_ns: IntArray) -> IntArray:
        """Returns a lower bound on ``sum (f + x)`` of stages whose ``sum (t + X)`` is at least this."""
        return (time_ns * self.forward_frac).astype(np.int64)

    def level(self, window: IntArray) -> IntArray:
        """Returns the level that holds for suffixes whose first stages have these windows."""
        level: IntArray = np.minimum(np.maximum(window, 1), len(self.time_ns)) - 1
        return level


@dataclass(frozen=True, slots=True, eq=False)
class _Slices:
    """The fastest piece of each slice on one portion size, per level; slices that end at one cut.

    Attributes:
        stop, island, gpus: Common to all.
        start: Shape ``(num_slices,)``.
        time_ns, period_ns: Shape ``(levels, num_slices)``.
    """

    stop: int
    island: int
    gpus: int
    start: IntArray
    time_ns: IntArray
    period_ns: IntArray


def slice_order(problem: Problem) -> IntArray:
    """Returns the pieces in front of others by where they stop, island, size and start."""
    pieces, m = problem.pieces, problem.num_micro_batches
    idx = np.flatnonzero((pieces.stop < problem.num_atoms) & (pieces.max_in_flight >= min(2, m)))
    columns = (pieces.start[idx], pieces.gpus[idx], pieces.island[idx], pieces.stop[idx])
    return idx[np.lexsort(columns)]


def _paces_ns(problem: Problem) -> IntArray:
    """The smaller of what the closed form and the lower bound make of each piece, so that one guide serves
    both.
    """
    pieces = problem.pieces
    return np.minimum(pieces.period_ns, pieces.occupied_ns // problem.num_micro_batches)


def slice_paces_ns(problem: Problem, order: IntArray) -> IntArray:
    """Returns the shortest pace of each slice on each size of portion, ascending; pieces by their order."""
    pieces = problem.pieces
    columns = (pieces.gpus, pieces.island, pieces.stop, pieces.start)
    first = np.flatnonzero(begins(*(column[order] for column in columns)))
    if not len(first):
        return np.zeros(0, dtype=np.int64)
    return np.sort(np.minimum.reduceat(_paces_ns(problem)[order], first))


def prefix_bound(
    problem: Problem, max_period_ns: int, levels: int = 1, order: IntArray | None = None
) -> PrefixBound:
    """Computes the relaxed programme, using only pieces whose own pace is at most ``max_period_ns``.

    Args:
        problem: What is composed.
        max_period_ns: Slower pieces are left out.
        levels: Windows that are told apart.
        order: Of the pieces, by :func:`slice_order`; None to find it.
    """
    order = slice_order(problem) if order is None else order
    lattice = Lattice.of(problem.capacity)
    shape = (levels, problem.num_atoms + 1, *lattice.shape)
    time = np.full(shape, FAR_NS, dtype=np.int64)
    period = np.full(shape, FAR_NS, dtype=np.int64)
    time[:, 0] = 0
    period[:, 0] = 0
    axes = len(lattice.shape)
    ahead = np.minimum(np.arange(levels) + 1, levels - 1)[:, None]
    for group in _fastest_slices(problem, max_period_ns, levels, order):
        source: list[Any] = [slice(None)] * axes
        target: list[Any] = source.copy()
        source[group.island] = slice(0, lattice.shape[group.island] - group.gpus)
        target[group.island] = slice(group.gpus, None)
        column = (levels, len(group.start)) + (1,) * axes
        from_: tuple[Any, ...] = (ahead, group.start[None, :], *source)
        to: tuple[Any, ...] = (slice(None), group.stop, *target)
        into = time[to]
        np.minimum(into, (time[from_] + group.time_ns.reshape(column)).min(axis=1), out=into)
        into = period[to]
        slowest = np.maximum(period[from_], group.period_ns.reshape(column))
        np.minimum(into, slowest.min(axis=1), out=into)
    flat = (levels, problem.num_atoms + 1, lattice.size)
    time = np.minimum(time, FAR_NS)
    return PrefixBound(lattice, time.reshape(flat), period.reshape(flat), _forward_frac(problem))


def _forward_frac(problem: Problem) -> float:
    """The least share of forward work in any piece; half of a round trip is forward."""
    pieces = problem.pieces
    least = (pieces.forward_ns / np.maximum(pieces.time_ns, 1)).min(initial=0.5)
    return float(least) * (1 - 1e-9)


def _fastest_slices(problem: Problem, max_period_ns: int, levels: int, order: IntArray) -> list[_Slices]:
    """Groups pieces by (stop, island, size), ascending in stop, and keeps the fastest of each slice and
    level.
    """
    pieces, m = problem.pieces, problem.num_micro_batches
    pace = _paces_ns(problem)
    idx = order[pace[order] <= max_period_ns]
    if len(idx) == 0:
        return []
    columns = (pieces.start, pieces.gpus, pieces.island, pieces.stop)
    start, gpus, island, stop = (column[idx] for column in columns)
    first_of_slice = np.flatnonzero(begins(gpus, island, stop, start))
    first_of_group = np.flatnonzero(begins(gpus, island, stop))

    wait, _ = problem.least_waits_ns()
    total = pieces.time_ns[idx] + wait[pieces.tail_class[idx]]
    need = np.minimum(np.arange(levels) + 2, m)[:, None]
    able = pieces.max_in_flight[idx] >= need
    time = np.minimum.reduceat(np.where(able, total, FAR_NS), first_of_slice, axis=1)
    period = np.minimum.reduceat(np.where(able, pace[idx], FAR_NS), first_of_slice, axis=1)
    bounds = np.append(np.searchsorted(first_of_slice, first_of_group), len(first_of_slice)).tolist()
    return [
        _Slices(
            stop=int(stop[at]),
            island=int(island[at]),
            gpus=int(gpus[at]),
            start=start[first_of_slice[lo:hi]],
            time_ns=time[:, lo:hi],
            period_ns=period[:, lo:hi],
        )
        for at, lo, hi in zip(first_of_group.tolist(), bounds, bounds[1:], strict=False)
    ]
