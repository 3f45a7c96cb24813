"""The measured timeline over the predicted one: where a step ran as predicted, the two are the same."""

from __future__ import annotations

from dataclasses import replace

import pytest
from samples import dense_plan
from watch_cases import START_NS, as_predicted

from tangram.planner.recost import simulate_plan
from tangram.runtime.hooks import TaskKind
from tangram.runtime.watch.clock import Event
from tangram.runtime.watch.timeline import RankEvents, measured_tasks, measured_trace

LABELS = ("4x FAST-40GB", "1x SLOW-16GB")


def test_measured_tasks_of_a_step_as_predicted() -> None:
    plan = dense_plan()
    expected = [(t.stage, t.kind, t.micro_batch, t.start_ns, t.end_ns) for t in simulate_plan(plan).tasks()]
    found = measured_tasks(plan, as_predicted(plan))
    assert [(t.stage, t.kind, t.micro_batch, t.start_ns, t.end_ns) for t in found] == expected


def test_a_task_lasts_from_the_first_rank_to_the_last() -> None:
    plan, k = dense_plan(), TaskKind.FORWARD
    ranks = [
        RankEvents(0, START_NS, (Event(k, 0, START_NS + 5, START_NS + 9),)),
        RankEvents(3, START_NS + 2, (Event(k, 0, START_NS + 7, START_NS + 12),)),
    ]
    (task,) = measured_tasks(plan, ranks)
    assert (task.stage, task.start_ns, task.end_ns) == (0, 5, 12)


def test_the_end_of_a_step_in_pieces() -> None:
    plan, k = dense_plan(), TaskKind.STEP
    events = (Event(k, None, 1, 3), Event(k, None, 8, 9))
    ranks = [RankEvents(0, 0, events), RankEvents(1, 0, events)]
    assert [(t.start_ns, t.end_ns) for t in measured_tasks(plan, ranks)] == [(1, 3), (8, 9)]


def test_two_timelines_in_one_trace() -> None:
    plan = dense_plan()
    trace = measured_trace(plan, simulate_plan(plan), as_predicted(plan), LABELS)
    events = trace["traceEvents"]
    names = {e["pid"]: e["args"]["name"] for e in events if e["name"] == "process_name"}
    assert names == {
        1: "stage 0: 4x FAST-40GB, predicted",
        2: "stage 1: 1x SLOW-16GB, predicted",
        3: "stage 0: 4x FAST-40GB, measured",
        4: "stage 1: 1x SLOW-16GB, measured",
    }
    order = {e["pid"]: e["args"]["sort_index"] for e in events if e["name"] == "process_sort_index"}
    assert sorted(order, key=order.__getitem__) == [1, 3, 2, 4]
    assert trace["otherData"]["measured_iteration_ns"] == trace["otherData"]["iteration_ns"]

    def slices(pids: tuple[int, ...], category: str) -> set[tuple[object, ...]]:
        shift = 2 if pids == (3, 4) else 0
        return {
            (e["name"], e["pid"] - shift, e["tid"], round(e["ts"], 3), round(e["dur"], 3))
            for e in events
            if e["ph"] == "X" and e["pid"] in pids and e["cat"] == category
        }

    for category in ("forward", "backward", "step"):
        assert slices((3, 4), category) == slices((1, 2), category)
    for category in ("send", "receive"):  # a measured transfer is drawn to its arrival
        measured = {(name, pid, tid) for name, pid, tid, *_ in slices((3, 4), category)}
        assert measured == {(name, pid, tid) for name, pid, tid, *_ in slices((1, 2), category)}
    threads = {(e["pid"], e["tid"]) for e in events if e["name"] == "thread_name"}
    assert {(e["pid"], e["tid"]) for e in events if e["ph"] == "X"} <= threads


def test_a_slow_rank_shows() -> None:
    plan = dense_plan()
    ranks = as_predicted(plan)
    late = [e if e.micro_batch != 2 else replace(e, end_ns=e.end_ns + 10**6) for e in ranks[1].events]
    ranks[1] = RankEvents(1, START_NS, tuple(late))
    trace = measured_trace(plan, simulate_plan(plan), ranks, LABELS)
    ends = {
        e["pid"]: e["ts"] + e["dur"]
        for e in trace["traceEvents"]
        if e.get("cat") and e["name"].startswith("F s0 m2")
    }
    assert ends[3] - ends[1] == pytest.approx(1000)
