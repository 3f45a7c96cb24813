"""Walks: legal plans, estimated as the formulas say, no slower than where they began, often the best."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
from instances import all_pipelines, random_problem
from referee import plain_simulation, plain_stages
from test_frontier import check_chain

from tangram.planner import walk
from tangram.planner.frontier import FrontierSearch, Objective, chain_of
from tangram.planner.lattice import prefix_bound
from tangram.planner.problem import FAR_NS, Chain, Problem
from tangram.planner.walk import Place, Stage, Walk
from tangram.simulate.formulas import lower_bound_ns

MAX_PLANS = 400


def any_chain(problem: Problem) -> Chain | None:
    """Some plan of a problem, not a good one on purpose: the worst of a few."""
    guide = prefix_bound(problem, FAR_NS)
    found = FrontierSearch(problem, guide, Objective.CLOSED_FORM, FAR_NS, margin_frac=1.0, max_chains=5).run()
    return found.chains[-1] if found.chains else None


def formula_ns(problem: Problem, place: Place) -> int:
    """The lower bound of a place, from its pieces."""
    pieces, edges, at = problem.pieces, problem.edges, list(place.pieces)
    chain = chain_of(pieces, place.pieces, place.extras, 0)
    forward, step = pieces.forward_ns[at], pieces.head_step_ns[at]
    between = (pieces.tail_class[at][:-1], pieces.head_class[at][1:])
    x, both, o, n = (
        column[between].tolist()
        for column in (edges.one_way_ns, edges.round_trip_ns, edges.occupancy_ns, edges.nic_ns)
    )
    backward = (pieces.time_ns[at] - forward).tolist()
    m = problem.num_micro_batches
    return lower_bound_ns(forward.tolist(), backward, step.tolist(), x, both, chain.windows, m, o, n)


def begun(seeds: int) -> Iterator[tuple[int, Problem, Walk, Place]]:
    """Problems that have plans, a walk over them, and where it begins."""
    for seed in range(seeds):
        problem = random_problem(seed, max_atoms=7)
        chain = any_chain(problem)
        if chain is None:
            continue
        around = Walk(problem, FAR_NS // 2)
        first = around.start(chain)
        assert first is not None
        yield seed, problem, around, first


def test_walks_lead_to_legal_plans_that_are_better() -> None:
    walked = improved = 0
    for _, problem, around, first in begun(60):
        assert first.time_ns >= formula_ns(problem, first)
        better = around.go(first, 400)
        times = [around.judged(first).time_ns, *(place.time_ns for place in better)]
        assert times == sorted(times, reverse=True)
        walked += 1
        improved += len(better) > 0
        for place in better:
            check_chain(problem, around.chain(place))
            assert place.time_ns >= formula_ns(problem, place)
    assert walked > 40
    assert improved > 20


def test_estimates_are_nearer_to_the_simulator_than_the_lower_bound() -> None:
    """Windows of plain 1F1B make stages wait for each other's links; the lower bound does not see it."""
    off, bound_off, slower = [], [], 0
    for _, problem, around, first in begun(300):
        if problem.num_micro_batches < 16:
            continue
        simulated = plain_simulation(problem, plain_stages(problem, around.chain(first)))
        formula = formula_ns(problem, first)
        off.append(abs(first.time_ns / simulated - 1))
        bound_off.append(1 - formula / simulated)
        slower += first.time_ns > formula
    assert len(off) > 60
    assert slower > 5
    assert np.mean(off) < 0.5 * np.mean(bound_off)
    assert max(off) < 0.06


