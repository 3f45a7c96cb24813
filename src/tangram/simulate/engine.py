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
    run = _executed(pipeline, keeps_times=True)
    return Timeline(
        pipeline=pipeline,
        forward_starts_ns=_complete(lane.starts[_FORWARD] for lane in run.lanes),
        backward_starts_ns=_complete(lane.starts[_BACKWARD] for lane in run.lanes),
        send_forward_starts_ns=_complete(run.send_starts[_FORWARD]),
        send_backward_starts_ns=_complete(run.send_starts[_BACKWARD]),
        step_starts_ns=tuple(lane.free_ns for lane in run.lanes),
    )


def executed_ns(pipeline: SimPipeline) -> int:
    """Executes a pipeline and returns the end of the last step end; quicker than :func:`simulate`."""
    run = _executed(pipeline, keeps_times=False)
    return max(lane.free_ns + stage.step_ns for lane, stage in zip(run.lanes, pipeline.stages, strict=True))


def _executed(pipeline: SimPipeline, *, keeps_times: bool) -> _Run:
    run = _Run(pipeline, keeps_times)
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
    return run


@dataclass(slots=True)
class _Lane:
    """The compute lane of one stage; lists by direction hold one entry per micro-batch, in order."""

    window: int
    durations: tuple[int, int]
    inputs: tuple[list[int] | None, list[int] | None]  # arrivals, as far as known; None: there from the start
    starts: tuple[list[int], list[int]]
    sends: tuple[bool, bool]  # whether a direction has a neighbour to send to
    next_task: int = 0
    free_ns: int = 0
    is_sending: bool = False  # only when point-to-point blocks


class _Run:
    """The state of an execution: lanes, links, and the transfers that are ready and not yet served.

    Where it does not keep times, what repeats is taken out of the pipeline instead of being written down.
    """

    def __init__(self, pipeline: SimPipeline, keeps_times: bool) -> None:
        self.keeps_times = keeps_times
        self.num_micro_batches = pipeline.num_micro_batches
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
        # Written for speed, as the transfer is: most of a search's time may be spent in these two.
        lane, m = self.lanes[i], self.num_micro_batches
        window, free_ns, next_task = lane.window, lane.free_ns, lane.next_task
        while next_task < 2 * m and not lane.is_sending:
            # Forwards up to the window, then backward and forward in turn, then the backwards that are left.
            behind = next_task - window
            if behind < 0:
                direction, k = _FORWARD, next_task
            elif behind >= 2 * (m - window):
                direction, k = _BACKWARD, behind - m + window
            elif behind % 2:
                direction, k = _FORWARD, window + behind // 2
            else:
                direction, k = _BACKWARD, behind // 2
            inputs = lane.inputs[direction]
            if inputs is not None:
                if len(inputs) <= k:
                    break
                if inputs[k] > free_ns:
                    free_ns = inputs[k]
            lane.starts[direction].append(free_ns)
            free_ns += lane.durations[direction]
            next_task += 1
            if lane.sends[direction]:
                heapq.heappush(self.ready, (free_ns, i, k, direction))
                lane.is_sending = self.blocking
        lane.free_ns, lane.next_task = free_ns, next_task

    def state(self) -> tuple[object, ...]:
        """Everything that decides what happens next, relative to the first stage."""
        now, done = self.lanes[0].free_ns, len(self.lanes[0].starts[_BACKWARD])
        lanes = []
        for lane in self.lanes:
            arrived = [
                tuple(time - now for time in inputs[len(starts) :])
                for inputs, starts in zip(lane.inputs, lane.starts, strict=True)
                if inputs is not None
            ]
            lanes.append((lane.next_task - 2 * done, lane.free_ns - now, lane.is_sending, *arrived))
        waiting = sorted((time - now, sender, k - done, d) for time, sender, k, d in self.ready)
        return (*lanes, *waiting, *(time - now for time in self.free_ns))

    def repeat(self, cycle: int) -> None:
        """Does what the last few micro-batches of every stage did for as many more as have a forward and a
        backward in every stage.
        """
        period = self.lanes[0].starts[_BACKWARD][-1] - self.lanes[0].starts[_BACKWARD][-1 - cycle]
        # The last pair of a lane's tasks begins at its window plus 2 (m - window) - 2.
        last = 2 * (self.num_micro_batches - 1)
        times = min((last - lane.window - lane.next_task) // (2 * cycle) for lane in self.lanes)
        if times <= 0 or any(lane.next_task < lane.window + 2 * cycle for lane in self.lanes):
            return
        shift, more = times * period, times * cycle
        for lane in self.lanes:
            lane.free_ns += shift
            for inputs, starts in zip(lane.inputs, lane.starts, strict=True):
                if inputs is not None and self.keeps_times:
                    _extend(inputs, cycle, times, period)
                elif inputs is not None:
                    inputs[len(starts) :] = [time + shift for time in inputs[len(starts) :]]
        self.free_ns = [time + shift for time in self.free_ns]
        shown = more if self.keeps_times else 0
        # Adding the same to all keeps a heap a heap.
        self.ready = [(time + shift, sender, k + shown, d) for time, sender, k, d in self.ready]
        if not self.keeps_times:
            self.num_micro_batches -= more
            return
        for lane in self.lanes:
            lane.next_task += 2 * more
            for starts in lane.starts:
                _extend(starts, cycle, times, period)
        for sent in (*self.send_starts[_BACKWARD], *self.send_starts[_FORWARD]):
            _extend(sent, cycle, times, period)

    def transfer(self, ready: int, sender: int, k: int, direction: int) -> None:
        """Serves one transfer: nobody can become ready before it any more."""
        edge, receiver = (sender, sender + 1) if direction == _FORWARD else (sender - 1, sender - 1)
        used, free_ns, start = self.uses[edge][direction], self.free_ns, ready
        for resource in used:
            if free_ns[resource] > start:
                start = free_ns[resource]
        free = start + self.occupancies[edge][direction]
        arrival = free + self.latencies[edge]
        for resource in used:
            free_ns[resource] = free
        self.send_starts[direction][edge].append(start)
        inputs = self.lanes[receiver].inputs[direction]
        assert inputs is not None
        assert len(inputs) == k, "transfers of a link keep their order"
        inputs.append(arrival)
        if self.blocking:
            self.lanes[sender].free_ns = arrival
            self.lanes[sender].is_sending = False
            self.advance(sender)
        self.advance(receiver)


def _lane(pipeline: SimPipeline, i: int) -> _Lane:
    stage = pipeline.stages[i]
    is_first, is_last = i == 0, i == pipeline.num_stages - 1
    return _Lane(
        window=pipeline.windows[i],
        durations=(stage.backward_ns, stage.forward_ns),
        # The first stage has its samples; the last has losses whenever its order has forwards.
        inputs=(None if is_last else [], None if is_first else []),
        starts=([], []),
        sends=(not is_first, not is_last),
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
