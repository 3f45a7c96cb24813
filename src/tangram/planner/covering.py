"""How much of a model all islands together can cover in time: a bound by column generation.

Every island takes a mean of its patterns (:mod:`tangram.planner.patterns`), each of which keeps to its units.
All of them together must cover the atoms of each kind and each end of the model once, and in every interval
the jobs that must be done inside it must not take longer than it is. How often the model can be covered like
that, ``z``, is a linear programme with a column per pattern. If it is below 1 there is no plan: a plan's
stages on an island are one of its patterns, and they are done one after the other.

Every price of the rows gives an upper bound of ``z``: what the best patterns are worth at these prices, and
the rows. So nothing that is proven depends on how well the programme is solved, and the search ends as soon
as a bound is below 1. Prices come from a revised simplex method (Dantzig and Wolfe's decomposition), with a
column only when it is the best of its island at the current prices.

Intervals are many, and few matter: those that a solution violates are added, until none is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tangram.cost.types import FloatArray
from tangram.planner.jobs import Timed
from tangram.planner.patterns import Pattern, Patterns
from tangram.planner.simplex import TOLERANCE, Simplex

_BELOW = 1 - 1e-7  # floats must not turn a bound into a lie
_VIOLATED = 1e-3  # share of its length by which an interval is too short
_MOST_ROUNDS = 24  # of intervals added

Interval = tuple[float, float]
Mixture = tuple[tuple[tuple[float, Pattern], ...], ...]


@dataclass(frozen=True, slots=True)
class Cover:
    """How much of the model can be covered.

    Attributes:
        most: At most so much, in models; the least bound that was found.
        intervals: Those that matter.
        mixture: A solution, where there is one: per island its patterns and their shares.
    """

    most: float
    intervals: tuple[Interval, ...]
    mixture: Mixture | None = None

    @property
    def is_short(self) -> bool:
        """Whether it is proven that no plan covers the model."""
        return self.most < _BELOW


class Covering:
    """The programme of one case.

    Args:
        timed: Jobs with their times.
        capacity: Units of each island.
        num_atoms: Of each kind.
    """

    def __init__(self, timed: Timed, capacity: tuple[int, ...], num_atoms: Sequence[int]) -> None:
        jobs = timed.jobs
        self._timed, self._patterns, self._islands = timed, Patterns.of(jobs, capacity), len(capacity)
        self._trip = jobs.trip_ns.astype(np.float64)
        covers = [jobs.counts[:, kind] / number for kind, number in enumerate(num_atoms)]
        covers += [jobs.is_first.astype(np.float64), jobs.is_last.astype(np.float64)]
        self._covers = np.array(covers)
        self._known: list[Pattern] = []
        self._owner: list[int] = []

    def most(self, intervals: Sequence[Interval]) -> Cover:
        """Returns how much can be covered, or a bound below 1 where that is found first.

        Args:
            intervals: To begin with.
        """
        chosen, least, shares = list(intervals), float("inf"), None
        for _ in range(_MOST_ROUNDS):
            bound, shares = self._solved(chosen)
            least = min(least, bound)
            if least < _BELOW or shares is None:
                break
            more = [interval for interval in self._too_short(self._numbers(shares)) if interval not in chosen]
            if not more:
                break
            chosen += more
        if least < _BELOW or shares is None:
            return Cover(least, tuple(chosen))
        return Cover(least, tuple(chosen), self._mixture(shares))

    def _solved(self, intervals: Sequence[Interval]) -> tuple[float, FloatArray | None]:
        """Returns the least bound, and if it is reached the shares of the known patterns in the solution."""
        release, due = self._timed.release_ns, self._timed.due_ns
        inside = [((release >= a) & (due <= b)) * self._trip / (b - a) for a, b in intervals]
        ends = self._covers[-2:]
        rows = np.concatenate([-self._covers, ends, np.array(inside).reshape(len(inside), -1)])
        num_covers, num_rows = len(self._covers), len(rows)
        limits = np.concatenate([np.zeros(num_covers), np.ones(num_rows - num_covers + self._islands)])
        simplex = Simplex(limits)
        whole = np.zeros(len(limits))
        whole[:num_covers] = 1.0
        simplex.add(whole, 1.0)
        for pattern, owner in zip(self._known, self._owner, strict=True):
            simplex.add(self._column(rows, pattern, owner), 0.0)
        least = float("inf")
        while simplex.improve():
            prices = np.maximum(simplex.prices, 0.0)
            total = float(prices[:num_covers].sum())
            if total <= 0:
                return least, None
            prices /= total
            best = self._patterns.best(-(prices[:num_rows] @ rows))
            bound = float(prices[num_covers:num_rows].sum()) + sum(pattern.worth for pattern in best)
            least = min(least, bound)
            if least < _BELOW:
                return least, None
            better = False
            for owner, pattern in enumerate(best):
                if pattern.worth > prices[num_rows + owner] + TOLERANCE:
                    self._known.append(pattern)
                    self._owner.append(owner)
                    simplex.add(self._column(rows, pattern, owner), 0.0)
                    better = True
            if not better:
                return least, simplex.solution[1:]
        return least, None

    def _column(self, rows: FloatArray, pattern: Pattern, owner: int) -> FloatArray:
        column = np.zeros(len(rows) + self._islands)
        for job, number in pattern.jobs:
            column[: len(rows)] += number * rows[:, job]
        column[len(rows) + owner] = 1.0
        return column

    def _mixture(self, shares: FloatArray) -> Mixture:
        """The shares of the patterns of each island."""
        found: list[list[tuple[float, Pattern]]] = [[] for _ in range(self._islands)]
        for share, pattern, owner in zip(shares.tolist(), self._known, self._owner, strict=True):
            if share > TOLERANCE:
                found[owner].append((share, pattern))
        return tuple(tuple(of_island) for of_island in found)

    def _numbers(self, shares: FloatArray) -> FloatArray:
        """How often a mean of the known patterns has each job."""
        number = np.zeros(len(self._trip))
        for share, pattern in zip(shares.tolist(), self._known, strict=True):
            if share > 0:
                for job, times in pattern.jobs:
                    number[job] += share * times
        return number

    def _too_short(self, number: FloatArray) -> list[Interval]:
        """The intervals that are too short for what must be done inside: per beginning the worst one."""
        used = np.flatnonzero(number > 0)
        used = used[np.argsort(self._timed.due_ns[used], kind="stable")]
        release, due = self._timed.release_ns[used], self._timed.due_ns[used]
        taken = number[used] * self._trip[used]
        found = []
        for begin in np.unique(release):
            inside = release >= begin
            share = np.cumsum(taken[inside]) / (due[inside] - begin)
            worst = int(share.argmax())
            if share[worst] > 1 + _VIOLATED:
                found.append((float(begin), float(due[inside][worst])))
        return found
