from __future__ import annotations

import json
import random
from collections import defaultdict
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from sim_cases import pipelines, random_pipeline, uniform_pipeline

from tangram.errors import InputError
from tangram.simulate.engine import simulate
from tangram.simulate.pipeline import SimEdge, SimPipeline
from tangram.simulate.timeline import TaskKind
from tangram.simulate.trace import chrome_trace

Event = dict[str, Any]
REQUIRED = {
    "X": {"ts", "dur", "name", "cat"},
    "C": {"ts", "args"},
    "s": {"ts", "id"},
    "f": {"ts", "id", "bp"},
    "M": {"args"},
}


def events_of(pipeline: SimPipeline, phase: str, **options: Any) -> list[Event]:
    return [e for e in chrome_trace(simulate(pipeline), **options)["traceEvents"] if e["ph"] == phase]


def ns(time_us: float) -> int:
    return round(time_us * 1000)


def check_no_overlap(events: list[Event]) -> None:
    threads: dict[tuple[int, int], list[tuple[int, int]]] = defaultdict(list)
    for event in events:
        start = ns(event["ts"])
        threads[event["pid"], event["tid"]].append((start, start + ns(event["dur"])))
    for spans in threads.values():
        spans.sort()
        assert all(a[1] <= b[0] for a, b in pairwise(spans))


@settings(deadline=None)
@given(pipelines(resources=True, blocking=True))
def test_is_valid_and_whole(pipeline: SimPipeline) -> None:
    timeline = simulate(pipeline)
    trace = chrome_trace(timeline, [f"label {i}" for i in range(pipeline.num_stages)])
    assert json.loads(json.dumps(trace, allow_nan=False)) == trace
    assert trace["displayTimeUnit"] == "ms"
    for event in trace["traceEvents"]:
        assert REQUIRED[event["ph"]] <= event.keys()
        assert event["pid"] >= 1
    slices = [e for e in trace["traceEvents"] if e["ph"] == "X"]
    check_no_overlap(slices)
    by_name = {e["name"]: e for e in slices}
    for task in timeline.tasks():
        i, k = task.stage, task.micro_batch
        name = {
            TaskKind.FORWARD: f"F s{i} m{k}",
            TaskKind.BACKWARD: f"B s{i} m{k}",
            TaskKind.STEP: f"step s{i}",
            TaskKind.SEND_FORWARD: f"send F s{i} m{k} to s{i + 1}",
            TaskKind.SEND_BACKWARD: f"send B s{i} m{k} to s{i - 1}",
        }[task.kind]
        event = by_name[name]
        assert ns(event["ts"]) == task.start_ns
        assert event["pid"] == i + 1
        if task.kind in (TaskKind.SEND_FORWARD, TaskKind.SEND_BACKWARD):
            event = by_name[name.replace("send", "receive")]
        assert ns(event["ts"] + event["dur"]) == task.end_ns


@settings(deadline=None)
@given(pipelines(max_micro_batches=14, resources=True, blocking=True))
def test_counter_reaches_the_window_and_returns_to_zero(pipeline: SimPipeline) -> None:
    counts: dict[int, list[int]] = defaultdict(list)
    times: dict[int, list[float]] = defaultdict(list)
    for event in events_of(pipeline, "C"):
        counts[event["pid"] - 1].append(event["args"]["micro-batches"])
        times[event["pid"] - 1].append(event["ts"])
    for i, stage in enumerate(pipeline.stages):
        assert max(counts[i]) == min(stage.in_flight, pipeline.num_micro_batches)
        assert min(counts[i]) == 0 == counts[i][-1]
        assert times[i] == sorted(times[i])


def test_arrows_pair_up_and_touch_slices() -> None:
    pipeline = random_pipeline(random.Random(50), max_stages=5, low=1)
    starts = {e["id"]: e for e in events_of(pipeline, "s")}
    ends = {e["id"]: e for e in events_of(pipeline, "f")}
    assert len(starts) == 2 * len(pipeline.edges) * pipeline.num_micro_batches
    assert starts.keys() == ends.keys()
    at = {(e["pid"], e["tid"], e["ts"]) for e in events_of(pipeline, "X")}
    for key, start in starts.items():
        end = ends[key]
        assert start["ts"] <= end["ts"]
        assert abs(start["pid"] - end["pid"]) == 1
        assert (start["pid"], start["tid"], start["ts"]) in at
        assert (end["pid"], end["tid"], end["ts"]) in at


def test_processes_and_threads_are_named_and_sorted() -> None:
    pipeline = uniform_pipeline(3, 2, 10, 20, edge=SimEdge(1, 2, 2))
    metadata = events_of(pipeline, "M", labels=["4x A100", "", "8x V100"])
    processes = [e["args"]["name"] for e in metadata if e["name"] == "process_name"]
    assert processes == ["stage 0: 4x A100", "stage 1", "stage 2: 8x V100"]
    assert [e["args"]["sort_index"] for e in metadata if e["name"] == "process_sort_index"] == [0, 1, 2]
    named = {(e["pid"], e["tid"]) for e in metadata if e["name"] == "thread_name"}
    assert named == {(e["pid"], e["tid"]) for e in events_of(pipeline, "X")}
    assert len(named) == 3 + 5 + 3


def test_times_are_microseconds() -> None:
    (forward,) = [e for e in events_of(uniform_pipeline(1, 1, 1500, 2500), "X") if e["name"] == "F s0 m0"]
    assert (forward["ts"], forward["dur"]) == (0.0, 1.5)


@pytest.mark.parametrize("cap", [0, 300, 1000, 5000])
def test_sampling_keeps_the_ends_and_says_so(cap: int) -> None:
    pipeline = uniform_pipeline(4, 100, 10, 20, u=5, edge=SimEdge(1, 2, 2))
    timeline = simulate(pipeline)
    trace = chrome_trace(timeline, max_events=cap)
    events = trace["traceEvents"]
    assert len(events) <= max(cap, 150)
    shown = int(trace["otherData"]["micro_batches_shown"])
    forwards = [e["name"] for e in events if e["ph"] == "X" and e["name"].startswith("F s2 ")]
    first, last = (shown + 1) // 2, shown // 2
    assert forwards == [f"F s2 m{k}" for k in (*range(first), *range(100 - last, 100))]
    check_no_overlap([e for e in events if e["ph"] == "X"])
    assert sum(e["name"].startswith("step") for e in events) == 4
    assert trace["otherData"]["micro_batches"] == "100"
    if shown < 100:
        assert trace["otherData"]["sampling"] == f"micro-batches {first} to {99 - last} are left out"
    counts = [e["args"]["micro-batches"] for e in events if e["ph"] == "C" and e["pid"] == 1]
    assert max(counts) == 4
    assert counts[-1] == 0


def test_the_cap_is_not_exceeded_and_not_wasted() -> None:
    pipeline = uniform_pipeline(4, 1000, 10, 20, edge=SimEdge(1, 2, 2))
    events = chrome_trace(simulate(pipeline), max_events=20_000)["traceEvents"]
    assert 19_900 < len(events) <= 20_000
    assert len(chrome_trace(simulate(pipeline))["traceEvents"]) > 39_000


def test_one_micro_batch_is_never_sampled() -> None:
    trace = chrome_trace(simulate(uniform_pipeline(2, 1, 10, 20)), max_events=1)
    assert trace["otherData"]["sampling"] == "every micro-batch"


def test_labels_must_match_the_stages() -> None:
    with pytest.raises(InputError, match="1 labels for 2 stages"):
        chrome_trace(simulate(uniform_pipeline(2, 1, 10, 20)), ["only one"])
