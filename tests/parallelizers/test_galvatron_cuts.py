"""Cuts and the knapsack by themselves, against all choices there are."""

from __future__ import annotations

import random
from itertools import combinations, pairwise, product

import numpy as np
import pytest

from tangram.parallelizers.galvatron.cuts import best_cuts
from tangram.parallelizers.galvatron.knapsack import Chain, Menu


@pytest.mark.parametrize("seed", range(60))
def test_cuts_are_the_best_of_all(seed: int) -> None:
    rng = random.Random(seed)
    num_stages, positions, m = rng.randint(1, 4), rng.randint(2, 8), rng.choice([1, 2, 3, 16])
    values = np.full((num_stages, positions, positions), np.inf)
    for stage, i, j in product(range(num_stages), range(positions), range(positions)):
        if i < j and rng.random() < 0.9:
            values[stage, i, j] = (j - i) * rng.uniform(0.5, 1.5)
    best = np.inf
    for cuts in combinations(range(1, positions - 1), num_stages - 1):
        taken = [values[k, a, b] for k, (a, b) in enumerate(pairwise([0, *cuts, positions - 1]))]
        if max(taken) < np.inf:
            best = min(best, sum(taken) + (m - 1) * max(taken))
    found = best_cuts(values, m)
    assert (found is None) == (best == np.inf)
    if found is not None:
        taken = [values[k, a, b] for k, (a, b) in enumerate(pairwise([0, *found[1], positions - 1]))]
        assert found[0] == pytest.approx(best, rel=1e-12)
        assert sum(taken) + (m - 1) * max(taken) == pytest.approx(best, rel=1e-12)


def random_menu(rng: random.Random) -> Menu:
    num_classes, num_strategies, num_layouts = rng.randint(1, 3), rng.randint(1, 5), rng.randint(1, 3)
    shape = (num_classes, num_strategies)
    change = np.array(
        [[[rng.choice([0.0, 0.1, 1.0]) for _ in range(num_layouts)] for _ in range(num_layouts)]]
        * num_classes
    )
    change += change.transpose(0, 2, 1)
    change *= 1 - np.eye(num_layouts)
    strategies = tuple(
        tuple(s for s in range(num_strategies) if s == 0 or rng.random() < 0.8) for _ in range(num_classes)
    )
    return Menu(
        strategies=strategies,
        layout=np.array([rng.randrange(num_layouts) for _ in range(num_strategies)]),
        value_s=np.array([rng.uniform(0.5, 2.0) for _ in range(shape[0] * shape[1])]).reshape(shape),
        steps=np.array([rng.choice([0, 0, 1, 2, 5]) for _ in range(shape[0] * shape[1])]).reshape(shape),
        exchange_s=change,
    )


def valued(menu: Menu, classes: list[int], chosen: tuple[int, ...]) -> tuple[float, int]:
    """Time and steps of one choice."""
    value = sum(menu.value_s[held, s] for held, s in zip(classes, chosen, strict=True))
    for held, (a, b) in zip(classes, pairwise(chosen), strict=False):
        value += menu.exchange_s[held, menu.layout[a], menu.layout[b]]
    return value, sum(int(menu.steps[held, s]) for held, s in zip(classes, chosen, strict=True))


@pytest.mark.parametrize("seed", range(80))
def test_a_chain_is_the_best_of_all_choices(seed: int) -> None:
    rng = random.Random(1000 + seed)
    menu = random_menu(rng)
    classes = [rng.randrange(len(menu.strategies)) for _ in range(5)]
    chain = Chain(menu, classes, 30)
    for count in (1, 3, 5):
        choices = list(product(*(menu.strategies[held] for held in classes[:count])))
        costs = [valued(menu, classes[:count], chosen) for chosen in choices]
        for steps in (0, 2, 6, 40):
            best = min((value for value, used in costs if used <= steps), default=np.inf)
            assert chain.best(count, steps) == pytest.approx(best, rel=1e-12)
            if best < np.inf:
                value, used = valued(menu, classes[:count], tuple(chain.strategies(count, steps)))
                assert used <= steps
                assert value == pytest.approx(best, rel=1e-12)


@pytest.mark.parametrize("seed", range(40))
def test_one_more_atom_behind_a_chain(seed: int) -> None:
    rng = random.Random(2000 + seed)
    menu = random_menu(rng)
    classes = [rng.randrange(len(menu.strategies)) for _ in range(4)]
    chain, last = Chain(menu, classes, 30), classes[-1]
    choices = list(product(*(menu.strategies[held] for held in classes)))
    for steps in (0, 3, 40):
        fitting = [value for value, used in (valued(menu, classes, c) for c in choices) if used <= steps]
        value, strategy = chain.best_before(3, last, menu.strategies[last], steps)
        assert value == pytest.approx(min(fitting, default=np.inf), rel=1e-12)
        if fitting:
            left = steps - int(menu.steps[last, strategy])
            found = (*chain.strategies(3, left, strategy), strategy)
            assert valued(menu, classes, found)[0] == pytest.approx(value, rel=1e-12)


def test_a_menu_with_one_strategy_for_a_class() -> None:
    menu = random_menu(random.Random(5)).only(0, 0)
    assert menu.strategies[0] == (0,)
    assert Chain(menu, [0, 0], 10).strategies(2, 10) == [0, 0]
