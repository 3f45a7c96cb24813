"""A lower bound for clusters of any size: prices instead of counters for GPUs, weights instead of the slowest
stage.

The search tells states apart by how many GPUs of each island are left, which is too many states for
hundreds of GPUs. Here a plan may use as many GPUs as it likes, at a price per GPU of each island; what all
GPUs there are would cost is taken off again. And of a plan's time, which is a maximum over its stages, a
weighted mean counts. Both can only lower the cheapest plan, so its cost is a lower bound for every legal
one, whatever the prices and the weights are. The best of them are approached step by step (a Lagrangian
dual, by multiplicative subgradients).

Notation as in :mod:`tangram.planner.problem`; ``D_i`` is the sum of ``t + X`` and ``F_i`` the sum of ``f +
x`` over the stages in front of stage ``i``. By the recursion of
:func:`tangram.simulate.formulas.lower_bound_ns`, with idle times left out, every plan takes at least

* ``D_i + m t_i + u_0``: the last micro-batch comes back from stage ``i`` through all stages in front;
* ``F_i + m t_i + u_i``: or the step end of stage ``i`` is the last to finish

for every stage ``i``, and so at least any mean of these. With weights ``q`` per atom, those of a stage's
atoms together are its weight; its own time then counts by its weight, and its part of ``D`` and ``F`` by
the weight of all atoms behind it. So each stage has a cost of its own, and the cheapest plan is a shortest
path over cuts.

Memory is tested at the least window that a stage at its place can have: one more than that of the stage
behind. Only pieces that may be part of a plan below the time asked for are there; that is what makes the
bound see whole atoms, and why it is asked for times in turn (:func:`dual_bound_ns`).

Complexity: one path costs ``O(pieces + slices x windows)``, some milliseconds for 100,000 pieces.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from tangram.cost.types import FloatArray, IntArray
from tangram.planner.groups import begins
from tangram.planner.problem import FAR_NS, Problem

_FAR = float(FAR_NS)
_ROUNDED = 1.0 - 1e-9  # sums of floats must not turn a bound into a lie
_PATIENCE = 4  # steps without progress until they get shorter
_SHORTER = 0.6
_LEAST_STEP = 1e-3
_BOLDEST_PRICE, _BOLDEST_WEIGHT = 0.5, 1.0  # logarithm of the largest change of a step
_HALVINGS = 4


@dataclass(frozen=True, slots=True, eq=False)
class Multipliers:
    """What a relaxation is free to choose; any values that are not negative give a valid bound.

    Attributes:
        prices_ns: Per unit of each island; shape ``(num_islands,)``.
        weights: Of the two lower bounds of each atom's stage; shape ``(2, num_atoms)``, sum 1.
    """

    prices_ns: FloatArray
    weights: FloatArray


@dataclass(frozen=True, slots=True, eq=False)
class _Slices:
    """Pieces in order of their slices; positions of them where the next slice, or the next window, begins.

    Attributes:
        order: Positions in the problem's pieces, by (start, stop, largest window).
        first: Where each slice begins.
        rows: Where each largest window of a slice begins.
        row_slice, row_window: Slice and largest window of each row.
        start, stop: Of each slice.
        by_start: Slices that begin at cut ``j`` are ``by_start[j]`` to ``by_start[j + 1]``.
        windows: Windows that are told apart.
    """

    order: IntArray
    first: IntArray
    rows: IntArray
    row_slice: IntArray
    row_window: IntArray
    start: IntArray
    stop: IntArray
    by_start: IntArray
    windows: int

    @staticmethod
    def of(problem: Problem, kept: IntArray) -> _Slices:
        """Sorts the pieces at these positions."""
        pieces, windows = problem.pieces, max(1, min(problem.num_micro_batches, problem.num_atoms))
        longest = np.minimum(pieces.max_in_flight[kept], windows)
        by = np.lexsort((longest, pieces.stop[kept], pieces.start[kept]))
        order, longest = kept[by], longest[by]
        start, stop = pieces.start[order], pieces.stop[order]
        rows = np.flatnonzero(begins(start, stop, longest))
        first = np.flatnonzero(begins(start, stop))
        return _Slices(
            order=order,
            first=first,
            rows=rows,
            row_slice=np.searchsorted(first, rows, side="right") - 1,
            row_window=longest[rows],
            start=start[first],
            stop=stop[first],
            by_start=np.searchsorted(start[first], np.arange(problem.num_atoms + 2)),
            windows=windows,
        )

    def cheapest(self, cost: FloatArray) -> FloatArray:
        """Returns the least cost of each slice per window; shape ``(num_slices, windows + 1)``."""
        table = np.full((len(self.first), self.windows + 1), _FAR)
        table[self.row_slice, self.row_window] = np.minimum.reduceat(cost, self.rows)
        found: FloatArray = np.minimum.accumulate(table[:, ::-1], axis=1)[:, ::-1]
        found[:, 0] = _FAR  # the last stage has a window of one
        return found


@dataclass(frozen=True, slots=True, eq=False)
class Relaxation:
    """The relaxed problem, of pieces that a plan below some time may have. Build it with :meth:`of`.

    Attributes:
        problem: What is relaxed.
        below_ns: The time.
        slices: Pieces in order.
        start, stop, island, gpus: Of each of them.
        busy_ns: ``occupied_ns`` of each.
        step_ns: ``u`` of the first stage of each.
        time_ns: ``t + X`` of each, with the least ``X`` behind it.
        forward_ns: ``f + x`` likewise.
    """

    problem: Problem
    below_ns: int
    slices: _Slices
    start: IntArray
    stop: IntArray
    island: IntArray
    gpus: FloatArray
    busy_ns: FloatArray
    step_ns: FloatArray
    time_ns: FloatArray
    forward_ns: FloatArray

    @staticmethod
    def of(problem: Problem, below_ns: int) -> Relaxation | None:
        """Returns the relaxation; None when there is no piece that a plan below this time may have."""
        pieces, num = problem.pieces, problem.num_atoms
        kept = problem.able_below(below_ns)
        if not len(kept):
            return None
        slices = _Slices.of(problem, kept)
        part = pieces.take(slices.order)
        both, forward = problem.least_waits_ns()
        last = part.stop == num
        return Relaxation(
            problem=problem,
            below_ns=below_ns,
            slices=slices,
            start=part.start,
            stop=part.stop,
            island=part.island,
            gpus=part.gpus.astype(np.float64),
            busy_ns=part.occupied_ns.astype(np.float64),
            step_ns=part.head_step_ns.astype(np.float64),
            time_ns=(part.time_ns + np.where(last, 0, both[part.tail_class])).astype(np.float64),
            forward_ns=(part.forward_ns + np.where(last, 0, forward[part.tail_class])).astype(np.float64),
        )

    def first_guess(self) -> Multipliers:
        """Returns prices in proportion to what GPUs can do, and equal weights."""
        num = self.problem.num_atoms
        effort = self.busy_ns * self.gpus / (self.stop - self.start)
        capacity = np.array(self.problem.capacity, dtype=np.float64)
        least = np.full(len(capacity), _FAR)
        np.minimum.at(least, self.island, np.maximum(effort, 1.0))
        worth = 1.0 / least
        total = float((worth * capacity).sum())
        return Multipliers(worth * (self.below_ns / total), np.full((2, num), 0.5 / num))

    def costs_ns(self, chosen: Multipliers) -> FloatArray:
        """Returns the cost of each piece, in the order of the slices."""
        returned, ended = np.concatenate(
            [np.zeros((2, 1)), np.cumsum(chosen.weights, axis=1)], axis=1
        )  # weights of all atoms in front of a cut
        first, last = returned[self.start], ended[self.start]
        behind, behind_ended = returned[self.stop], ended[self.stop]
        cost: FloatArray = (behind - first + behind_ended - last) * self.busy_ns
        cost += (behind_ended - last) * self.step_ns
        cost += (returned[-1] - behind) * self.time_ns
        cost += (ended[-1] - behind_ended) * self.forward_ns
        cost += np.where(self.start == 0, returned[-1] * self.step_ns, 0.0)
        cost += chosen.prices_ns[self.island] * self.gpus
        return cost

    def path(self, cost: FloatArray) -> tuple[float, list[int]]:
        """Returns the cost of the cheapest way to cover the model, and its pieces, first to last, as
        positions in the order of the slices; the path is empty where there is none.
        """
        slices, num, windows = self.slices, self.problem.num_atoms, self.slices.windows
        table, bounds = slices.cheapest(cost), slices.by_start.tolist()
        # ``behind[j, w]``: the least cost behind a piece that ends at cut ``j`` and has window ``w``.
        behind = np.full((num + 1, windows + 1), _FAR)
        behind[num, 1] = 0.0
        best = behind[num]
        for start in range(num - 1, -1, -1):
            lo, hi = bounds[start], bounds[start + 1]
            if lo == hi:
                continue
            best = (table[lo:hi] + behind[slices.stop[lo:hi]]).min(axis=0)
            behind[start, 1:] = best[:-1]
            behind[start, windows] = min(best[windows - 1], best[windows])
        if bounds[0] == bounds[1]:
            return _FAR, []
        least = float(best.min())
        return least, self._pieces_of(table, behind, int(best.argmin()), cost) if least < _FAR else []

    def _pieces_of(self, table: FloatArray, behind: FloatArray, window: int, cost: FloatArray) -> list[int]:
        slices, longest_of = self.slices, self.problem.pieces.max_in_flight
        ends = np.append(slices.first[1:], len(slices.order))
        path: list[int] = []
        at, num = 0, self.problem.num_atoms
        while at < num:
            lo, hi = slices.by_start[at], slices.by_start[at + 1]
            stops = slices.stop[lo:hi]
            known = int(lo + (table[lo:hi, window] + behind[stops, window]).argmin())
            members = np.arange(slices.first[known], ends[known])
            longest = np.minimum(longest_of[slices.order[members]], slices.windows)
            path.append(int(members[np.where(longest >= window, cost[members], _FAR).argmin()]))
            at = int(slices.stop[known])
            # The largest window that is told apart stands for all above it too.
            stays = window == slices.windows and self._stays(table, behind, at)
            window -= 0 if stays else 1
        return path

    def _stays(self, table: FloatArray, behind: FloatArray, at: int) -> bool:
        """Whether the piece that starts at a cut had better have the largest window than one less."""
        lo, hi = self.slices.by_start[at], self.slices.by_start[at + 1]
        if lo == hi or self.slices.windows < 2:
            return bool(lo != hi)
        most = self.slices.windows
        ends = behind[self.slices.stop[lo:hi], most - 1 : most + 1] + table[lo:hi, most - 1 : most + 1]
        return bool(ends[:, 1].min() < ends[:, 0].min())

    def profile_ns(self, path: list[int]) -> FloatArray:
        """Returns the two lower bounds of each atom's stage; shape ``(2, num_atoms)``."""
        time, forward = self.time_ns[path], self.forward_ns[path]
        busy, step = self.busy_ns[path], self.step_ns[path]
        returned = np.cumsum(time) - time + busy + step[0]
        ended = np.cumsum(forward) - forward + busy + step
        found: FloatArray = np.repeat(np.array([returned, ended]), self.stop[path] - self.start[path], axis=1)
        return found

    def climb(self, chosen: Multipliers, steps: int) -> tuple[float, Multipliers]:
        """Improves the multipliers until they prove the time asked for, or so many steps; returns the best
        bound and what gave it, infinity where no pieces cover the model.
        """
        target = float(self.below_ns)
        capacity = np.array(self.problem.capacity, dtype=np.float64)
        best, kept, stride, stale = -_FAR, chosen, 1.0, 0
        for _ in range(steps):
            least, path = self.path(self.costs_ns(chosen))
            if not path:
                return float("inf"), chosen  # nothing covers the model
            value = least - float((chosen.prices_ns * capacity).sum())
            if value > best:
                best, kept, stale = value, chosen, 0
            else:
                stale += 1
            if best >= target or stride < _LEAST_STEP:
                break
            if stale >= _PATIENCE:
                stride, stale, chosen = stride * _SHORTER, 0, kept
                continue
            used = np.zeros(len(capacity))
            np.add.at(used, self.island[path], self.gpus[path])
            short = max(target - value, 1e-3 * target)
            chosen = _moved(chosen, used - capacity, self.profile_ns(path), stride * short, target)
        return best, kept