def test_walks_often_end_at_the_best_plan_there_is() -> None:
    known = best = 0
    for seed in range(60):
        problem = random_problem(seed, max_atoms=5, transfers=0.0)
        plans = list(itertools.islice(all_pipelines(problem), MAX_PLANS + 1))
        chain = any_chain(problem)
        if chain is None or not 1 < len(plans) <= MAX_PLANS:
            continue
        fastest = min(plain_simulation(problem, plan) for plan in plans)
        around = Walk(problem, FAR_NS // 2)
        first = around.start(chain)
        assert first is not None
        place = (around.go(first, 1500) or [around.judged(first)])[-1]
        found = plain_simulation(problem, plain_stages(problem, around.chain(place)))
        assert found >= fastest
        known += 1
        best += found == fastest
    assert known > 25
    assert best > 0.65 * known  # the quickest option of a stage may have a longer step end


def test_a_judged_walk_asks_the_referee_and_ends_at_what_it_likes_best() -> None:
    known = best = 0
    for seed in range(60):
        problem = random_problem(seed, max_atoms=5)
        plans = list(itertools.islice(all_pipelines(problem), MAX_PLANS + 1))
        chain = any_chain(problem)
        if chain is None or not 1 < len(plans) <= MAX_PLANS:
            continue
        judged: list[int] = []

        def referee(plan: Chain, problem: Problem = problem, judged: list[int] = judged) -> int:
            judged.append(plain_simulation(problem, plain_stages(problem, plan)))
            return judged[-1]

        around = Walk(problem, FAR_NS // 2, referee)
        first = around.start(chain)
        assert first is not None
        better = around.go(first, 2_000, judgements=150)
        assert len(judged) <= 151
        times = [judged[0], *(place.time_ns for place in better)]
        assert times == sorted(set(times), reverse=True)
        assert times[-1] == min(judged)
        fastest = min(plain_simulation(problem, plan) for plan in plans)
        known += 1
        best += times[-1] == fastest
    assert known > 25
    assert best > 0.65 * known  # the quickest option of a stage may have a longer step end


def test_a_walk_is_the_same_every_time_and_another_with_another_seed() -> None:
    problem = next(p for seed in range(100) if (p := random_problem(seed)).num_atoms > 6)
    chain = any_chain(problem)
    assert chain is not None
    around = Walk(problem, FAR_NS // 2)
    first = around.start(chain)
    assert first is not None
    assert around.go(first, 300) == Walk(problem, FAR_NS // 2).go(first, 300)
    assert len({walk.Draws(seed).share() for seed in range(50)}) == 50
    many = walk.Draws(3)
    shares = np.array([many.share() for _ in range(4000)])
    assert shares.min() > 0
    assert shares.max() < 1
    assert abs(shares.mean() - 0.5) < 0.02
    assert set(np.unique([many.below(5) for _ in range(200)])) == set(range(5))


def test_what_is_known_of_a_plan_nearby_changes_nothing() -> None:
    same = refused = 0
    for seed, problem, around, at in begun(80):
        alone, draws = Walk(problem, FAR_NS // 2), walk.Draws(seed)
        for _ in range(200):
            stages = around._moved(list(at.stages), draws, gpus_too=seed % 2 == 1)
            if stages is None or not walk._in_order(stages, problem.num_atoms):
                continue
            limit = int(at.time_ns * (0.8 + 0.4 * draws.share()))
            found, known = around.place(tuple(stages), limit, at), alone.place(tuple(stages), limit)
            assert found == known
            same, refused = same + (found is not None), refused + (found is None)
            at = found or at
    assert same > 500
    assert refused > 500


def test_what_is_no_plan_is_refused() -> None:
    problem = random_problem(3, max_atoms=5)
    chain = any_chain(problem)
    assert chain is not None
    around = Walk(problem, FAR_NS // 2)
    first = around.start(chain)
    assert first is not None
    assert around.place(first.stages, first.time_ns) is None
    assert around.place(first.stages, first.time_ns + 1) == first
    stage = first.stages[0]
    too_many = Stage(stage.stop, stage.island, problem.capacity[stage.island] + 1, stage.extra)
    assert around.place((too_many, *first.stages[1:])) is None
    pinned = replace(problem, num_stages=len(first.stages) + 1)
    assert Walk(pinned, FAR_NS // 2).place(first.stages) is None
