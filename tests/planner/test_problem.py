"""Pieces: what the search knows of a run of stages equals what its stages say one by one."""

from __future__ import annotations

import random
from dataclasses import fields

import numpy as np
import pytest
from referee import executed_ns, referee
from run_chains import Written, problem_of_runs, random_edges, random_stages, written_out

from tangram.planner.frontier import FrontierSearch, Objective
from tangram.planner.lattice import prefix_bound
from tangram.planner.problem import (
    FAR_NS,
    Chain,
    Edges,
    Pieces,
    Problem,
    StageTimes,
    run_piece,
    single_stage_pieces,
    with_tail_step,
)
from tangram.simulate.formulas import lower_bound_ns


def only_chain(problem: Problem, objective: Objective) -> Chain:
    chains = FrontierSearch(problem, prefix_bound(problem, FAR_NS), objective, FAR_NS).run().chains
    assert len(chains) == 1
    return chains[0]


def formula_bound(plain: Written) -> int:
    return lower_bound_ns(plain.f, plain.b, plain.u, plain.x, plain.X, plain.w, plain.m, plain.o, plain.n)


def one_piece(stages: tuple[StageTimes, ...], m: int) -> Pieces:
    return run_piece(
        start=0,
        stop=1,
        island=0,
        gpus=1,
        head_class=0,
        tail_class=0,
        max_in_flight=99,
        stages=stages,
        num_micro_batches=m,
        run=0,
        payload=0,
    )