def _moved(
    chosen: Multipliers, over: FloatArray, profile_ns: FloatArray, short_ns: float, scale_ns: float
) -> Multipliers:
    """One step uphill, along the subgradient in the logarithms: prices of what is used too much rise, and
    weights of what takes longest.
    """
    prices, weights = chosen.prices_ns, chosen.weights
    by_price = over * prices / scale_ns
    late = (profile_ns - float((weights * profile_ns).sum())) / scale_ns
    length = float((by_price**2).sum() + (weights * late**2).sum())
    step = short_ns / scale_ns / max(length, 1e-9)
    more = np.exp(np.clip(step * by_price, -_BOLDEST_PRICE, _BOLDEST_PRICE))
    heavier = weights * np.exp(np.clip(step * late, -_BOLDEST_WEIGHT, _BOLDEST_WEIGHT))
    return replace(chosen, prices_ns=prices * more, weights=heavier / float(heavier.sum()))


def dual_bound_ns(problem: Problem, below_ns: int, steps: int) -> int:
    """Returns what no plan of a problem can beat, at most ``below_ns``.

    A relaxation for a time says one of two things: no plan is faster than that time, or a plan that is takes
    at least so long. The shorter the time, the fewer pieces it has, and the more it says.

    Args:
        problem: What to bound.
        below_ns: A time; longer plans are of no interest.
        steps: Towards better multipliers, per time.
    """
    chosen: Multipliers | None = None
    proven, reach, upper = 0, below_ns, below_ns
    for _ in range(1 + _HALVINGS):
        relaxation = Relaxation.of(problem, reach)
        if relaxation is None:
            found = float(reach)
        else:
            found, chosen = relaxation.climb(chosen or relaxation.first_guess(), steps)
        if relaxation is None or found * _ROUNDED >= reach:
            proven = reach
            if reach == below_ns:
                break
        else:
            proven, upper = max(proven, int(found * _ROUNDED)), reach
        reach = (proven + upper) // 2
        if reach <= proven:
            break
    return proven
