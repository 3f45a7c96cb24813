"""Closed forms against execution. A bound that is off by one window, or forgets a transfer, fails here."""

from __future__ import annotations

import math
import random
from dataclasses import replace
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sim_cases import Terms, pipelines, random_pipeline, uniform_pipeline

from tangram.simulate.engine import simulate
from tangram.simulate.fast import iteration_ns
from tangram.simulate.formulas import closed_form_ns, extra_warmup, lower_bound_ns, period_for_windows
from tangram.simulate.pipeline import SimEdge, SimPipeline, SimStage


def closed_form(pipeline: SimPipeline, period: int | Fraction) -> int:
    t = Terms.of(pipeline)
    return closed_form_ns(t.f, t.b, t.u, t.x, t.X, t.m, period)


def lower_bound(pipeline: SimPipeline) -> int:
    t = Terms.of(pipeline)
    return lower_bound_ns(t.f, t.b, t.u, t.x, t.X, t.w, t.m)


def period(pipeline: SimPipeline) -> Fraction:
    t = Terms.of(pipeline)
    return period_for_windows(t.t, t.X, t.w, t.occupancy)


def with_windows(pipeline: SimPipeline, windows: list[int]) -> SimPipeline:
    stages = tuple(replace(s, in_flight=w) for s, w in zip(pipeline.stages, windows, strict=True))
    return replace(pipeline, stages=stages)


def ruled(pipeline: SimPipeline) -> tuple[SimPipeline, int]:
    """The pipeline with windows by the local rule at the smallest period, and that period."""
    t = Terms.of(pipeline)
    target = max(t.t + t.occupancy)
    windows = [1]
    for i in reversed(range(len(t.X))):
        windows.insert(0, windows[0] + 1 + extra_warmup(t.t[i], t.X[i], target))
    return with_windows(pipeline, windows), target


def usual_pipeline(rng: random.Random, *, x: int, minimal: bool = True) -> SimPipeline:
    """Stages of 100 to 400, backward one to three times forward, transfers up to ``x`` per direction."""
    num_stages = rng.randint(1, 8)
    stages = []
    for i in range(num_stages):
        forward = rng.randint(50, 100)
        extra = 0 if minimal else 2 * (num_stages - i)
        stages.append(
            SimStage(forward, rng.randint(forward, 3 * forward), rng.randint(0, 400), num_stages - i + extra)
        )
    edges = tuple(
        SimEdge(rng.randint(0, x), rng.randint(0, x), rng.randint(0, x)) for _ in range(num_stages - 1)
    )
    return SimPipeline(tuple(stages), edges, rng.randint(1, 64))


@pytest.mark.parametrize("num_stages", [1, 2, 3, 8])
@pytest.mark.parametrize("m", [1, 2, 7, 8, 9, 64])
def test_closed_form_is_exact_on_uniform_pipelines(num_stages: int, m: int) -> None:
    pipeline = uniform_pipeline(num_stages, m, 101, 223, 57)
    expected = (num_stages + m - 1) * 324 + 57
    assert iteration_ns(pipeline) == simulate(pipeline).iteration_ns == expected
    assert closed_form(pipeline, 324) == expected
    assert lower_bound(pipeline) == expected


@pytest.mark.parametrize("extra", [1, 2])
def test_closed_form_is_exact_on_uniform_pipelines_with_hidden_latency(extra: int) -> None:
    pipeline = uniform_pipeline(4, 40, 100, 200, 50, edge=SimEdge(60, 0, 0), extra=extra)
    assert closed_form(pipeline, 300) == iteration_ns(pipeline) == 4 * 300 + 3 * 120 + 39 * 300 + 50


def test_closed_form_is_never_below_execution_with_minimal_windows() -> None:
    rng = random.Random(40)
    for _ in range(2000):
        pipeline = usual_pipeline(rng, x=0)
        t = Terms.of(pipeline)
        assert period(pipeline) == max(t.t), "without transfers the slowest stage sets the pace"
        assert closed_form(pipeline, max(t.t)) >= iteration_ns(pipeline), pipeline
    for _ in range(2000):
        pipeline = usual_pipeline(rng, x=rng.choice((5, 50, 500)))
        assert closed_form(pipeline, period(pipeline)) >= iteration_ns(pipeline), pipeline


def test_closed_form_is_never_below_execution_with_windows_by_the_rule() -> None:
    rng = random.Random(41)
    for _ in range(2000):
        pipeline, target = ruled(usual_pipeline(rng, x=rng.choice((5, 40, 120))))
        assert closed_form(pipeline, target) >= iteration_ns(pipeline), pipeline


def test_closed_form_is_close_on_usual_pipelines() -> None:
    rng = random.Random(42)
    gaps = []
    for _ in range(300):
        pipeline, target = ruled(replace(usual_pipeline(rng, x=20), num_micro_batches=64))
        gaps.append(closed_form(pipeline, target) / iteration_ns(pipeline) - 1)
    assert sum(gaps) / len(gaps) < 0.02
    assert max(gaps) < 0.08


def test_closed_form_is_no_bound_where_backward_to_forward_differs_wildly() -> None:
    """Why nothing prunes on it: stage 0 spends 4 of 5 in forwards, stage 1 in backwards."""
    f, b = (4, 1, 1), (1, 4, 1)
    pipeline = SimPipeline(
        tuple(SimStage(*fb, 0, 3 - i) for i, fb in enumerate(zip(f, b, strict=True))), (SimEdge(),) * 2, 2
    )
    assert closed_form(pipeline, 5) == 17
    assert iteration_ns(pipeline) == 18
    assert lower_bound(pipeline) <= 18


