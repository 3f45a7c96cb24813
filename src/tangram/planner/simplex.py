"""A revised simplex method for small linear programmes whose columns come one by one.

It maximises ``costs @ x`` where ``columns @ x <= limits`` and ``x >= 0``. Limits that are equal, as many
zeros are, make the method turn in circles, so they are made a little different; solutions are off by as
little. Nothing that is proven may depend on them: for :mod:`tangram.planner.covering` any prices give a
bound.

Complexity: a pivot is ``O(rows^2 + rows x columns)``.
"""

from __future__ import annotations

import numpy as np

from tangram.cost.types import FloatArray

TOLERANCE = 1e-9
_PERTURBED = 1e-7
_MOST_PIVOTS, _REFRESHED = 2_000, 64


class Simplex:
    """A linear programme and its best solution so far.

    Args:
        limits: Not negative, so that the slacks are a first solution.
    """

    def __init__(self, limits: FloatArray) -> None:
        size = len(limits)
        self._limits = limits + _PERTURBED * (1 + np.arange(size) % 61)
        self._columns = np.eye(size)
        self._costs = np.zeros(size)
        self._basis = np.arange(size)
        self._inverse: FloatArray = np.eye(size)
        self._values = self._limits.copy()
        self._pivots = 0
        self._waiting: list[tuple[FloatArray, float]] = []

    @property
    def prices(self) -> FloatArray:
        """Of the rows."""
        prices: FloatArray = self._costs[self._basis] @ self._inverse
        return prices

    @property
    def solution(self) -> FloatArray:
        """Of all columns that were added."""
        found = np.zeros(len(self._costs))
        found[self._basis] = self._values
        return found[len(self._limits) :]

    def add(self, column: FloatArray, cost: float) -> None:
        """Adds a column."""
        self._waiting.append((column, cost))

    def improve(self) -> bool:
        """Makes the solution the best with the columns there are; false where that takes too long."""
        if self._waiting:
            columns, costs = zip(*self._waiting, strict=True)
            self._columns = np.concatenate([self._columns, np.array(columns).T], axis=1)
            self._costs = np.concatenate([self._costs, np.array(costs)])
            self._waiting = []
        while self._pivots < _MOST_PIVOTS:
            gain = self._costs - self.prices @ self._columns
            enters = int(gain.argmax())
            if gain[enters] <= TOLERANCE:
                return True
            if not self._pivot(enters):
                return False
        return False

    def _pivot(self, enters: int) -> bool:
        """Brings a column into the solution; false where nothing limits it."""
        self._pivots += 1
        if self._pivots % _REFRESHED == 0:
            self._inverse = np.linalg.inv(self._columns[:, self._basis]).astype(np.float64)
            self._values = np.maximum(self._inverse @ self._limits, 0.0)
        along = self._inverse @ self._columns[:, enters]
        limited = along > TOLERANCE
        if not limited.any():
            return False
        ratio = np.full(len(along), np.inf)
        ratio[limited] = self._values[limited] / along[limited]
        leaves = int(ratio.argmin())
        step = float(ratio[leaves])
        self._values = np.maximum(self._values - step * along, 0.0)
        self._values[leaves] = step
        row = self._inverse[leaves] / along[leaves]
        self._inverse = self._inverse - np.outer(along, row)
        self._inverse[leaves] = row
        self._basis[leaves] = enters
        return True