@pytest.mark.parametrize("seed", range(200))
def test_constants_of_a_run_are_the_sums_over_its_stages(seed: int) -> None:
    rng = random.Random(seed)
    stages, m = random_stages(rng, rng.randint(1, 4)), rng.choice([1, 2, 7, 30])
    piece = one_piece(stages, m)
    t = [s.forward_ns + s.backward_ns for s in stages]
    both = [t_ + s.round_trip_ns for t_, s in zip(t, stages, strict=True)]
    there = [s.forward_ns + s.one_way_ns for s in stages]
    each = range(len(stages))
    assert piece.time_ns[0] == sum(both)
    assert piece.forward_ns[0] == sum(there)
    assert piece.occupied_ns[0] == max(sum(both[:j]) + m * t[j] for j in each)
    assert piece.step_fill_ns[0] == max(sum(there[:j]) + sum(both[j:]) + stages[j].step_ns for j in each)
    assert piece.period_ns[0] == max(
        max(
            t[j],
            stages[j].occupancy_ns,
            -(-both[j] // (1 + stages[j].extra_in_flight)),
            (stages[j - 1].nic_ns if j else 0) + stages[j].nic_ns,
        )
        for j in each
    )
    assert piece.head_nic_ns[0] == stages[0].nic_ns
    assert piece.tail_nic_ns[0] == (stages[-2].nic_ns if len(stages) > 1 else 0)
    assert piece.span[0] == sum(1 + s.extra_in_flight for s in stages[:-1])
    assert piece.num_stages[0] == len(stages)
    assert piece.tail_time_ns[0] == t[-1]
    assert piece.tail_forward_ns[0] == stages[-1].forward_ns
    assert piece.head_step_ns[0] == stages[0].step_ns


@pytest.mark.parametrize("seed", range(150))
def test_closed_form_of_runs_equals_that_of_their_stages(seed: int) -> None:
    rng = random.Random(1000 + seed)
    runs = [random_stages(rng, rng.randint(1, 3)) for _ in range(rng.randint(1, 4))]
    problem = problem_of_runs(runs, rng, random_edges(rng), rng.choice([1, 2, 3, 8, 40]), rng.choice([0, 2]))
    guide = prefix_bound(problem, FAR_NS)
    chains = FrontierSearch(problem, guide, Objective.CLOSED_FORM, FAR_NS, dominance=False).run().chains
    assert chains
    for chain in chains:
        plain = written_out(problem, chain.pieces, chain.extra_in_flight)
        assert chain.value_ns == plain.closed_form()
        windows = [plain.w[i] for i in np.cumsum([len(run) for run in runs]) - 1]
        assert list(chain.windows) == windows
        assert referee(problem, chain) == executed_ns(plain.pipeline())


@pytest.mark.parametrize("seed", range(150))
def test_lower_bound_of_runs_is_below_their_stages(seed: int) -> None:
    """The bound of a run drops the step ends of its inner stages and the idle time in front of its tail, so
    it may be below the formula; for pieces of one stage it is the formula.
    """
    rng = random.Random(2000 + seed)
    single = seed % 2 == 0
    runs = [random_stages(rng, 1 if single else rng.randint(1, 3)) for _ in range(rng.randint(1, 4))]
    problem = problem_of_runs(runs, rng, random_edges(rng), rng.choice([1, 2, 3, 8, 40]))
    chain = only_chain(problem, Objective.LOWER_BOUND)
    plain = written_out(problem, chain.pieces, chain.extra_in_flight)
    assert chain.value_ns <= executed_ns(plain.pipeline())
    if single:
        assert chain.value_ns == formula_bound(plain)
    else:
        assert chain.value_ns <= formula_bound(plain)


def test_pieces_of_one_stage_equal_runs_of_one_stage() -> None:
    """Two ways to say the same thing."""
    rng = random.Random(5)
    m = 6
    for _ in range(50):
        (stage,) = random_stages(rng, 1)
        one = np.ones(1, dtype=np.int64)
        table = single_stage_pieces(
            start=0 * one,
            stop=one,
            island=0,
            gpus=1,
            link_class=0,
            max_in_flight=99 * one,
            forward_ns=stage.forward_ns * one,
            backward_ns=stage.backward_ns * one,
            step_ns=stage.step_ns * one,
            num_micro_batches=m,
            payload=0 * one,
        )
        run = one_piece((stage,), m)
        for column in fields(Pieces):
            if column.name != "run":
                assert getattr(table, column.name).tolist() == getattr(run, column.name).tolist(), column.name


def test_stages_of_a_piece() -> None:
    rng = random.Random(6)
    runs = [random_stages(rng, count) for count in (1, 3, 2)]
    problem = problem_of_runs(runs, rng, random_edges(rng), 4)
    assert [problem.stages_of(piece) for piece in range(3)] == runs
    alone = Problem(
        1, (1,), 4, problem.pieces.take(np.array([0])), problem.edges, problem.edges, 0, runs=(runs[0],)
    )
    assert alone.stages_of(0) == runs[0]


def test_taking_and_joining_pieces() -> None:
    rng = random.Random(7)
    problem = problem_of_runs([random_stages(rng, 2) for _ in range(5)], rng, random_edges(rng), 4)
    halves = [problem.pieces.take(np.array(idx)) for idx in ([0, 1, 2], [3, 4])]
    joined = Pieces.concatenate(halves)
    assert len(joined) == 5
    for column in fields(Pieces):
        assert getattr(joined, column.name).tolist() == getattr(problem.pieces, column.name).tolist()


def test_tail_step_goes_to_single_stages_that_end_a_longer_pipeline() -> None:
    """A stage that holds both ends of the model keeps nothing equal; runs are left as they are."""
    rng = random.Random(8)
    stages = random_stages(rng, 1)
    start, stop = np.array([0, 0, 1, 2]), np.array([1, 3, 2, 3])
    column = np.ones(4, dtype=np.int64)
    table = single_stage_pieces(
        start=start,
        stop=stop,
        island=0,
        gpus=1,
        link_class=1,
        max_in_flight=column,
        forward_ns=stages[0].forward_ns * column,
        backward_ns=stages[0].backward_ns * column,
        step_ns=7 * column,
        num_micro_batches=4,
        payload=column,
    )
    tied_ns = np.array([[900, 500, 900], [900, 100, 900], [900, 300, 900]])
    found = with_tail_step(table, 3, tied_ns)
    assert (found.head_step_ns - table.head_step_ns).tolist() == [0, 0, 0, 100]
    assert (found.step_fill_ns - table.step_fill_ns).tolist() == [0, 0, 0, 100]
    run = run_piece(
        start=1,
        stop=3,
        island=0,
        gpus=1,
        head_class=1,
        tail_class=1,
        max_in_flight=9,
        stages=random_stages(rng, 2),
        num_micro_batches=4,
        run=0,
        payload=0,
    )
    assert with_tail_step(run, 3, tied_ns).step_fill_ns.tolist() == run.step_fill_ns.tolist()


@pytest.mark.parametrize("seed", range(50))
def test_a_faster_stage_has_every_window_of_a_slower_one(seed: int) -> None:
    """Also where more is known of what is possible: a lower pace floor allows no fewer."""
    rng = random.Random(f"windows {seed}")
    times = sorted(rng.sample(range(1, 400), 12))
    one_way = rng.randint(0, 150)
    edge = np.array([[one_way]])
    edges = Edges(edge, 2 * edge, edge * rng.randint(0, 100) // 100, 0 * edge)
    zero, ones = np.zeros(len(times), dtype=np.int64), np.ones(len(times), dtype=np.int64)
    pieces = single_stage_pieces(
        start=zero,
        stop=ones,
        island=0,
        gpus=1,
        link_class=0,
        max_in_flight=99 * ones,
        forward_ns=np.array(times) // 3,
        backward_ns=np.array(times) - np.array(times) // 3,
        step_ns=zero,
        num_micro_batches=8,
        payload=zero,
    )
    problem = Problem(1, (1,), 8, pieces, edges, edges, 2)
    for extra in (1, 2):
        before = np.ones(len(times), dtype=np.bool_)
        for floor in (0, 40, 90, 200, 500):
            helps = problem.extra_helps(np.arange(len(times)), 0, extra, floor)
            assert (helps[:-1] >= helps[1:]).all()  # Times ascend.
            assert (before >= helps).all()
            before = helps


@pytest.mark.parametrize("seed", range(100))
def test_the_bound_falls_with_no_time_of_a_stage(seed: int) -> None:
    """So a faster option may stand for a slower one. Forward and backward time count each by itself: of two
    options of equal sum, the one with the shorter forward time may have the higher bound.
    """
    rng = random.Random(f"monotone {seed}")
    stages, m = random_stages(rng, rng.randint(2, 5)), rng.choice([1, 2, 5, 9, 30])
    extras = [rng.randint(0, 2) for _ in stages[1:]]
    windows = [1]
    for extra in reversed(extras):
        windows.append(windows[-1] + 1 + extra)

    def bound(f: list[int], b: list[int], u: list[int]) -> int:
        x, big_x, o, n = (
            [getattr(s, name) for s in stages[:-1]]
            for name in ("one_way_ns", "round_trip_ns", "occupancy_ns", "nic_ns")
        )
        return lower_bound_ns(f, b, u, x, big_x, windows[::-1], m, o, n)

    times = [[s.forward_ns for s in stages], [s.backward_ns for s in stages], [s.step_ns for s in stages]]
    for place in range(len(stages)):
        for which in range(3):
            slower = [list(column) for column in times]
            slower[which][place] += rng.choice([1, 7, 60])
            assert bound(*slower) >= bound(*times)
