"""The exact search: its limits, its filters, and what it says of each plan."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from adversarial import adversarial_problem
from instances import PlainStage, all_pipelines, plain_closed_form, random_problem
from referee import plain_simulation, referee

from tangram.planner.frontier import FrontierSearch, Objective, SearchResult
from tangram.planner.lattice import prefix_bound
from tangram.planner.problem import FAR_NS, Chain, Problem, with_tail_step

MAX_PLANS = 1_500
OBJECTIVES = (Objective.CLOSED_FORM, Objective.LOWER_BOUND)


def problems(count: int, first: int = 0) -> list[tuple[Problem, list[list[PlainStage]]]]:
    """Problems small enough to list, with all their pipelines."""
    found = []
    for seed in itertools.count(first):
        problem = adversarial_problem(seed) if seed % 2 else random_problem(seed, max_atoms=6)
        pipelines = list(itertools.islice(all_pipelines(problem), MAX_PLANS + 1))
        if 0 < len(pipelines) <= MAX_PLANS:
            found.append((problem, pipelines))
        if len(found) == count:
            return found
    raise AssertionError("not reached")


def search(problem: Problem, objective: Objective, cutoff_ns: int = FAR_NS, **settings: Any) -> SearchResult:
    guide = prefix_bound(problem, FAR_NS)
    return FrontierSearch(problem, guide, objective, cutoff_ns, **settings).run()


def check_chain(problem: Problem, chain: Chain) -> None:
    """A chain covers the model in order, on GPUs that there are, in memory that there is."""
    pieces = problem.pieces
    assert pieces.start[chain.pieces[0]] == 0
    assert pieces.stop[chain.pieces[-1]] == problem.num_atoms
    for front, behind in itertools.pairwise(chain.pieces):
        assert pieces.stop[front] == pieces.start[behind]
    for island, capacity in enumerate(problem.capacity):
        assert sum(int(pieces.gpus[p]) for p in chain.pieces if pieces.island[p] == island) <= capacity
    assert chain.extra_in_flight[-1] == 0
    assert max(chain.extra_in_flight) <= problem.max_extra_in_flight
    window = 0
    for piece, extra, stated in reversed(
        list(zip(chain.pieces, chain.extra_in_flight, chain.windows, strict=True))
    ):
        window += 1 + extra
        assert stated == window
        assert min(window, problem.num_micro_batches) <= pieces.max_in_flight[piece]
        window += int(pieces.span[piece])


def best_of(
    problem: Problem, pipelines: list[list[PlainStage]], keep: Callable[[list[PlainStage]], bool]
) -> int | None:
    return min((plain_closed_form(problem, p) for p in pipelines if keep(p)), default=None)


def least(found: SearchResult) -> int | None:
    return found.chains[0].value_ns if found.chains else None


def test_listing_without_dominance_finds_every_pipeline_once() -> None:
    for problem, pipelines in problems(40):
        for objective in OBJECTIVES:
            found = search(problem, objective, dominance=False, max_chains=10 * MAX_PLANS)
            assert found.exhausted
            listed = {(c.pieces, c.extra_in_flight) for c in found.chains}
            assert len(listed) == len(found.chains)
            assert listed == {(tuple(s.piece for s in p), tuple(s.extra for s in p)) for p in pipelines}
            values = [c.value_ns for c in found.chains]
            assert values == sorted(values)


def test_every_chain_is_a_pipeline_with_its_own_value() -> None:
    """What the search says of a chain is the closed form of it, or no more than the simulator says."""
    for problem, pipelines in problems(40, first=100):
        plain = {(tuple(s.piece for s in p), tuple(s.extra for s in p)): p for p in pipelines}
        for objective in OBJECTIVES:
            found = search(problem, objective, dominance=False, max_chains=10 * MAX_PLANS)
            for chain in found.chains:
                check_chain(problem, chain)
                stages = plain[chain.pieces, chain.extra_in_flight]
                if objective is Objective.CLOSED_FORM:
                    assert chain.value_ns == plain_closed_form(problem, stages)
                else:
                    assert chain.value_ns <= plain_simulation(problem, stages)
                assert referee(problem, chain) == plain_simulation(problem, stages)


def test_cut_off_keeps_all_plans_below_it_and_no_other() -> None:
    for problem, _ in problems(30, first=200):
        for objective in OBJECTIVES:
            everything = search(problem, objective, dominance=False, max_chains=10 * MAX_PLANS)
            values = [c.value_ns for c in everything.chains]
            for cutoff in (values[0], values[len(values) // 2], values[-1] + 1):
                found = search(problem, objective, cutoff, dominance=False, max_chains=10 * MAX_PLANS)
                assert [c.value_ns for c in found.chains] == [v for v in values if v < cutoff]


def test_a_listing_names_the_pieces_of_all_plans() -> None:
    """Also of those that are too many to be returned, and none but theirs."""
    fewer = 0
    for problem, _ in problems(30, first=250):
        everything = search(problem, Objective.LOWER_BOUND, dominance=False, max_chains=10 * MAX_PLANS)
        assert search(problem, Objective.LOWER_BOUND).pieces is None
        values = [c.value_ns for c in everything.chains]
        for cutoff in (values[0], values[len(values) // 2], values[-1] + 1):
            found = search(problem, Objective.LOWER_BOUND, cutoff, dominance=False, max_chains=2)
            assert found.pieces is not None
            expected = {p for c in everything.chains if c.value_ns < cutoff for p in c.pieces}
            assert found.pieces.tolist() == sorted(expected)
            fewer += expected > {p for chain in found.chains for p in chain.pieces}
    assert fewer


def test_margin_keeps_more_plans_but_the_same_best() -> None:
    more = 0
    for problem, pipelines in problems(30, first=300):
        best = best_of(problem, pipelines, lambda p: True)
        strict = search(problem, Objective.CLOSED_FORM)
        wide = search(problem, Objective.CLOSED_FORM, margin_frac=0.05)
        assert least(strict) == least(wide) == best
        more += len(wide.chains) > len(strict.chains)
    assert more > 10


@pytest.mark.parametrize("beam", [1, 2, 8])
def test_beam_never_beats_the_exact_search(beam: int) -> None:
    equal = 0
    for problem, pipelines in problems(60, first=400):
        best = best_of(problem, pipelines, lambda p: True)
        found = search(problem, Objective.CLOSED_FORM, beam=beam)
        for chain in found.chains:
            check_chain(problem, chain)
            assert best is not None
            assert chain.value_ns >= best
        if found.exhausted:
            assert least(found) == best
        equal += least(found) == best
    assert equal > 20  # A beam that never finds anything good would be a strange beam.


def test_must_use_finds_the_best_plan_that_uses_an_island() -> None:
    for problem, pipelines in problems(60, first=500):
        for island in range(len(problem.capacity)):

            def uses(stages: list[PlainStage], pieces: Any = problem.pieces, island: int = island) -> bool:
                return any(pieces.island[s.piece] == island for s in stages)

            found = search(problem, Objective.CLOSED_FORM, must_use=island)
            assert least(found) == best_of(problem, pipelines, uses)
            for beam in (2, 40):
                for chain in search(problem, Objective.CLOSED_FORM, beam=beam, must_use=island).chains:
                    check_chain(problem, chain)
                    assert any(problem.pieces.island[p] == island for p in chain.pieces)


def test_number_of_stages_is_honoured() -> None:
    pinned = 0
    for problem, pipelines in problems(50, first=600):
        for count in range(1, 5):
            found = search(replace(problem, num_stages=count), Objective.CLOSED_FORM)
            expected = best_of(problem, pipelines, lambda p, count=count: len(p) == count)
            assert least(found) == expected
            pinned += expected is not None
            for chain in found.chains:
                assert len(chain.pieces) == count
            bound = search(replace(problem, num_stages=count), Objective.LOWER_BOUND)
            simulated = [plain_simulation(problem, p) for p in pipelines if len(p) == count]
            assert (least(bound) is None) == (not simulated)
            if simulated:
                assert least(bound) <= min(simulated)
    assert pinned > 50


def test_tied_embeddings_slow_both_ends_of_a_longer_pipeline() -> None:
    """The first stage waits for the pair of ends, the last one at least for the quickest partner."""
    several = 0
    for problem, pipelines in problems(40, first=650):
        rng = random.Random(len(pipelines))
        num = len(problem.edges.one_way_ns)
        tied_ns = np.array([[rng.choice([0, 90, 400]) for _ in range(num)] for _ in range(num)])
        pieces = with_tail_step(problem.pieces, problem.num_atoms, tied_ns)
        tied = replace(problem, pieces=pieces, tied_ns=tied_ns)

        def slowed(stages: list[PlainStage], *, least: bool, tied_ns: Any = tied_ns) -> list[PlainStage]:
            if len(stages) == 1:
                return stages
            first, last = stages[0], stages[-1]
            both = int(tied_ns[first.link_class, last.link_class])
            at_tail = int(tied_ns[:, last.link_class].min()) if least else both
            return [replace(first, u=first.u + both), *stages[1:-1], replace(last, u=last.u + at_tail)]

        expected = min(plain_closed_form(problem, slowed(p, least=True)) for p in pipelines)
        best = search(tied, Objective.CLOSED_FORM).chains[0]
        assert best.value_ns == expected
        several += len(best.pieces) > 1
        fastest = min(plain_simulation(problem, slowed(p, least=False)) for p in pipelines)
        assert search(tied, Objective.LOWER_BOUND).chains[0].value_ns <= fastest
    assert several > 10


def test_no_extra_warm_up_without_permission() -> None:
    for problem, _ in problems(20, first=700):
        fixed = replace(problem, max_extra_in_flight=0)
        for chain in search(fixed, Objective.CLOSED_FORM, dominance=False).chains:
            assert not any(chain.extra_in_flight)


def test_gives_up_at_its_limit_and_says_so() -> None:
    gave_up = 0
    for problem, pipelines in problems(40, first=800):
        best = best_of(problem, pipelines, lambda p: True)
        assert best is not None
        for limit in (0, 1, 5, 40):
            found = search(problem, Objective.CLOSED_FORM, label_limit=limit, dominance=False)
            gave_up += found.gave_up
            assert found.exhausted == (not found.gave_up)
            assert all(c.value_ns >= best for c in found.chains)
            if not found.gave_up:
                assert least(found) == best
    assert gave_up > 40


def test_only_so_many_chains_are_kept_the_best_ones() -> None:
    for problem, _ in problems(20, first=900):
        everything = search(problem, Objective.CLOSED_FORM, dominance=False, max_chains=10 * MAX_PLANS)
        few = search(problem, Objective.CLOSED_FORM, dominance=False, max_chains=3)
        assert few.chains == everything.chains[:3]


def test_more_gpus_or_faster_edges_never_worsen_the_closed_form_or_the_bound() -> None:
    """Both are monotone in the labels; with fixed warm-up the space of plans only grows."""
    for problem, _ in problems(40, first=1000):
        fixed = replace(problem, max_extra_in_flight=0)
        larger = replace(fixed, capacity=tuple(c + 1 for c in fixed.capacity))
        half = {name: getattr(fixed.edges, name) // 2 for name in ("one_way_ns", "round_trip_ns")}
        edges = replace(fixed.edges, occupancy_ns=fixed.edges.occupancy_ns // 2, **half)
        faster = replace(fixed, edges=edges, edges_at_best=edges)
        for objective in OBJECTIVES:
            base = least(search(fixed, objective))
            assert base is not None
            for better in (larger, faster):
                found = least(search(better, objective))
                assert found is not None
                assert found <= base
