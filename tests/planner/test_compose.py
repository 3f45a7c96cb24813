"""Composition against brute force: through the closed form, and through the simulator."""

from __future__ import annotations

import itertools

import pytest
from efforts import EVERYTHING
from instances import all_pipelines, plain_closed_form, random_problem
from referee import plain_simulation, referee

from tangram.planner.compose import Composer
from tangram.planner.frontier import FrontierSearch, Objective
from tangram.planner.lattice import prefix_bound
from tangram.planner.problem import FAR_NS, Problem

NUM_SEEDS = 330
MAX_PLANS = 9_000


def _closed(problem: Problem) -> int | None:
    found = FrontierSearch(problem, prefix_bound(problem, FAR_NS), Objective.CLOSED_FORM, FAR_NS).run()
    return found.chains[0].value_ns if found.chains else None


@pytest.mark.parametrize("block", range(11))
def test_composition_equals_brute_force(block: int) -> None:
    per_block = NUM_SEEDS // 11
    compared = 0
    seed = block * 1000
    while compared < per_block:
        problem = random_problem(seed)
        seed += 1
        pipelines = list(itertools.islice(all_pipelines(problem), MAX_PLANS + 1))
        if len(pipelines) > MAX_PLANS:
            continue
        compared += 1
        expected = min((plain_closed_form(problem, p) for p in pipelines), default=None)
        assert _closed(problem) == expected, f"closed form, seed {seed - 1}"
        composer = Composer(referee, EVERYTHING)
        composer.consider(0, problem)
        composer.settle()
        space = all_pipelines(problem, composer.pace_floors_ns[0])
        simulated = min((plain_simulation(problem, p) for p in space), default=None)
        assert (composer.best.time_ns if composer.best else None) == simulated, f"simulator, seed {seed - 1}"
        assert composer.proven[0]
        assert composer.lower_bound_ns() <= composer.cutoff_ns
