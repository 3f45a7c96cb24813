"""Raises the lower bound of a large cluster by cases: how far a micro-batch has come, and when.

The relaxation of :mod:`tangram.planner.dual` sees the mean over a plan's stages, and the mean of several
plans: one may be quick at the front, another at the back. Here plans are told apart by the round trips of
one micro-batch through what lies in front of a few cuts, the *milestones*: ``L_s`` is the sum of ``t + X``
over the pieces that stop at or before milestone ``s``. A *case* is an interval for every ``L_s``. To prove
that no plan takes less than a time ``C``, all cases are refuted: one that cannot be is split in two.

In a case, with ``l(a)`` the least ``(t + X) / atoms`` of the pieces that hold atom ``a``:

* a piece that starts at or behind milestone ``s`` has ``D >= low_s + sum of l`` from there to its start;
* one that stops at or before milestone ``s`` has ``D + t + X <= high_s``;
* behind one that starts at or before milestone ``s``, ``A >= low_last - high_s - (t + X)``;
* and ``D + m t + idle + u_0 < C``, where ``idle`` is at least ``max(0, 2 (X + A) - (w - 1) t)`` while
  ``w < m``, and ``max(0, X + A - (m - 1) t / 2)`` else; the largest window that fits makes it least.

Pieces that break one of these are left out. The rest is a matter of shares: of the GPUs of each island, of
``high_s``, and of ``C`` by the stage of each atom, a plan in the case uses at most all. So if with weights
of sum 1 every way to cover the model uses more than 1 in the mean, there is no such plan. The cheapest way is
the shortest path of :class:`~tangram.planner.dual.Relaxation`; better weights come from playing against the
paths found so far (multiplicative weights), and a mean of paths that uses at most 1 of everything says that
no weights refute the case.

A counted number of paths limits the effort. Docs: composition.md, *Large clusters*.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from tangram.cost.types import BoolArray, FloatArray, IntArray
from tangram.planner.dual import Multipliers, Relaxation
from tangram.planner.problem import Problem

_MILESTONES = 4
_NARROWEST = 0.004  # of the time to prove; a case is not split further
_PATHS, _FIRST_PATHS = 8, 30  # per case
_ROUNDS, _RATE, _CALMED = 150, 0.15, 0.05  # of the play against known paths
_ROUNDED = 1 + 1e-9
_MARGIN = 0.1  # a case is split at what paths use, unless that is so near to an end


@dataclass(frozen=True, slots=True, eq=False)
class Case:
    """Intervals of the trips to the milestones, and the weights to begin with.

    Attributes:
        low_ns, high_ns: Shape ``(num_milestones,)``.
        weights: Of all shares, sum 1.
    """

    low_ns: FloatArray
    high_ns: FloatArray
    weights: FloatArray


@dataclass(frozen=True, slots=True, eq=False)
class _Refuted:
    """Whether a case has no plan; if not, the trips of a mean of paths."""

    done: bool
    weights: FloatArray
    trips_ns: FloatArray | None = None


@dataclass(slots=True, eq=False)
class Casework:
    """Refutes that a problem has a plan below a time.

    Attributes:
        problem: With pieces as in ``relaxation``.
        relaxation: Pieces that a plan below the time may have, in order.
        capacity: Units of each island, at least 1.
        num_paths: Computed so far.
    """

    problem: Problem
    relaxation: Relaxation
    capacity: FloatArray
    num_paths: int = 0
    _milestones: IntArray = field(init=False)
    _least: FloatArray = field(init=False)
    _longest: IntArray = field(init=False)
    _wait: FloatArray = field(init=False)
    _single: BoolArray = field(init=False)
    _end: FloatArray = field(init=False)
    _known: list[tuple[IntArray, FloatArray]] = field(default_factory=list)

    def __post_init__(self) -> None:
        relaxation, problem = self.relaxation, self.problem
        pieces, num = problem.pieces.take(relaxation.slices.order), problem.num_atoms
        count = min(_MILESTONES, num)
        self._milestones = num * np.arange(1, count + 1) // count
        self._least = _least_by_atom(relaxation, num)
        self._longest = np.minimum(pieces.max_in_flight, problem.num_micro_batches)
        self._wait = relaxation.time_ns - pieces.time_ns
        self._single = (pieces.num_stages == 1) & (pieces.stop < num)
        first = pieces.start == 0
        least_step = float(pieces.head_step_ns[first].min(initial=0 if not first.any() else 1 << 60))
        self._end = np.where(first, relaxation.step_ns, least_step)

    def refutes(self, most_paths: int) -> bool:
        """Returns whether no plan is faster than the time of the relaxation; false also when that took too
        many paths to find out.
        """
        high = np.full(len(self._milestones), float(self.relaxation.below_ns))
        weights = np.ones(len(self.capacity) + len(high))
        atoms = np.full(self.problem.num_atoms, len(self.capacity) / self.problem.num_atoms)
        weights = np.concatenate([weights, atoms])
        low = np.zeros(len(high))
        low[-1] = self._least[-1]
        cases = [Case(low, high, weights / weights.sum())]
        while cases:
            case = cases.pop()
            found = self.refute(case, _PATHS if self.num_paths else _FIRST_PATHS)
            if found.done:
                continue
            width = case.high_ns - case.low_ns
            if width.max() < _NARROWEST * self.relaxation.below_ns or self.num_paths > most_paths:
                return False
            cases += self._split(case, found)
        return True

    def refute(self, case: Case, paths: int) -> _Refuted:
        """Tries to show that a case has no plan, with so many paths."""
        allowed = self.allowed(case)
        if not allowed.any():
            return _Refuted(True, case.weights)
        part, limits = self.relaxation.only(allowed), self._limits(case)
        names = np.flatnonzero(allowed)
        uses = [used / limits for path, used in self._known if allowed[path].all()]
        weights, mean = case.weights, None
        for _ in range(paths):
            if uses:
                weights, mean = _played(np.array(uses), weights)
                if mean.max() <= 1:
                    break
            least, path = self._path(part, case, weights)
            if least > _ROUNDED:
                return _Refuted(True, weights)
            known = names[path]
            self._known.append((known, self._uses(known)))
            uses.append(self._known[-1][1] / limits)
        trips = None if mean is None else (mean * limits)[len(self.capacity) :][: len(self._milestones)]
        return _Refuted(False, weights, trips)

    def allowed(self, case: Case) -> BoolArray:
        """Returns which pieces a plan of a case may have."""
        part, least, m = self.relaxation, self._least, self.problem.num_micro_batches
        cuts = np.arange(self.problem.num_atoms + 1)
        ahead = least.copy()
        for cut, low in zip(self._milestones, case.low_ns, strict=True):
            ahead[cut:] = np.maximum(ahead[cut:], low + least[cut:] - least[cut])
        most = case.high_ns[np.searchsorted(self._milestones, cuts)]
        most_ahead = np.where(cuts == 0, 0.0, most)[part.start]
        own_ns = part.time_ns - self._wait
        behind = np.maximum(least[-1] - least[part.stop], case.low_ns[-1] - most_ahead - part.time_ns)
        wait, others = self._wait + behind, self._longest - 1
        idle = np.where(self._longest < m, 2 * wait - others * own_ns, wait - (m - 1) * own_ns / 2)
        idle = np.where(self._single, np.maximum(idle, 0.0), 0.0)
        may: BoolArray = ahead[part.start] + part.busy_ns + idle + self._end < part.below_ns * _ROUNDED
        return may & (ahead[part.start] + part.time_ns <= most[part.stop] * _ROUNDED)

    def _limits(self, case: Case) -> FloatArray:
        """What there is of everything that is shared."""
        atoms = np.full(self.problem.num_atoms, float(self.relaxation.below_ns))
        return np.concatenate([self.capacity, np.maximum(case.high_ns, 1.0), atoms])

    def _path(self, part: Relaxation, case: Case, weights: FloatArray) -> tuple[float, IntArray]:
        """The way to cover the model that uses least in the mean, and what it uses."""
        self.num_paths += 1
        islands, trips = len(self.capacity), len(self._milestones)
        prices = weights[:islands] / self.capacity
        atoms = np.zeros((2, self.problem.num_atoms))
        atoms[0] = weights[islands + trips :] / self.relaxation.below_ns
        # A piece counts for every milestone at or behind its stop.
        prices_of_trips = weights[islands : islands + trips] / np.maximum(case.high_ns, 1.0)
        by_trip = np.cumsum(prices_of_trips[::-1])[::-1]
        cost = part.costs_ns(Multipliers(prices, atoms))
        cost += by_trip[np.searchsorted(self._milestones, part.stop)] * part.time_ns
        least, path = part.path(cost)
        return (least, np.array(path)) if path else (float("inf"), np.array([], dtype=np.int64))

    def _uses(self, path: IntArray) -> FloatArray:
        """What a path uses of everything that is shared."""
        part = self.relaxation
        used = np.zeros(len(self.capacity))
        np.add.at(used, part.island[path], part.gpus[path])
        inside = part.stop[path][None, :] <= self._milestones[:, None]
        trips = (inside * part.time_ns[path]).sum(axis=1)
        return np.concatenate([used, trips, part.profile_ns(path.tolist())[0]])

    def _split(self, case: Case, found: _Refuted) -> list[Case]:
        """Splits a case at its widest interval, where paths are or else in the middle."""
        width = case.high_ns - case.low_ns
        at = len(width) - 1 - int(np.argmax(width[::-1]))
        middle = float(case.low_ns[at] + case.high_ns[at]) / 2
        if found.trips_ns is not None:
            trip, margin = float(found.trips_ns[at]), _MARGIN * float(width[at])
            if case.low_ns[at] + margin < trip < case.high_ns[at] - margin:
                middle = trip
        low, high = case.low_ns.copy(), case.high_ns.copy()
        high[: at + 1] = np.minimum(high[: at + 1], middle)
        low[at:] = np.maximum(low[at:], middle)
        # What stops behind this milestone covers all that lies behind it.
        low[-1] = max(low[-1], middle + self._least[-1] - self._least[self._milestones[at]])
        halves = [Case(case.low_ns, high, found.weights), Case(low, case.high_ns, found.weights)]
        return [half for half in halves if (half.low_ns <= half.high_ns).all()]


def _least_by_atom(relaxation: Relaxation, num_atoms: int) -> FloatArray:
    """The least ``t + X`` of the atoms in front of each cut, each by the quickest piece that holds it."""
    rate = relaxation.time_ns / (relaxation.stop - relaxation.start)
    least = np.full(num_atoms, np.inf)
    # The quickest rate of each slice counts for all of its atoms.
    slices = relaxation.slices
    quickest = np.minimum.reduceat(rate, slices.first)
    stops = relaxation.stop[slices.first]
    for start, stop, value in zip(slices.start.tolist(), stops.tolist(), quickest.tolist(), strict=True):
        np.minimum(least[start:stop], value, out=least[start:stop])
    least = np.where(np.isfinite(least), least, 0.0)
    return np.concatenate([[0.0], np.cumsum(least)])


def _played(uses: FloatArray, weights: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Plays weights against known paths.

    Returns:
        Weights by which the least of the paths uses much; and what a mean of the paths uses.
    """
    chosen, total = np.zeros(len(uses)), np.zeros(len(weights))
    for number in range(_ROUNDS):
        values = uses @ weights
        least = int(values.argmin())
        chosen[least] += 1
        total += weights
        rate = _RATE / (1 + number * _CALMED)
        weights = weights * np.exp(np.clip(rate * (uses[least] - values[least]), -2.0, 2.0))
        weights = weights / weights.sum()
    mean_weights = total / _ROUNDS
    if (uses @ mean_weights).min() > (uses @ weights).min():
        weights = mean_weights
    mean: FloatArray = (chosen / _ROUNDS) @ uses
    return weights, mean


