"""The longest path of 1F1B.

Deliberate faults that these tests, and those of the engine, must catch (each was tried; repeat them by
editing the line):

* off by one in the in-flight count: ``windows`` of ``SimPipeline`` one larger or one smaller
  -> ``test_by_hand_with_a_transfer``, ``test_equals_the_naive_executor``, and of the engine
  ``test_every_task_runs_when_the_naive_executor_runs_it``, ``test_holds_no_more_than_the_window``;
* a folded transfer: ``folded`` folding although point-to-point overlaps, or not folding although it blocks
  -> ``test_by_hand_with_a_transfer``, ``test_folding_shows_in_the_time``, ``test_equals_the_naive_executor``;
* a transfer that forgets its latency, its occupancy or its queue -> ``test_by_hand_with_a_transfer``,
  ``test_serial_link_sets_the_pace``, ``test_equals_the_naive_executor``;
* a step end that is left out, or starts before the stage's last backward -> ``test_step_end_*``.
"""

from __future__ import annotations

import random
import time
from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sim_cases import pipelines, random_pipeline, uniform_pipeline
from sim_naive import naive_run

from tangram.simulate import fast
from tangram.simulate.fast import iteration_ns, iteration_ns_many
from tangram.simulate.pipeline import SimEdge, SimPipeline, SimStage


def test_by_hand_without_transfers() -> None:
    # Stage 0: F0 0-3, F1 3-6, then B0 waits for stage 1: F0 3-8, B0 8-15 -> B0 15-19, F2 19-22, B1 at
    # stage 1: F1 15-20, B1 20-27 -> 27-31; F2 at stage 1: 27-32, B2 32-39 -> B2 39-43 at stage 0, step to 50.
    pipeline = SimPipeline((SimStage(3, 4, 7, 2), SimStage(5, 7, 9, 1)), (SimEdge(),), 3)
    assert iteration_ns(pipeline) == 50


def test_by_hand_with_a_transfer() -> None:
    # One micro-batch: F0 0-10, wire 10-10+30, latency 5 -> 45; F1 45-65, B1 65-105, wire 40, latency 5 ->
    # 150; B0 -> 170.
    edge = SimEdge(5, 30, 40)
    one = SimPipeline((SimStage(10, 20, 0, 2), SimStage(20, 40, 0, 1)), (edge,), 1)
    assert iteration_ns(one) == 170
    # Two: F1 of stage 0 ends at 20, its wire waits until 40 and arrives at 75; stage 1 is busy until 105,
    # then F1 105-125, B1 125-165, wire 40 and latency 5 -> 210, B1 210-230.
    assert iteration_ns(replace(one, num_micro_batches=2)) == 230


def test_single_stage_is_a_sum() -> None:
    assert iteration_ns(SimPipeline((SimStage(3, 5, 7, 1),), (), 4)) == 4 * 8 + 7
    assert iteration_ns(SimPipeline((SimStage(3, 5, 7, 9),), (), 4)) == 4 * 8 + 7


def test_serial_link_sets_the_pace() -> None:
    pipeline = uniform_pipeline(2, 500, 1, 1, edge=SimEdge(0, 50, 0), extra=40)
    longer = replace(pipeline, num_micro_batches=600)
    assert iteration_ns(longer) - iteration_ns(pipeline) == 100 * 50


def test_latency_alone_does_not_queue() -> None:
    pipeline = uniform_pipeline(2, 500, 1, 1, edge=SimEdge(50, 0, 0), extra=80)
    longer = replace(pipeline, num_micro_batches=600)
    assert iteration_ns(longer) - iteration_ns(pipeline) == 100 * 2


