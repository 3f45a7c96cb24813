"""Executes 1F1B with links that share resources: the referee between plans.

Compute follows the static order of each stage. A transfer is *ready* when the task that makes its tensor
ends. Links and shared resources serve transfers in the order in which they become ready; those ready at the
same time by sending stage, then by micro-batch (both directions of one micro-batch never wait together: its
gradient comes after its activation has arrived). A transfer starts once it is ready and everything that it
uses is done with the transfers before it, and does not let later ones overtake. So the execution is
deterministic; and without shared resources it is the longest path of
:func:`tangram.simulate.fast.iteration_ns`. With them, as with any queue, a faster task can lengthen the
iteration.

What happens next depends on nothing but the state, relative to the time and to the micro-batch that the first
stage is at. So once a state repeats, a few micro-batches later, so does all that follows it, as long as every
stage has forwards left: what these did is written down for the next ones, a period apart, and not executed.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from tangram.simulate.pipeline import SimPipeline
from tangram.simulate.timeline import Timeline, Times

_BACKWARD, _FORWARD = 0, 1
_FIRST_LOOK = 4  # micro-batches before the first look whether the state repeats; then half as many again
_LONGEST_CYCLE = 4  # micro-batches that may repeat together


def simulate(pipeline: SimPipeline) -> Timeline:
    """Executes a pipeline and returns when everything ran."""
    run = _Run(pipeline)
    for i in range(pipeline.num_stages):
        run.advance(i)
    done, seen, at, look = run.lanes[0].starts[_BACKWARD], None, 0, _FIRST_LOOK
    while run.ready:
        run.transfer(*heapq.heappop(run.ready))
        if len(done) < look:
            continue
        if seen is None:
            seen, at = run.state(), len(done)
        elif run.state() == seen:
            run.repeat(len(done) - at)
            seen = None
        elif len(done) - at >= _LONGEST_CYCLE:
            seen = None
        look = len(done) + (len(done) // 2 if seen is None else 1)
    return Timeline(
        pipeline=pipeline,
        forward_starts_ns=_complete(lane.starts[_FORWARD] for lane in run.lanes),
        backward_starts_ns=_complete(lane.starts[_BACKWARD] for lane in run.lanes),
        send_forward_starts_ns=_complete(run.send_starts[_FORWARD]),
        send_backward_starts_ns=_complete(run.send_starts[_BACKWARD]),
        step_starts_ns=tuple(lane.free_ns for lane in run.lanes),
    )


@dataclass(slots=True)
class _Lane:
    """The compute lane of one stage; lists by direction hold one entry per micro-batch, in order."""

    order: list[tuple[int, int]]  # (direction, micro-batch)
    durations: tuple[int, int]
    inputs: tuple[list[int], list[int]]  # when each input arrives, as far as known
    starts: tuple[list[int], list[int]]
    sends: tuple[bool, bool]  # whether a direction has a neighbour to send to
    at_once: tuple[bool, bool]  # whether inputs of a direction are there from the start
    window: int
    last_pair: int  # of its tasks, where the last pair of a backward and a forward begins
    next_task: int = 0
    free_ns: int = 0
    is_sending: bool = False  # only when point-to-point blocks


class _Run:
    """The state of an execution: lanes, links, and the transfers that are ready and not yet served."""

    def __init__(self, pipeline: SimPipeline) -> None:
        self.blocking = pipeline.blocking_p2p
        self.lanes = [_lane(pipeline, i) for i in range(pipeline.num_stages)]
        # A heap of (ready, sending stage, micro-batch, direction): the order in which transfers are served.
        self.ready: list[tuple[int, int, int, int]] = []
        self.send_starts: tuple[list[list[int]], list[list[int]]] = (
            [[] for _ in pipeline.edges],
            [[] for _ in pipeline.edges],
        )
        edges = pipeline.edges
        self.occupancies = [(edge.backward_occupancy_ns, edge.forward_occupancy_ns) for edge in edges]
        self.latencies = [edge.latency_ns for edge in edges]
        self.uses, num_resources = _resources(pipeline)
        self.free_ns = [0] * num_resources

    def advance(self, i: int) -> None:
        """Runs the stage's tasks in order, as far as their inputs are known to arrive."""
        lane = self.lanes[i]
        while lane.next_task < len(lane.order) and not lane.is_sending:
            direction, k = lane.order[lane.next_task]
            inputs = lane.inputs[direction]
            if len(inputs) <= k:
                return
            start = max(lane.free_ns, inputs[k])
            end = start + lane.durations[direction]
            lane.starts[direction].append(start)
            lane.free_ns = end
            lane.next_task += 1
            if lane.sends[direction]:
                heapq.heappush(self.ready, (end, i, k, direction))
                lane.is_sending = self.blocking

    def state(self) -> tuple[object, ...]:
        """Everything that decides what happens next, relative to the first stage."""
        now, done = self.lanes[0].free_ns, len(self.lanes[0].starts[_BACKWARD])
        lanes = []
        for lane in self.lanes:
            arrived = [
                tuple(time - now for time in lane.inputs[d][len(lane.starts[d]) :])
                for d in (_BACKWARD, _FORWARD)
                if not lane.at_once[d]
            ]
            lanes.append((lane.next_task - 2 * done, lane.free_ns - now, lane.is_sending, *arrived))
        waiting = sorted((time - now, sender, k - done, d) for time, sender, k, d in self.ready)
        return (*lanes, *waiting, *(time - now for time in self.free_ns))

    def repeat(self, cycle: int) -> None:
        """Does what the last few micro-batches of every stage did for as many more as have a forward and a
        backward in every stage.
        """
        period = self.lanes[0].starts[_BACKWARD][-1] - self.lanes[0].starts[_BACKWARD][-1 - cycle]
        times = min((lane.last_pair - lane.next_task) // (2 * cycle) for lane in self.lanes)
        if times <= 0 or any(lane.next_task < lane.window + 2 * cycle for lane in self.lanes):
            return
        shift = times * period
        for lane in self.lanes:
            lane.next_task += 2 * times * cycle
            lane.free_ns += shift
            for d in (_BACKWARD, _FORWARD):
                _extend(lane.starts[d], cycle, times, period)
                if not lane.at_once[d]:
                    _extend(lane.inputs[d], cycle, times, period)
        for sent in (*self.send_starts[_BACKWARD], *self.send_starts[_FORWARD]):
            _extend(sent, cycle, times, period)
        self.free_ns = [time + shift for time in self.free_ns]
        # Adding the same to all keeps a heap a heap.
        self.ready = [(time + shift, sender, k + times * cycle, d) for time, sender, k, d in self.ready]

    def transfer(self, ready: int, sender: int, k: int, direction: int) -> None:
        """Serves one transfer: nobody can become ready before it any more."""
        edge = sender if direction == _FORWARD else sender - 1
        receiver = sender + 1 if direction == _FORWARD else sender - 1
        used = self.uses[edge][direction]
        start = max(ready, *(self.free_ns[resource] for resource in used))
        free = start + self.occupancies[edge][direction]
        arrival = free + self.latencies[edge]
        for resource in used:
            self.free_ns[resource] = free
        self.send_starts[direction][edge].append(start)
        assert len(self.lanes[receiver].inputs[direction]) == k, "transfers of a link keep their order"
        self.lanes[receiver].inputs[direction].append(arrival)
        if self.blocking:
            self.lanes[sender].free_ns = arrival
            self.lanes[sender].is_sending = False
            self.advance(sender)
        self.advance(receiver)


def _lane(pipeline: SimPipeline, i: int) -> _Lane:
    stage, m, window = pipeline.stages[i], pipeline.num_micro_batches, pipeline.windows[i]
    order = [(_FORWARD, k) for k in range(window)]
    for k in range(m):
        order.append((_BACKWARD, k))
        if window + k < m:
            order.append((_FORWARD, window + k))
    is_first, is_last = i == 0, i == pipeline.num_stages - 1
    at_once = [0] * m  # the first stage has its samples; the last has losses whenever its order has forwards
    return _Lane(
        order=order,
        durations=(stage.backward_ns, stage.forward_ns),
        inputs=(at_once if is_last else [], at_once if is_first else []),
        starts=([], []),
        sends=(not is_first, not is_last),
        at_once=(is_last, is_first),
        window=window,
        last_pair=window + 2 * (m - window) - 2,
    )


def _resources(pipeline: SimPipeline) -> tuple[list[tuple[Sequence[int], Sequence[int]]], int]:
    """Numbers the resources. Each direction of an edge is one by itself, used along with those it names."""
    numbers: dict[str | tuple[int, int], int] = {}

    def number(keys: Sequence[str | tuple[int, int]]) -> Sequence[int]:
        return tuple(dict.fromkeys(numbers.setdefault(key, len(numbers)) for key in keys))

    uses = [
        (
            number([(i, _BACKWARD), *edge.backward_resources]),
            number([(i, _FORWARD), *edge.forward_resources]),
        )
        for i, edge in enumerate(pipeline.edges)
    ]
    return uses, len(numbers)


def _extend(starts: list[int], cycle: int, times: int, period: int) -> None:
    """Repeats the last few entries, a period later each time."""
    last = starts[-cycle:]
    for number in range(1, times + 1):
        starts += [start + number * period for start in last]


def _complete(rows: Iterable[list[int]]) -> Times:
    return tuple(tuple(row) for row in rows)