def test_closed_form_rounds_up() -> None:
    assert closed_form_ns([10], [20], [5], [], [], 4, Fraction(91, 3)) == 30 + 5 + 91
    assert closed_form_ns([10], [20], [5], [], [], 3, Fraction(91, 3)) == 30 + 5 + 61


def test_steady_period_of_windows_is_exact() -> None:
    """After the transient the schedule repeats every lcm of the cycle lengths, to the nanosecond."""
    rng = random.Random(43)
    for _ in range(60):
        pipeline = random_pipeline(rng, max_stages=4, low=1, extra=2, scale=rng.choice((5, 1000)))
        t = Terms.of(pipeline)
        step = math.lcm(*range(1, t.w[0] + 1))
        short = replace(pipeline, num_micro_batches=1500)
        long = replace(pipeline, num_micro_batches=1500 + step)
        assert iteration_ns(long) - iteration_ns(short) == period(pipeline) * step, pipeline


def test_steady_period_by_hand() -> None:
    # design: equal stages, minimal windows: t + 2 x (S - 1) / S
    assert period_for_windows([300] * 4, [60] * 3, [4, 3, 2, 1]) == 300 + Fraction(60 * 3, 4)
    assert period_for_windows([300] * 4, [60] * 3, [7, 5, 3, 1]) == 300
    assert period_for_windows([300, 100], [0], [2, 1], [310, 20]) == 310
    assert period_for_windows([7], [], [1]) == 7


def test_extra_warmup_by_hand() -> None:
    assert [extra_warmup(80, x, 100) for x in (0, 20, 21, 120, 121, 220, 221)] == [0, 0, 1, 1, 2, 2, 3]
    assert extra_warmup(100, 0, 100) == 0
    assert extra_warmup(0, 0, 5) == 0
    assert extra_warmup(80, 121, Fraction(201, 2)) == 1
    assert extra_warmup(10**18, 1, 10**18) == 1, "no rounding through floats"


@given(pipelines(max_stages=7, extra=0))
def test_extra_warmup_keeps_the_period(pipeline: SimPipeline) -> None:
    t = Terms.of(pipeline)
    if max(t.t + t.occupancy) == 0:
        return
    changed, target = ruled(pipeline)
    assert period(changed) == target


def test_one_less_than_the_rule_can_lose_the_period() -> None:
    pipeline, target = ruled(uniform_pipeline(3, 10, 100, 200, edge=SimEdge(100, 10, 10)))
    assert [s.in_flight for s in pipeline.stages] == [5, 3, 1]
    assert period(pipeline) == target
    assert period(with_windows(pipeline, [4, 3, 1])) > target
    assert period(with_windows(pipeline, [4, 2, 1])) > target


def test_lower_bound_is_never_above_execution() -> None:
    rng = random.Random(44)
    exact = 0
    for n in range(6000):
        pipeline = random_pipeline(
            rng,
            max_stages=8,
            max_micro_batches=30,
            resources=n % 4 == 0,
            blocking=None,
            scale=rng.choice((5, 1000)),
        )
        executed = simulate(pipeline).iteration_ns if n % 4 == 0 else iteration_ns(pipeline)
        bound = lower_bound(pipeline)
        assert bound <= executed, pipeline
        exact += bound == executed
    assert exact > 1000, "a bound that is never reached is not the one we mean"


@settings(max_examples=300)
@given(pipelines(max_stages=6, max_micro_batches=20, resources=True, blocking=True))
def test_lower_bound_is_never_above_execution_adversarially(pipeline: SimPipeline) -> None:
    assert lower_bound(pipeline) <= simulate(pipeline).iteration_ns


def test_lower_bound_is_close_on_usual_pipelines() -> None:
    rng = random.Random(45)
    gaps = []
    for _ in range(300):
        pipeline, _ = ruled(replace(usual_pipeline(rng, x=20), num_micro_batches=32))
        gaps.append(1 - lower_bound(pipeline) / iteration_ns(pipeline))
    assert sum(gaps) / len(gaps) < 0.02
    assert max(gaps) < 0.1


def test_lower_bound_by_hand() -> None:
    # Stage 0: 4 micro-batches of 10 + 20, and between F0 and B0 a round trip of 12 + 90 against one forward
    # of 10.
    f, b, u, w = [10, 30], [20, 60], [0, 7], [2, 1]
    assert lower_bound_ns(f, b, u, [6], [12], w, 4) == 30 + 12 + 4 * 90
    assert lower_bound_ns([100, 30], [200, 60], u, [6], [12], w, 4) == 4 * 300 + 102 - 100
    assert lower_bound_ns([100, 30], [200, 60], [5, 7], [6], [12], w, 4) == 4 * 300 + 2 + 5
    assert lower_bound_ns([3], [4], [5], [], [], [1], 6) == 47


def test_lower_bound_is_exact_for_equal_stages() -> None:
    for num_stages in (1, 2, 5, 8):
        for m in (1, num_stages, num_stages + 1, 3 * num_stages, 64):
            stages = tuple(SimStage(10, 25, 0, num_stages - i) for i in range(num_stages))
            pipeline = SimPipeline(stages, (SimEdge(),) * (num_stages - 1), m)
            bound = lower_bound(pipeline)
            assert bound <= iteration_ns(pipeline)
            if m > num_stages:
                assert bound == iteration_ns(pipeline) == (m + num_stages - 1) * 35


@given(st.integers(1, 9), st.integers(1, 40))
def test_lower_bound_counts_windows_up_to_the_micro_batches(window: int, m: int) -> None:
    pipeline = SimPipeline((SimStage(10, 20, 0, window + 1), SimStage(1, 1, 0, 1)), (SimEdge(100, 0, 0),), m)
    cut = with_windows(pipeline, [max(2, min(window + 1, m)), 1])
    assert lower_bound(pipeline) == lower_bound(cut) <= iteration_ns(pipeline)
