"""The simplex method against HiGHS."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.optimize import linprog

from tangram.planner.simplex import Simplex


def test_solutions_are_those_of_highs() -> None:
    draws = np.random.default_rng(3)
    for _ in range(80):
        rows, columns = draws.integers(1, 9), draws.integers(1, 14)
        matrix = draws.integers(-2, 5, size=(rows, columns)).astype(np.float64)
        matrix[0] = np.abs(matrix[0]) + 1  # So that there is a best solution.
        limits = draws.choice([0.0, 1.0, 1.0, 2.5], size=rows)
        costs = draws.integers(-1, 6, size=columns).astype(np.float64)
        known = linprog(-costs, A_ub=matrix, b_ub=limits)
        simplex = Simplex(limits)
        half = columns // 2
        for column in range(half):
            simplex.add(matrix[:, column], costs[column])
        assert simplex.improve()
        for column in range(half, columns):  # What comes later is not forgotten.
            simplex.add(matrix[:, column], costs[column])
        assert simplex.improve()
        assert costs @ simplex.solution == pytest.approx(-known.fun, abs=1e-3)
        assert (matrix @ simplex.solution <= limits + 1e-4).all()
        assert (simplex.solution >= 0).all()
        prices = np.maximum(simplex.prices, 0.0)
        assert (prices @ matrix >= costs - 1e-6).all()
        assert prices @ limits == pytest.approx(-known.fun, abs=1e-3)


def test_many_pivots_lose_nothing() -> None:
    draws = np.random.default_rng(5)
    matrix, limits = draws.random((30, 400)), 1 + draws.random(30)
    costs = draws.random(400)
    simplex = Simplex(limits)
    for column in range(400):
        simplex.add(matrix[:, column], costs[column])
        if column % 40 == 39:
            assert simplex.improve()
    known = linprog(-costs, A_ub=matrix, b_ub=limits)
    assert costs @ simplex.solution == pytest.approx(-known.fun, rel=1e-5)


def test_what_nothing_limits_is_not_called_solved() -> None:
    simplex = Simplex(np.array([1.0]))
    simplex.add(np.array([-1.0]), 1.0)
    assert not simplex.improve()
