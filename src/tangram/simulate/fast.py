"""Iteration time of 1F1B by longest path, for ranking many plans. Links are serial, resources are not shared.

The order in which tasks are visited is known in advance. After the warm-up, round ``n`` goes from the last
stage to the first; stage ``i`` runs backward ``n``, then forward ``n + w_i``. The backward needs the next
stage's backward of this round. The forward needs forward ``n + w_i`` of the previous stage, which ran in
round ``n + w_i - w_(i-1)``, an earlier one since windows fall along the pipeline, or in the warm-up. So one
pass suffices, without a queue.

While every stage has forwards left, all rounds do the same. So once a few rounds have put off everything that
later ones depend on by the same time, so do the next few, and all that follow; they need not be run.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from tangram.simulate.pipeline import SimEdge, SimPipeline

IntArray = npt.NDArray[np.int64]
_Constants = tuple[int, int, int, int, list[int], Callable[[int], None], int, int, int, int]

# Fewer plans of one shape than this are as fast one by one: a numpy operation costs what 14 tasks cost in
# plain Python (measured with 4 to 16 stages and 16 to 256 micro-batches; 60 plans together are 3 to 4 times
# faster than apart).
_MIN_BATCH = 16
_MAX_BATCH_ELEMENTS = 2**23  # 64 MiB of arrival times
_FIRST_LOOK = 4  # rounds before the first look whether they repeat; then half as many again, each time
_LONGEST_CYCLE = 4  # rounds that may repeat together
_INT64_SAFE = 2**62


def iteration_ns(pipeline: SimPipeline) -> int:
    """Returns the iteration time: the end of the last step end, in nanoseconds.

    Shared resources are ignored; :func:`tangram.simulate.engine.simulate` honours them, and agrees exactly
    where there are none.
    """
    plan = pipeline.folded()
    m = plan.num_micro_batches
    windows = plan.windows
    lanes: list[int] = []  # when each stage is free
    links: list[int] = []  # when the forward direction behind each stage is free
    arrivals: list[list[int]] = [[0] * m]  # of forward tensors at each stage, and one dummy behind the last
    for stage, window, edge in zip(plan.stages, windows, (*plan.edges, SimEdge()), strict=True):
        forward, occupancy, latency = stage.forward_ns, edge.forward_occupancy_ns, edge.latency_ns
        lane = link = 0
        sent: list[int] = []
        for ready in arrivals[-1][:window]:
            lane = (lane if lane > ready else ready) + forward
            link = (link if link > lane else lane) + occupancy
            sent.append(link + latency)
        lanes.append(lane)
        links.append(link)
        arrivals.append(sent)
    lanes = _rounds(plan, windows, lanes, links, arrivals)
    return max(lane + stage.step_ns for lane, stage in zip(lanes, plan.stages, strict=True))


def _rounds(
    plan: SimPipeline, windows: Sequence[int], lanes: list[int], links: list[int], arrivals: list[list[int]]
) -> list[int]:
    """Runs the rounds after the warm-up; returns when each stage has ended its last backward."""
    back_links = [0] * plan.num_stages
    m, n, look = plan.num_micro_batches, 0, _FIRST_LOOK
    # Constants in one tuple per stage, and conditionals instead of max(), halve the time of this loop.
    constants = _constants(plan, windows, arrivals)
    before: list[int] = []
    while n < m:
        if n == look:
            before = [*lanes, *links, *back_links]
        elif n > look:
            rounds, left = n - look, (m - windows[0] - n) // (n - look)
            period = _period(rounds, before, [*lanes, *links, *back_links], windows, arrivals)
            if period is not None and left > 0:
                later = left * period
                lanes, links, back_links = (
                    [t + later for t in times] for times in (lanes, links, back_links)
                )
                _put_off(arrivals, windows, later)
                m -= left * rounds
            if period is not None or rounds == _LONGEST_CYCLE:
                look = n + n // 2
        arrival = 0
        for i, forward, backward, window, received, send, occ, latency, back_occ, back_latency in constants:
            lane = lanes[i]
            lane = (lane if lane > arrival else arrival) + backward
            link = back_links[i]
            link = (link if link > lane else lane) + back_occ
            back_links[i] = link
            arrival = link + back_latency
            k = n + window
            if k < m:
                ready = received[k]
                lane = (lane if lane > ready else ready) + forward
                link = links[i]
                link = (link if link > lane else lane) + occ
                links[i] = link
                send(link + latency)
            lanes[i] = lane
        n += 1
    return lanes


def _period(
    rounds: int,
    before: Sequence[int],
    after: Sequence[int],
    windows: Sequence[int],
    arrivals: Sequence[Sequence[int]],
) -> int | None:
    """Returns by how much some rounds have put off everything that the next ones depend on; None where not
    all of it by the same time.
    """
    period = after[0] - before[0]
    if any(b - a != period for a, b in zip(before, after, strict=True)):
        return None
    for sent, (front, behind) in zip(arrivals[1:], pairwise(windows), strict=False):
        waiting = range(len(sent) - (front - behind), len(sent))  # Those sent and not taken.
        if any(k < rounds or sent[k] - sent[k - rounds] != period for k in waiting):
            return None
    return period


def _put_off(arrivals: Sequence[list[int]], windows: Sequence[int], time_ns: int) -> None:
    """Puts off tensors that were sent and not taken."""
    for sent, (front, behind) in zip(arrivals[1:], pairwise(windows), strict=False):
        for k in range(len(sent) - (front - behind), len(sent)):
            sent[k] += time_ns


def _constants(plan: SimPipeline, windows: Sequence[int], arrivals: list[list[int]]) -> list[_Constants]:
    """Per stage from the last to the first: what a round needs to know of it and of the edges at its ends."""
    nothing = SimEdge()
    constants = []
    for i in reversed(range(plan.num_stages)):
        stage = plan.stages[i]
        behind = plan.edges[i] if i < len(plan.edges) else nothing
        before = plan.edges[i - 1] if i else nothing
        times = (stage.forward_ns, stage.backward_ns, windows[i], arrivals[i], arrivals[i + 1].append)
        links = (
            behind.forward_occupancy_ns,
            behind.latency_ns,
            before.backward_occupancy_ns,
            before.latency_ns,
        )
        constants.append((i, *times, *links))
    return constants


def iteration_ns_many(pipelines: Sequence[SimPipeline]) -> list[int]:
    """Returns the iteration time of each pipeline, in the order given.

    Plans that share the number of stages, of micro-batches and all windows are run together, one numpy
    operation for all of them; the results equal :func:`iteration_ns` exactly.
    """
    groups: dict[tuple[int, tuple[int, ...]], list[int]] = {}
    for idx, pipeline in enumerate(pipelines):
        groups.setdefault((pipeline.num_micro_batches, pipeline.windows), []).append(idx)
    times = [0] * len(pipelines)
    for members in groups.values():
        plans = [pipelines[idx].folded() for idx in members]
        found = _batch_ns(plans) if _batch_pays(plans) else [iteration_ns(plan) for plan in plans]
        for idx, time in zip(members, found, strict=True):
            times[idx] = time
    return times


def _batch_pays(plans: Sequence[SimPipeline]) -> bool:
    num_elements = len(plans) * (plans[0].num_stages + 1) * plans[0].num_micro_batches
    return (
        len(plans) >= _MIN_BATCH
        and num_elements <= _MAX_BATCH_ELEMENTS
        and all(_all_in_sequence_ns(plan) < _INT64_SAFE for plan in plans)
    )


def _all_in_sequence_ns(plan: SimPipeline) -> int:
    """No schedule is slower than one that does everything in sequence."""
    stages = sum(s.forward_ns + s.backward_ns for s in plan.stages)
    edges = sum(e.round_trip_ns for e in plan.edges)
    return plan.num_micro_batches * (stages + edges) + max(s.step_ns for s in plan.stages)


def _batch_ns(plans: Sequence[SimPipeline]) -> list[int]:
    """:func:`iteration_ns` of plans of one shape; each array holds one number per plan."""
    num_stages, m, windows = plans[0].num_stages, plans[0].num_micro_batches, plans[0].windows
    forward, backward, step = (_stage_rows(plans, name) for name in ("forward_ns", "backward_ns", "step_ns"))
    occupancy, back_occupancy, latency = (
        _edge_rows(plans, name) for name in ("forward_occupancy_ns", "backward_occupancy_ns", "latency_ns")
    )
    # Lists of rows, not matrices: indexing a matrix costs as much as adding two rows.
    lanes, links, back_links = (list(np.zeros((num_stages, len(plans)), dtype=np.int64)) for _ in range(3))
    arrivals = [list(rows) for rows in np.zeros((num_stages + 1, m, len(plans)), dtype=np.int64)]
    maximum, add = np.maximum, np.add

    def run_forward(i: int, k: int) -> None:
        lane, link = lanes[i], links[i]
        maximum(lane, arrivals[i][k], out=lane)
        add(lane, forward[i], out=lane)
        maximum(link, lane, out=link)
        add(link, occupancy[i + 1], out=link)
        add(link, latency[i + 1], out=arrivals[i + 1][k])

    for i, window in enumerate(windows):
        for k in range(window):
            run_forward(i, k)
    nothing = np.zeros(len(plans), dtype=np.int64)
    for n in range(m):
        arrival = nothing
        for i in reversed(range(num_stages)):
            lane, link = lanes[i], back_links[i]
            maximum(lane, arrival, out=lane)
            add(lane, backward[i], out=lane)
            maximum(link, lane, out=link)
            add(link, back_occupancy[i], out=link)
            arrival = link + latency[i]
            if n + windows[i] < m:
                run_forward(i, n + windows[i])
    ends: list[int] = np.max([lane + after for lane, after in zip(lanes, step, strict=True)], axis=0).tolist()
    return ends


def _stage_rows(plans: Sequence[SimPipeline], name: str) -> list[IntArray]:
    return _rows([[getattr(stage, name) for stage in plan.stages] for plan in plans])


def _edge_rows(plans: Sequence[SimPipeline], name: str) -> list[IntArray]:
    """Row ``i + 1`` is the edge behind stage ``i``, row ``i`` the one before; both outer rows are zero."""
    return _rows([[0, *(getattr(edge, name) for edge in plan.edges), 0] for plan in plans])


def _rows(columns: list[list[int]]) -> list[IntArray]:
    return list(np.array(columns, dtype=np.int64).T.copy())
