"""Composition against brute force where dominance is easily wrong; see adversarial.py."""

from __future__ import annotations

import itertools

import pytest
from adversarial import adversarial_problem
from efforts import EVERYTHING
from instances import all_pipelines, plain_closed_form
from referee import plain_simulation, referee

from tangram.planner.compose import Composer
from tangram.planner.frontier import FrontierSearch, Objective
from tangram.planner.lattice import prefix_bound
from tangram.planner.problem import FAR_NS

NUM_SEEDS = 120
MAX_PLANS = 2_000


@pytest.mark.parametrize("block", range(6))
def test_composition_equals_brute_force_on_adversarial_problems(block: int) -> None:
    assert compare(range(block, NUM_SEEDS, 6)) > 10


@pytest.mark.slow
@pytest.mark.parametrize("block", range(9))
def test_composition_equals_brute_force_on_many_adversarial_problems(block: int) -> None:
    assert compare(range(NUM_SEEDS + block, 10 * NUM_SEEDS, 9)) > 60


def compare(seeds: range) -> int:
    """Compares search and brute force, and returns on how many problems."""
    compared = 0
    for seed in seeds:
        problem = adversarial_problem(seed)
        pipelines = list(itertools.islice(all_pipelines(problem), MAX_PLANS + 1))
        if len(pipelines) > MAX_PLANS:
            continue
        compared += 1
        closed = FrontierSearch(problem, prefix_bound(problem, FAR_NS), Objective.CLOSED_FORM, FAR_NS).run()
        expected = min((plain_closed_form(problem, p) for p in pipelines), default=None)
        assert (closed.chains[0].value_ns if closed.chains else None) == expected, seed
        composer = Composer(referee, EVERYTHING)
        composer.consider(0, problem)
        composer.settle()
        space = all_pipelines(problem, composer.pace_floors_ns[0])
        simulated = min((plain_simulation(problem, p) for p in space), default=None)
        assert (composer.best.time_ns if composer.best else None) == simulated, seed
        assert composer.lower_bound_ns() <= composer.cutoff_ns, seed
    return compared
