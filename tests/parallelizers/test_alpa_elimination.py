"""Variable elimination against trying everything, on random graphs."""

from itertools import product

import numpy as np
import pytest

from tangram.parallelizers.alpa.elimination import eliminate


@pytest.mark.parametrize("seed", range(40))
def test_it_finds_the_least_sum(seed: int) -> None:
    rng = np.random.default_rng(seed)
    sizes = rng.integers(1, 5, size=rng.integers(1, 7)).tolist()
    unary = [rng.integers(0, 50, size=n).astype(float) for n in sizes]
    pairs = {
        (a, b): rng.integers(0, 50, size=(sizes[a], sizes[b])).astype(float)
        for a in range(len(sizes))
        for b in range(a + 1, len(sizes))
        if rng.random() < 0.6
    }
    keep = sorted(v for v in range(len(sizes)) if rng.random() < 0.3)

    def total(values: tuple[int, ...]) -> float:
        own = sum(costs[v] for costs, v in zip(unary, values, strict=True))
        return float(own + sum(costs[values[a], values[b]] for (a, b), costs in pairs.items()))

    best: dict[tuple[int, ...], float] = {}
    for values in product(*(range(n) for n in sizes)):
        key = tuple(values[v] for v in keep)
        best[key] = min(best.get(key, np.inf), total(values))
    solved = eliminate(unary, pairs, keep)
    assert solved.kept == tuple(keep)
    assert solved.costs.shape == tuple(sizes[v] for v in keep)
    for key, least in best.items():
        assert solved.costs[key] == least
        assignment = solved.assignment(key)
        assert tuple(assignment[v] for v in keep) == key
        assert total(tuple(assignment)) == least


def test_ties_go_to_the_first() -> None:
    assert eliminate([np.zeros(3), np.zeros(2)], {(0, 1): np.zeros((3, 2))}).assignment() == [0, 0]
