"""Timelines as Chrome trace events, which Perfetto (ui.perfetto.dev) and chrome://tracing open.

The format is the object form of the "Trace Event Format" (Google, 2016): one process per stage, with one
thread for compute and one for each direction of sending and receiving, so that no two slices of a thread
overlap. A slice on a sending thread is the time in which the transfer occupies its link; the receiving thread
shows the same, one latency later. An arrow leads from there to the task that waited for the tensor, and a
counter shows how many micro-batches the stage holds.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from tangram.errors import InputError
from tangram.simulate.timeline import TaskKind, Timeline

Event = dict[str, Any]

# Threads of a process, in the order in which they are drawn.
COMPUTE, SEND_NEXT, SEND_PREVIOUS, RECEIVE_PREVIOUS, RECEIVE_NEXT = range(1, 6)
_THREAD_NAMES = {
    COMPUTE: "compute",
    SEND_NEXT: "send activations to the next stage",
    SEND_PREVIOUS: "send gradients to the previous stage",
    RECEIVE_PREVIOUS: "receive activations from the previous stage",
    RECEIVE_NEXT: "receive gradients from the next stage",
}


def chrome_trace(
    timeline: Timeline, labels: Sequence[str] | None = None, *, max_events: int = 200_000
) -> dict[str, Any]:
    """Returns a timeline as a JSON-ready trace.

    Sampling: if all events would be more than ``max_events``, whole micro-batches are left out, the middle
    ones, where the pipeline repeats itself; as many as fit are kept, half of them from the start and half
    from the end, and at least the first and the last one. ``otherData`` says which. The end of the step and
    the counter's values stay exact.

    Args:
        timeline: What to draw.
        labels: Per stage, what to call its process besides its number.
        max_events: Cap on the number of events.

    Returns:
        ``traceEvents`` (times in microseconds, as the format wants), ``displayTimeUnit`` and ``otherData``.

    Raises:
        InputError: There is not one label per stage.
    """
    num_stages, m = timeline.pipeline.num_stages, timeline.pipeline.num_micro_batches
    if labels is not None and len(labels) != num_stages:
        raise InputError(f"{len(labels)} labels for {num_stages} stages", where="labels")
    fixed = [event for i in range(num_stages) for event in _names(i, num_stages, labels[i] if labels else "")]
    fixed += [_step(timeline, i) for i in range(num_stages)]
    # Of one micro-batch: tasks and counts at each stage, sends, receives and arrows' ends over each edge.
    num_repeated = 4 * num_stages + 8 * (num_stages - 1)
    keep = min(m, max(2, (max_events - len(fixed)) // num_repeated))
    first, last = (keep + 1) // 2, keep // 2
    kept = [*range(first), *range(m - last, m)]
    events = fixed
    for i in range(num_stages):
        events += _compute(timeline, i, kept)
        events += _in_flight(timeline, i, kept)
        events += _transfers(timeline, i, kept)
    sampling = "every micro-batch" if keep == m else f"micro-batches {first} to {m - last - 1} are left out"
    other = {
        "iteration_ns": str(timeline.iteration_ns),
        "micro_batches": str(m),
        "micro_batches_shown": str(keep),
        "sampling": sampling,
    }
    return {"traceEvents": events, "displayTimeUnit": "ms", "otherData": other}


def _pid(stage: int) -> int:
    """Processes count from 1: viewers take process 0 for the idle task."""
    return stage + 1


def _us(time_ns: int) -> float:
    return time_ns / 1000


def _names(stage: int, num_stages: int, label: str) -> Iterator[Event]:
    name = f"stage {stage}: {label}" if label else f"stage {stage}"
    return name_process(_pid(stage), stage, num_stages, name, order=stage)


def name_process(pid: int, stage: int, num_stages: int, name: str, *, order: int) -> Iterator[Event]:
    """Yields the events that name a stage's process and its threads.

    Args:
        pid: Number of the process.
        stage: Which stage it is.
        num_stages: Of the pipeline; its ends have fewer threads.
        name: Of the process.
        order: Where it is drawn among the others.
    """
    base = {"ph": "M", "pid": pid, "tid": 0}
    yield base | {"name": "process_name", "args": {"name": name}}
    yield base | {"name": "process_sort_index", "args": {"sort_index": order}}
    missing = set()
    if stage == 0:
        missing |= {SEND_PREVIOUS, RECEIVE_PREVIOUS}
    if stage == num_stages - 1:
        missing |= {SEND_NEXT, RECEIVE_NEXT}
    for tid, thread in _THREAD_NAMES.items():
        if tid not in missing:
            yield base | {"tid": tid, "name": "thread_name", "args": {"name": thread}}
            yield base | {"tid": tid, "name": "thread_sort_index", "args": {"sort_index": tid}}


def _slice(name: str, category: str, stage: int, tid: int, start_ns: int, duration_ns: int) -> Event:
    return task_slice(name, category, _pid(stage), tid, start_ns, duration_ns)


def task_slice(name: str, category: str, pid: int, tid: int, start_ns: int, duration_ns: int) -> Event:
    """Returns a task as an event: on a thread of a process, for some time."""
    return {
        "name": name,
        "cat": category,
        "ph": "X",
        "pid": pid,
        "tid": tid,
        "ts": _us(start_ns),
        "dur": _us(duration_ns),
    }


def _step(timeline: Timeline, i: int) -> Event:
    return _slice(
        f"step s{i}", "step", i, COMPUTE, timeline.step_starts_ns[i], timeline.pipeline.stages[i].step_ns
    )


def _compute(timeline: Timeline, i: int, kept: Sequence[int]) -> Iterator[Event]:
    stage = timeline.pipeline.stages[i]
    rows = (
        (TaskKind.FORWARD, "forward", timeline.forward_starts_ns[i], stage.forward_ns),
        (TaskKind.BACKWARD, "backward", timeline.backward_starts_ns[i], stage.backward_ns),
    )
    for kind, category, starts, duration in rows:
        for k in kept:
            yield _slice(f"{kind.value} s{i} m{k}", category, i, COMPUTE, starts[k], duration)


def _in_flight(timeline: Timeline, i: int, kept: Sequence[int]) -> Iterator[Event]:
    """A micro-batch is held from the start of its forward to the end of its backward."""
    shown = set(kept)
    m, window = timeline.pipeline.num_micro_batches, timeline.pipeline.windows[i]
    backward_ns = timeline.pipeline.stages[i].backward_ns
    forwards, backwards = timeline.forward_starts_ns[i], timeline.backward_starts_ns[i]
    changes = [(forwards[k], 1, k) for k in range(window)]
    for k in range(m):  # the order of 1F1B is the order of time
        changes.append((backwards[k] + backward_ns, -1, k))
        if k + window < m:
            changes.append((forwards[k + window], 1, k + window))
    held = 0
    for time_ns, change, k in changes:
        held += change
        if k in shown:
            args = {"micro-batches": held}
            yield {"name": "in flight", "ph": "C", "pid": _pid(i), "tid": 0, "ts": _us(time_ns), "args": args}


def _transfers(timeline: Timeline, i: int, kept: Sequence[int]) -> Iterator[Event]:
    """What stage ``i`` sends: a slice at either end, and an arrow to the task that needs the tensor."""
    edges = timeline.pipeline.edges
    rows = []
    if i < len(edges):
        starts, tasks = timeline.send_forward_starts_ns[i], timeline.forward_starts_ns[i + 1]
        occupancy = edges[i].forward_occupancy_ns
        rows.append(("F", i + 1, edges[i], occupancy, starts, tasks, SEND_NEXT, RECEIVE_PREVIOUS))
    if i:
        starts, tasks = timeline.send_backward_starts_ns[i - 1], timeline.backward_starts_ns[i - 1]
        occupancy = edges[i - 1].backward_occupancy_ns
        rows.append(("B", i - 1, edges[i - 1], occupancy, starts, tasks, SEND_PREVIOUS, RECEIVE_NEXT))
    for kind, receiver, edge, occupancy, starts, tasks, send, receive in rows:
        for k in kept:
            name = f"{kind} s{i} m{k} to s{receiver}"
            yield _slice("send " + name, "send", i, send, starts[k], occupancy)
            shifted = starts[k] + edge.latency_ns
            yield _slice("receive " + name, "receive", receiver, receive, shifted, occupancy)
            arrow = {"name": "transfer", "cat": "transfer", "id": f"{kind}{i}.{k}"}
            yield arrow | {"ph": "s", "pid": _pid(i), "tid": send, "ts": _us(starts[k])}
            yield arrow | {"ph": "f", "bp": "e", "pid": _pid(receiver), "tid": COMPUTE, "ts": _us(tasks[k])}