def _thinned(problem: Problem, relaxation: Relaxation) -> BoolArray:
    """Which pieces of a relaxation are needed: not those of one stage that another one on the same portion
    beats in time and in how many micro-batches it holds. Those that start the model differ in step ends too.
    """
    pieces = problem.pieces.take(relaxation.slices.order)
    longest = np.minimum(pieces.max_in_flight, relaxation.slices.windows)
    key = (pieces.tail_class, pieces.gpus, pieces.island, pieces.start, pieces.stop)
    order = np.lexsort((-longest, pieces.time_ns, *key))
    changes = np.any([np.diff(column[order]) != 0 for column in key], axis=0)
    group = np.concatenate([[0], np.cumsum(changes)])
    code = group * (relaxation.slices.windows + 1) + longest[order]
    most = np.maximum.accumulate(code)
    needed = np.ones(len(order), dtype=np.bool_)
    needed[order[1:]] = code[1:] > most[:-1]
    needed |= (pieces.start == 0) | (pieces.num_stages > 1)
    return needed


def proves_by_cases(problem: Problem, below_ns: int, most_paths: int) -> bool:
    """Returns whether it is shown, with so many paths, that no plan of a problem takes less than a time.

    Args:
        problem: What to bound.
        below_ns: The time.
        most_paths: Shortest paths to compute, about.
    """
    relaxation = Relaxation.of(problem, below_ns)
    if relaxation is None:
        return True
    relaxation = relaxation.only(_thinned(problem, relaxation))
    capacity = np.maximum(np.array(problem.capacity, dtype=np.float64), 1.0)
    return Casework(problem, relaxation, capacity).refutes(most_paths)
