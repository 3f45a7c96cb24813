"""A measured step as a trace, in the form of :mod:`tangram.simulate.trace`, laid over the predicted one.

Every stage has two processes, one below the other: what was predicted, and what ran. A measured task of a
stage starts when its first rank starts and ends when its last one ends. A transfer is drawn from the time at
which the sender had its tensor to the time at which the receiver needed and had it, so it may be longer than
its link was busy. Both timelines start at 0. No torch.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from tangram.plan.schema import PlanDocument
from tangram.runtime.hooks import TaskKind
from tangram.runtime.watch.clock import Event
from tangram.simulate.timeline import Timeline
from tangram.simulate.trace import (
    COMPUTE,
    RECEIVE_NEXT,
    RECEIVE_PREVIOUS,
    SEND_NEXT,
    SEND_PREVIOUS,
    chrome_trace,
    name_process,
    task_slice,
)

_COMPUTE = {TaskKind.FORWARD: "forward", TaskKind.BACKWARD: "backward", TaskKind.STEP: "step"}


@dataclass(frozen=True, slots=True)
class RankEvents:
    """What one rank did in the step.

    Attributes:
        rank: In the plan.
        start_ns: Start of the step.
        events: All of them, with times on one clock for all ranks.
    """

    rank: int
    start_ns: int
    events: tuple[Event, ...]


@dataclass(frozen=True, slots=True)
class MeasuredTask:
    """A task of a stage, over all its ranks.

    Attributes:
        stage: Which; of a transfer, the sender.
        kind: What it is.
        micro_batch: Which; None for the end of the step.
        start_ns, end_ns: From the start of the step on.
    """

    stage: int
    kind: TaskKind
    micro_batch: int | None
    start_ns: int
    end_ns: int


def measured_tasks(plan: PlanDocument, ranks: Sequence[RankEvents]) -> list[MeasuredTask]:
    """Returns the tasks of all stages, sorted by stage, kind, micro-batch and start."""
    zero = min(one.start_ns for one in ranks)
    stage_of = {slot.rank: stage.index for stage in plan.stages for slot in stage.ranks}
    spans: dict[tuple[int, TaskKind, int | None, int], tuple[int, int]] = {}
    for one in ranks:
        ends = 0  # the end of the step may come in several pieces
        for event in one.events:
            stage, kind, number = stage_of[one.rank], event.kind, 0
            if kind is TaskKind.STEP:
                number, ends = ends, ends + 1
            if event.received:
                stage += -1 if kind is TaskKind.SEND_FORWARD else 1
            key = (stage, kind, event.micro_batch, number)
            start, end = spans.get(key, (event.start_ns, event.end_ns))
            spans[key] = min(start, event.start_ns), max(end, event.end_ns)
    order = list(TaskKind)
    return [
        MeasuredTask(stage, kind, k, start - zero, end - zero)
        for (stage, kind, k, _), (start, end) in sorted(
            spans.items(), key=lambda item: (item[0][0], order.index(item[0][1]), item[0][2] or 0, item[1])
        )
    ]


def measured_trace(
    plan: PlanDocument, predicted: Timeline, ranks: Sequence[RankEvents], labels: Sequence[str]
) -> dict[str, Any]:
    """Returns both timelines as one JSON-ready trace.

    Args:
        plan: The plan.
        predicted: What the simulator says.
        ranks: What ran.
        labels: Per stage, what to call it besides its number.
    """
    num_stages = len(plan.stages)
    trace = chrome_trace(predicted, [f"{label}, predicted" for label in labels])
    events = [_reordered(event) for event in trace["traceEvents"]]
    for stage, label in enumerate(labels):
        name = f"stage {stage}: {label}, measured"
        events += name_process(_pid(stage, num_stages), stage, num_stages, name, order=2 * stage + 1)
    tasks = measured_tasks(plan, ranks)
    for task in tasks:
        events += _slices(task, num_stages)
    measured_ns = max(task.end_ns for task in tasks)
    other = trace["otherData"] | {"measured_iteration_ns": str(measured_ns)}
    return trace | {"traceEvents": events, "otherData": other}


def _pid(stage: int, num_stages: int) -> int:
    """Measured processes count on from the predicted ones, which are 1 to the number of stages."""
    return num_stages + stage + 1


def _reordered(event: dict[str, Any]) -> dict[str, Any]:
    """Leaves room for a measured process below every predicted one."""
    if event["name"] != "process_sort_index":
        return event
    return event | {"args": {"sort_index": 2 * event["args"]["sort_index"]}}


def _slices(task: MeasuredTask, num_stages: int) -> Iterator[dict[str, Any]]:
    pid, duration_ns = _pid(task.stage, num_stages), task.end_ns - task.start_ns
    if task.kind in _COMPUTE:
        name = f"{task.kind.value} s{task.stage}"
        name += f" m{task.micro_batch}" if task.micro_batch is not None else ""
        yield task_slice(name, _COMPUTE[task.kind], pid, COMPUTE, task.start_ns, duration_ns)
        return
    forward = task.kind is TaskKind.SEND_FORWARD
    receiver = task.stage + (1 if forward else -1)
    name = f"{'F' if forward else 'B'} s{task.stage} m{task.micro_batch} to s{receiver}"
    send, receive = (SEND_NEXT, RECEIVE_PREVIOUS) if forward else (SEND_PREVIOUS, RECEIVE_NEXT)
    yield task_slice("send " + name, "send", pid, send, task.start_ns, duration_ns)
    yield task_slice(
        "receive " + name, "receive", _pid(receiver, num_stages), receive, task.start_ns, duration_ns
    )
