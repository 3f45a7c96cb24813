"""Neighbours that share a node or not: the search against every way to do so."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
from efforts import EVERYTHING
from instances import PlainStage, all_pipelines, homes, host_problem, node_problem, plain_closed_form
from referee import plain_simulation, plain_stages, referee

from tangram.planner.candidates import Candidate
from tangram.planner.compose import Composer
from tangram.planner.frontier import FrontierSearch, Objective
from tangram.planner.lattice import prefix_bound
from tangram.planner.problem import FAR_NS, Problem

MAX_PLANS = 1_500


def problems(block: int, count: int, *, tied: bool) -> list[tuple[Problem, list[list[PlainStage]]]]:
    found = []
    for seed in itertools.count(1000 * block):
        problem = node_problem(seed, tied=tied)
        pipelines = list(itertools.islice(all_pipelines(problem), MAX_PLANS + 1))
        if 0 < len(pipelines) <= MAX_PLANS:
            found.append((problem, pipelines))
        if len(found) == count:
            return found
    raise AssertionError("not reached")


def proven_optimum(problem: Problem) -> Candidate:
    """The plan that is found is the fastest of all in simulation, and is known to be."""
    composer = Composer(referee, EVERYTHING)
    composer.consider(0, problem)
    composer.settle()
    space = all_pipelines(problem, composer.pace_floors_ns[0])
    assert composer.best is not None
    assert composer.best.time_ns == min(plain_simulation(problem, p) for p in space)
    assert composer.proven[0]
    return composer.best


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("block", range(4))
def test_composition_equals_brute_force(block: int, tied: bool) -> None:
    shared = 0
    for problem, pipelines in problems(block, 25, tied=tied):
        guide = prefix_bound(problem, FAR_NS)
        best = FrontierSearch(problem, guide, Objective.CLOSED_FORM, FAR_NS).run().chains[0]
        assert best.value_ns == min(plain_closed_form(problem, p) for p in pipelines)
        best_plan = proven_optimum(problem)
        stages = plain_stages(problem, best_plan.chain)
        apart = replace(problem, same_node=None)
        shared += plain_simulation(apart, stages) > best_plan.time_ns
    assert shared > 1, "somewhere a shared node makes the difference"


@pytest.mark.parametrize("tied", [False, True])
def test_every_listed_plan_comes_once_with_its_best_way(tied: bool) -> None:
    for problem, pipelines in problems(7, 25, tied=tied):
        guide = prefix_bound(problem, FAR_NS)
        plain = {(tuple(s.piece for s in p), tuple(s.extra for s in p)): p for p in pipelines}
        for objective in Objective:
            found = FrontierSearch(
                problem, guide, objective, FAR_NS, dominance=False, max_chains=10 * MAX_PLANS
            ).run()
            assert sorted((c.pieces, c.extra_in_flight) for c in found.chains) == sorted(plain)
            for chain in found.chains:
                stages = plain[chain.pieces, chain.extra_in_flight]
                if objective is Objective.CLOSED_FORM:
                    assert chain.value_ns == plain_closed_form(problem, stages)
                else:
                    assert chain.value_ns <= plain_simulation(problem, stages)


@pytest.mark.parametrize("seeds", [(16, 50, 0, 1), (17, 45, 2, 3), (27, 24, 4, 6)])
def test_islands_of_one_node_share_its_nics(seeds: tuple[int, ...]) -> None:
    """However stages and transfers alternate: the closed form, the simulated optimum, and the bound. The
    first seed of each has pipelines whose pace the NICs of an island set.
    """
    busy = 0
    for seed in seeds:
        problem = host_problem(seed)
        pipelines = list(all_pipelines(problem))
        assert pipelines
        guide = prefix_bound(problem, FAR_NS)
        plain = {tuple((s.piece, s.extra) for s in p): p for p in pipelines}
        for objective in Objective:
            found = FrontierSearch(
                problem, guide, objective, FAR_NS, dominance=False, max_chains=len(plain)
            ).run()
            assert len(found.chains) == len(plain)
            for chain in found.chains:
                stages = plain[tuple(zip(chain.pieces, chain.extra_in_flight, strict=True))]
                if objective is Objective.CLOSED_FORM:
                    assert chain.value_ns == plain_closed_form(problem, stages)
                    busy += plain_closed_form(replace(problem, nics=None), stages) < chain.value_ns
                else:
                    assert chain.value_ns <= plain_simulation(problem, stages)
        proven_optimum(problem)
    assert busy > 20, "somewhere the NICs of an island set the pace"


def test_homes_fill_nodes_and_no_more() -> None:
    """The oracle itself: three stages of two GPUs on nodes of four cannot all share one."""
    problem = next(
        p for p, _ in problems(3, 60, tied=True) if p.same_node is not None and 4 in p.same_node.node_gpus
    )
    assert problem.same_node is not None
    island = problem.same_node.node_gpus.tolist().index(4)
    stage = PlainStage(1, 1, 0, island, 0, 0, island, 2)
    found = [tuple(nodes) for nodes in homes(problem, [stage] * 3)]
    assert (0, 0, 0) not in found
    assert {(0, 0, 1), (0, 1, 1), (0, 1, 2), (0, 1, 0)} <= set(found)
