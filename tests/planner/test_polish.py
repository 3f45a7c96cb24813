"""Step-by-step improvement: every neighbour is a plan of the space, and no step makes a plan slower."""

from __future__ import annotations

import itertools
import random

import pytest
from adversarial import adversarial_problem
from instances import PlainStage, all_pipelines, node_problem, random_problem
from referee import plain_simulation, referee

from tangram.planner.polish import _LOOK_TASKS, Neighbourhood, Step, polish
from tangram.planner.problem import Chain, Problem

MAX_PLANS = 1_500


def problems(first: int, count: int) -> list[tuple[Problem, dict[Step, list[PlainStage]]]]:
    """Small problems of all kinds, and all their plans."""
    kinds = (
        lambda seed: random_problem(seed, max_atoms=6),
        adversarial_problem,
        lambda seed: node_problem(seed, tied=False),
        lambda seed: node_problem(seed, tied=True),
    )
    found = []
    for seed in itertools.count(first):
        problem = kinds[seed % 4](seed)
        plans = list(itertools.islice(all_pipelines(problem), MAX_PLANS + 1))
        if 1 < len(plans) <= MAX_PLANS:
            named = {Step(tuple(s.piece for s in p), tuple(s.extra for s in p)): p for p in plans}
            found.append((problem, named))
        if len(found) == count:
            return found
    raise AssertionError("not reached")


def test_neighbours_are_plans_of_the_space() -> None:
    for problem, plans in problems(0, 24):
        around = Neighbourhood(problem, 0)
        for step in random.Random(0).sample(sorted(plans, key=str), min(6, len(plans))):
            for other in around.around(step):
                assert other in plans
                chain = around.chain(other)
                assert (chain.pieces, chain.extra_in_flight) == (other.pieces, other.extras)


def test_no_execution_beats_the_bound_of_a_neighbour() -> None:
    for problem, plans in problems(100, 24):
        around = Neighbourhood(problem, 0)
        for step, stages in random.Random(0).sample(sorted(plans.items(), key=str), min(40, len(plans))):
            assert around.quick_bound_ns(step) <= around.bound_ns(step) <= plain_simulation(problem, stages)


def test_every_change_of_one_stage_or_cut_is_a_neighbour() -> None:
    """Without limits on neighbours: other pieces for one stage, and other cuts between two, are all there."""
    for problem, plans in problems(200, 12):
        around = Neighbourhood(problem, 0)
        step = min(plans, key=str)
        neighbours = {other.pieces for other in around.around(step)}
        for other in plans:
            if any(other.extras) or len(other.pieces) != len(step.pieces):
                continue
            changed = [i for i, (a, b) in enumerate(zip(step.pieces, other.pieces, strict=True)) if a != b]
            if len(changed) == 1:
                assert other.pieces in neighbours


def test_stages_that_move_hold_what_they_must_where_they_go() -> None:
    """The fastest piece of a slice may hold too few for its new place: then a slower one goes."""
    moved = slower = 0
    for problem, plans in problems(300, 24):
        around, table = Neighbourhood(problem, 0), problem.pieces
        for step in random.Random(0).sample(sorted(plans, key=str), min(6, len(plans))):
            for pieces in around._other_orders(step):
                moved += 1
                assert Step(pieces, (0,) * len(pieces)) in plans
                for p in pieces:
                    span, portion = (int(table.start[p]), int(table.stop[p])), around._portion(p)
                    same = [other for other in around._by_slice(span) if other.portion == portion]
                    slower += same[0].piece != p
    assert moved
    assert slower


@pytest.mark.parametrize("block", range(4))
def test_polishing_reaches_the_optimum_nearly_always(block: int) -> None:
    optimal = total = 0
    for problem, plans in problems(1000 * (block + 1), 15):
        fastest = min(plain_simulation(problem, stages) for stages in plans.values())
        around = Neighbourhood(problem, 0)
        start = random.Random(block).choice(sorted(plans, key=str))
        times = {start: plain_simulation(problem, plans[start])}

        def execute(chain: Chain, problem: Problem = problem, times: dict[Step, int] = times) -> int:
            step = Step(chain.pieces, chain.extra_in_flight)
            assert step not in times, "no plan is executed twice"
            times[step] = referee(problem, chain)
            return times[step]

        polish(around, start, times[start], execute, 10**9)
        assert min(times.values()) >= fastest
        optimal += min(times.values()) == fastest
        total += 1
    assert optimal >= 0.7 * total


def test_budget_limits_what_is_executed() -> None:
    for problem, plans in problems(9000, 12):
        around, m = Neighbourhood(problem, 0), problem.num_micro_batches
        start = max(sorted(plans, key=str), key=lambda step: plain_simulation(problem, plans[step]))
        for budget in (0, 1, 20 * m):
            executed: list[Chain] = []

            def execute(chain: Chain, problem: Problem = problem, executed: list[Chain] = executed) -> int:
                executed.append(chain)
                return referee(problem, chain)

            left = polish(around, start, plain_simulation(problem, plans[start]), execute, budget)
            spent = [m * len(chain.pieces) for chain in executed]
            looked_at, rest = divmod(budget - left - sum(spent), _LOOK_TASKS)
            assert rest == 0
            assert looked_at >= len(spent) or not spent
            assert sum(spent[:-1]) < budget or not spent