def test_minimal_windows_expose_latency() -> None:
    # design: equal stages run at t + 2 x (S - 1) / S
    pipeline = uniform_pipeline(4, 400, 100, 200, edge=SimEdge(30, 0, 0))
    longer = replace(pipeline, num_micro_batches=800)
    assert iteration_ns(longer) - iteration_ns(pipeline) == 400 * (300 + 2 * 30 * 3 // 4)
    hidden = uniform_pipeline(4, 400, 100, 200, edge=SimEdge(30, 0, 0), extra=1)
    assert iteration_ns(replace(hidden, num_micro_batches=800)) - iteration_ns(hidden) == 400 * 300


def test_windows_show_in_the_time() -> None:
    """One micro-batch in flight more or less changes the time, at either stage."""
    edges = (SimEdge(40, 5, 5), SimEdge(40, 5, 5))

    def time_of(*windows: int) -> int:
        pipeline = SimPipeline(tuple(SimStage(10, 20, 0, w) for w in windows), edges, 20)
        assert iteration_ns(pipeline) == naive_run(pipeline).iteration_ns
        return iteration_ns(pipeline)

    times = [time_of(3, 2, 1), time_of(4, 2, 1), time_of(5, 3, 1), time_of(6, 3, 1)]
    assert len(set(times)) == 4
    assert times == sorted(times, reverse=True)


def test_folding_shows_in_the_time() -> None:
    overlapping = uniform_pipeline(3, 20, 100, 200, edge=SimEdge(10, 30, 30), extra=1)
    blocking = replace(overlapping, blocking_p2p=True)
    assert iteration_ns(blocking) > iteration_ns(overlapping)
    assert iteration_ns(blocking) == naive_run(blocking).iteration_ns
    assert iteration_ns(overlapping) == naive_run(overlapping).iteration_ns


def test_step_end_runs_beside_the_drain() -> None:
    pipeline = uniform_pipeline(2, 2, 10, 20)
    base = iteration_ns(pipeline)
    first, last = pipeline.stages
    assert iteration_ns(replace(pipeline, stages=(first, replace(last, step_ns=20)))) == base
    assert iteration_ns(replace(pipeline, stages=(first, replace(last, step_ns=25)))) == base + 5
    assert iteration_ns(replace(pipeline, stages=(replace(first, step_ns=25), last))) == base + 25


def test_equals_the_naive_executor() -> None:
    rng = random.Random(20)
    for _ in range(350):
        pipeline = random_pipeline(
            rng, blocking=None, low=rng.choice((0, 1)), scale=rng.choice((2, 10, 10**9))
        )
        assert iteration_ns(pipeline) == naive_run(pipeline).iteration_ns, pipeline


def test_rounds_that_repeat_are_as_if_they_were_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """Many micro-batches: cycles of one round and of several, and rounds that never repeat."""
    cycles: Counter[int] = Counter()
    put_off = fast._put_off
    period = fast._period

    def seen(rounds: int, *state: Any) -> int | None:
        found = period(rounds, *state)
        cycles[rounds] += found is not None
        return found

    monkeypatch.setattr(fast, "_period", seen)
    skips: list[int] = []

    def skipped(*state: Any) -> None:
        skips.append(state[-1])
        put_off(*state)

    monkeypatch.setattr(fast, "_put_off", skipped)
    rng = random.Random(21)
    for number in range(300):
        scale = rng.choice((2, 10, 10**9))
        pipeline = random_pipeline(rng, blocking=None, max_micro_batches=90, scale=scale)
        found = iteration_ns(pipeline)
        with monkeypatch.context() as patch:
            patch.setattr(fast, "_FIRST_LOOK", 1000)
            assert found == iteration_ns(pipeline), pipeline
        if number < 5:
            assert found == naive_run(pipeline).iteration_ns, pipeline
    assert len(skips) > 100
    assert cycles[1] > 80
    assert cycles[2] + cycles[3] + cycles[4] > 5


@settings(max_examples=60, deadline=None)
@given(pipelines(blocking=True))
def test_equals_the_naive_executor_on_adversarial_pipelines(pipeline: SimPipeline) -> None:
    assert iteration_ns(pipeline) == naive_run(pipeline).iteration_ns


@given(pipelines(max_stages=6, max_micro_batches=16, blocking=True), st.data())
def test_a_longer_task_never_shortens_the_step(pipeline: SimPipeline, data: st.DataObject) -> None:
    i = data.draw(st.integers(0, pipeline.num_stages - 1))
    name = data.draw(st.sampled_from(("forward_ns", "backward_ns", "step_ns")))
    stages, edges = list(pipeline.stages), list(pipeline.edges)
    stages[i] = replace(stages[i], **{name: getattr(stages[i], name) + data.draw(st.integers(1, 30))})
    if edges:
        e = data.draw(st.integers(0, len(edges) - 1))
        name = data.draw(st.sampled_from(("latency_ns", "forward_occupancy_ns", "backward_occupancy_ns")))
        edges[e] = replace(edges[e], **{name: getattr(edges[e], name) + data.draw(st.integers(0, 30))})
    longer = replace(pipeline, stages=tuple(stages), edges=tuple(edges))
    assert iteration_ns(longer) >= iteration_ns(pipeline)
    more = replace(pipeline, num_micro_batches=pipeline.num_micro_batches + 1)
    assert iteration_ns(more) >= iteration_ns(pipeline)


@given(pipelines(max_stages=5, blocking=True), st.integers(2, 1000))
def test_scales_with_the_unit_of_time(pipeline: SimPipeline, factor: int) -> None:
    def scaled(stage: SimStage) -> SimStage:
        return SimStage(
            stage.forward_ns * factor, stage.backward_ns * factor, stage.step_ns * factor, stage.in_flight
        )

    edges = tuple(
        SimEdge(e.latency_ns * factor, e.forward_occupancy_ns * factor, e.backward_occupancy_ns * factor)
        for e in pipeline.edges
    )
    larger = replace(pipeline, stages=tuple(map(scaled, pipeline.stages)), edges=edges)
    assert iteration_ns(larger) == factor * iteration_ns(pipeline)


def test_many_equals_one_by_one_in_order() -> None:
    rng = random.Random(5)
    plans = [
        random_pipeline(rng, max_stages=4, max_micro_batches=6, extra=0, blocking=None) for _ in range(900)
    ]
    plans += [random_pipeline(rng, scale=10**8, blocking=None) for _ in range(100)]
    rng.shuffle(plans)
    groups = {(p.num_micro_batches, p.windows) for p in plans}
    assert len(groups) < len(plans) / 4, "the cases must share shapes, or nothing is tested"
    assert iteration_ns_many(plans) == [iteration_ns(plan) for plan in plans]


def test_many_of_nothing_is_nothing() -> None:
    assert iteration_ns_many([]) == []


@pytest.mark.parametrize("num_plans", [1, 15, 16, 40])
def test_many_at_either_side_of_the_threshold(num_plans: int) -> None:
    plans = [uniform_pipeline(3, 9, 100 + n, 200, edge=SimEdge(n, 7, 9)) for n in range(num_plans)]
    assert iteration_ns_many(plans) == [iteration_ns(plan) for plan in plans]


def test_many_survives_times_beyond_64_bits() -> None:
    plans = [uniform_pipeline(2, 4, 2**61 + n, 2**62) for n in range(20)]
    assert iteration_ns_many(plans) == [(4 + 2 - 1) * (2**61 + n + 2**62) for n in range(20)]


def test_many_splits_what_would_not_fit_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    plans = [uniform_pipeline(2, 4, 10 + n, 20) for n in range(20)]
    expected = iteration_ns_many(plans)
    monkeypatch.setattr(fast, "_MAX_BATCH_ELEMENTS", 100)
    assert iteration_ns_many(plans) == expected


def test_quick_enough_to_rank_with() -> None:
    """8 stages x 256 micro-batches: aim 5 ms, usual 0.4 ms; the bound leaves room for a loaded machine."""
    pipeline = uniform_pipeline(8, 256, 10**6, 2 * 10**6, edge=SimEdge(10**4, 10**5, 10**5), extra=1)
    best = float("inf")
    for _ in range(5):
        start = time.perf_counter()
        iteration_ns(pipeline)
        best = min(best, time.perf_counter() - start)
    assert best < 0.02
