"""Patterns: which jobs an island can take together, and the one that is worth most.

A pattern of an island is any number of its jobs, with repetition, that together take no more units than it
has; at most one of them holds the first atom of the model, and at most one the last. Given what each job is
worth, the best pattern is a knapsack: of the jobs of one size only the one of the greatest worth counts, so
there are as many items as sizes of portions, about ten. Sizes mostly divide one another (degrees are powers
of two); then the best filling of a size is one job of that size or the best fillings of the size below, and a
capacity is filled from the largest size down. Otherwise all capacities are filled in turn.

Complexity: ``O(jobs)`` for the best of each size; ``O(sizes)`` or ``O(sizes x capacity)`` for the filling.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import gcd

import numpy as np

from tangram.cost.types import FloatArray, IntArray
from tangram.planner.groups import begins
from tangram.planner.jobs import Jobs

_ROLES = 4  # in the middle, with the first atom, with the last one, with both


@dataclass(frozen=True, slots=True)
class Pattern:
    """Jobs of one island.

    Attributes:
        worth: Of all of them.
        jobs: Positions, and how many of each.
    """

    worth: float
    jobs: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class _Offer:
    """The job of a size that is worth most."""

    units: int
    worth: float
    job: int


@dataclass(frozen=True, slots=True, eq=False)
class Patterns:
    """The patterns of all islands. Build it with :meth:`of`.

    Attributes:
        capacity: Units of each island.
        order: Jobs by island, role and size.
        begins: Where each of these groups begins in ``order``.
        islands, roles, units: Of each group.
    """

    capacity: tuple[int, ...]
    order: IntArray
    begins: IntArray
    islands: tuple[int, ...]
    roles: tuple[int, ...]
    units: tuple[int, ...]

    @staticmethod
    def of(jobs: Jobs, capacity: tuple[int, ...]) -> Patterns:
        """Returns the patterns of these jobs."""
        role = jobs.is_first + 2 * jobs.is_last
        order = np.lexsort((jobs.units, role, jobs.island))
        columns = [column[order] for column in (jobs.island, role, jobs.units)]
        first = np.flatnonzero(begins(*columns))
        islands, roles, units = (tuple(column[first].tolist()) for column in columns)
        return Patterns(capacity, order, first, islands, roles, units)

    def best(self, worth: FloatArray) -> list[Pattern]:
        """Returns the pattern of each island that is worth most; empty where nothing is worth anything.

        Args:
            worth: Of each job.
        """
        offers: list[list[list[_Offer]]] = [[[] for _ in range(_ROLES)] for _ in self.capacity]
        if len(self.order):
            own = worth[self.order]
            most = np.maximum.reduceat(own, self.begins)
            ends = np.append(self.begins[1:], len(own))
            for group in np.flatnonzero(most > 0).tolist():
                begin, end = int(self.begins[group]), int(ends[group])
                job = int(self.order[begin + int(own[begin:end].argmax())])
                offer = _Offer(self.units[group], float(most[group]), job)
                offers[self.islands[group]][self.roles[group]].append(offer)
        return [
            _best_of_island(inner, first, last, whole, units)
            for (inner, first, last, whole), units in zip(offers, self.capacity, strict=True)
        ]


def _best_of_island(
    inner: Sequence[_Offer],
    first: Sequence[_Offer],
    last: Sequence[_Offer],
    whole: Sequence[_Offer],
    capacity: int,
) -> Pattern:
    """Tries all ends of the model, none of them among these, and fills up with what is in the middle."""
    ends: list[tuple[_Offer, ...]] = [(), *((end,) for end in (*first, *last, *whole))]
    ends += [(front, behind) for front in first for behind in last]
    # Of ends that leave the same room only those that are worth most count.
    by_room: dict[int, tuple[float, tuple[_Offer, ...]]] = {}
    for chosen in ends:
        room, worth = capacity - sum(end.units for end in chosen), sum(end.worth for end in chosen)
        if room >= 0 and (room not in by_room or worth > by_room[room][0]):
            by_room[room] = (worth, chosen)
    fill = _filling(inner, capacity)
    room = max(by_room, key=lambda room: by_room[room][0] + fill.worth(room))
    worth, chosen = by_room[room]
    numbers: dict[int, int] = {end.job: 1 for end in chosen}
    numbers.update(fill.jobs(room))
    return Pattern(worth + fill.worth(room), tuple(numbers.items()))


def _filling(offers: Sequence[_Offer], capacity: int) -> _Nested | _Tabled:
    """Returns how to fill rooms with jobs of these sizes, which rise."""
    if all(behind.units % front.units == 0 for front, behind in pairwise(offers)):
        return _Nested(offers)
    return _Tabled(offers, capacity)


class _Nested:
    """Each size divides the next one."""

    def __init__(self, offers: Sequence[_Offer]) -> None:
        self._sizes = [offer.units for offer in offers]
        self._worth: list[float] = []  # of one size, filled in the best way
        self._with: list[tuple[int, int]] = []  # by which job, and how many
        for idx, offer in enumerate(offers):
            worth, filled = offer.worth, (offer.job, 1)
            if idx:
                times = offer.units // self._sizes[idx - 1]
                if times * self._worth[-1] > worth:
                    worth, filled = times * self._worth[-1], (self._with[-1][0], times * self._with[-1][1])
            self._worth.append(worth)
            self._with.append(filled)

    def worth(self, room: int) -> float:
        """Returns what the best filling is worth."""
        total = 0.0
        for size, worth in zip(reversed(self._sizes), reversed(self._worth), strict=True):
            total += room // size * worth
            room %= size
        return total

    def jobs(self, room: int) -> dict[int, int]:
        """Returns the jobs of the best filling, and how many of each."""
        numbers: dict[int, int] = {}
        for size, (job, number) in zip(reversed(self._sizes), reversed(self._with), strict=True):
            if room // size:
                numbers[job] = numbers.get(job, 0) + room // size * number
            room %= size
        return numbers


class _Tabled:
    """Any sizes: a table of all rooms."""

    def __init__(self, offers: Sequence[_Offer], capacity: int) -> None:
        self._unit = gcd(*(offer.units for offer in offers))
        self._offers = [(offer.units // self._unit, offer.worth, offer.job) for offer in offers]
        self._table, self._taken = [0.0], [-1]
        for room in range(1, capacity // self._unit + 1):
            worth, taken = self._table[room - 1], -1
            for idx, (size, own, _) in enumerate(self._offers):
                if size <= room and self._table[room - size] + own > worth:
                    worth, taken = self._table[room - size] + own, idx
            self._table.append(worth)
            self._taken.append(taken)

    def worth(self, room: int) -> float:
        """Returns what the best filling is worth."""
        return self._table[room // self._unit]

    def jobs(self, room: int) -> dict[int, int]:
        """Returns the jobs of the best filling, and how many of each."""
        numbers: dict[int, int] = {}
        at = room // self._unit
        while at > 0:
            taken = self._taken[at]
            if taken < 0:
                at -= 1
                continue
            size, _, job = self._offers[taken]
            numbers[job] = numbers.get(job, 0) + 1
            at -= size
        return numbers
