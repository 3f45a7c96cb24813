"""Runs plans on emulated ranks: processes that make every pass last as long as the world says.

A pass of an atom sleeps until its time is over. A transfer is given to a thread that hands it on when the
emulated link has carried it: a link and the NICs at its ends carry one transfer at a time in each direction,
as in the simulator; the ranks of a stage send at the same time.
"""

from __future__ import annotations

import multiprocessing
import os
import queue
import tempfile
import threading
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from statistics import fmean, median
from typing import Any

from emulate_world import World, share_of_layer
from tangram.plan.schema import PlanDocument
from tangram.planner.recost import simulate_plan
from tangram.runtime.hooks import StepHooks, TaskKind
from tangram.runtime.watch.layers import AtomTimes

MOST_RANKS = 6
_SLOTS = 4096
_WAIT_S = 120


@dataclass(frozen=True)
class Ran:
    """What came of a plan.

    Attributes:
        step_s: Of every step that counts.
        loss: Of the last step.
        times: Of all atoms on all ranks.
    """

    step_s: tuple[float, ...]
    loss: float
    times: tuple[AtomTimes, ...]

    @property
    def median_s(self) -> float:
        return median(self.step_s)


class Ranks:
    """A pool of processes that run plans; a context manager."""

    def __init__(self) -> None:
        self._before: Callable[[PlanDocument], None] | None = None
        self._context = multiprocessing.get_context("forkserver")
        self._context.set_forkserver_preload(
            ["torch", "torch.distributed.nn.functional", "tangram.planner.recost"]
        )
        self._busy = self._context.Array("d", _SLOTS)
        self._pipes: list[Any] = []
        self._processes: list[Any] = []
        self._folder = tempfile.TemporaryDirectory()
        self._runs = 0

    def __enter__(self) -> Ranks:
        for rank in range(MOST_RANKS):
            ours, theirs = self._context.Pipe()
            process = self._context.Process(target=_serve, args=(rank, theirs, self._busy), daemon=True)
            process.start()
            self._pipes.append(ours)
            self._processes.append(process)
        return self

    def __exit__(self, *error: object) -> None:
        for process in self._processes:
            process.kill()
        for process in self._processes:
            process.join()
        self._folder.cleanup()

    @property
    def pids(self) -> list[int]:
        return [process.pid for process in self._processes]

    def slow_by(self, quota: Callable[[PlanDocument], None]) -> None:
        """From now on ranks do not sleep: before a plan runs, ``quota`` slows them down."""
        self._before = quota

    def run(self, plan: PlanDocument, world: World, steps: int) -> Ran:
        """Runs a plan; the first step does not count."""
        sleeps = self._before is None
        if self._before is not None:
            self._before(plan)
        size = plan.num_gpus
        self._runs += 1
        rendezvous = str(Path(self._folder.name) / f"run-{self._runs}")
        with self._busy.get_lock():
            self._busy[:] = [0.0] * _SLOTS
        for pipe in self._pipes[:size]:
            pipe.send((plan.model_dump_json(), world, steps, rendezvous, sleeps))
        answers = []
        for rank, pipe in enumerate(self._pipes[:size]):
            if not pipe.poll(_WAIT_S):
                raise RuntimeError(f"rank {rank} does not answer")
            answers.append(pipe.recv())
        failed = [answer for answer in answers if isinstance(answer, str)]
        if failed:
            raise RuntimeError("\n".join(failed))
        spans = zip(*(spans for spans, _, _ in answers), strict=True)
        step_s = tuple(max(end for _, end in step) - min(start for start, _ in step) for step in spans)
        times = tuple(one for _, _, own in answers for one in own)
        return Ran(tuple(s / 1e9 for s in step_s[1:]), answers[0][1], times)


def _serve(rank: int, pipe: Any, busy: Any) -> None:
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    import torch

    torch.set_num_threads(1)
    while True:
        try:
            text, world, steps, rendezvous, sleeps = pipe.recv()
        except EOFError:
            return
        try:
            answer = _run(
                rank, PlanDocument.model_validate_json(text), world, steps, rendezvous, sleeps, busy
            )
        except BaseException:
            answer = f"rank {rank}:\n{traceback.format_exc()}"
        pipe.send(answer)


def _run(
    rank: int, plan: PlanDocument, world: World, steps: int, rendezvous: str, sleeps: bool, busy: Any
) -> tuple[list[tuple[int, int]], float, list[AtomTimes]]:
    import torch.distributed as dist

    if sleeps:
        # Root may: a rank whose sleep is over then need not wait for other work on the machine. Threads that
        # are made from here on are of the same kind.
        with suppress(OSError, AttributeError):
            os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))
    dist.init_process_group(
        "gloo",
        store=dist.FileStore(rendezvous, plan.num_gpus),
        rank=rank,
        world_size=plan.num_gpus,
        timeout=timedelta(seconds=_WAIT_S),
    )
    try:
        return _steps(rank, plan, world, steps, sleeps, busy)
    finally:
        dist.destroy_process_group()


def _steps(
    rank: int, plan: PlanDocument, world: World, steps: int, sleeps: bool, busy: Any
) -> tuple[list[tuple[int, int]], float, list[AtomTimes]]:
    import torch
    import torch.distributed as dist

    from tangram.runtime.engine import Engine
    from tangram.runtime.settings import TrainSettings
    from tangram.runtime.watch.clock import Clock, Stamps
    from tangram.runtime.watch.units import UnitClock

    clock, stamps = Clock(Stamps()), Stamps()
    engine = Engine(plan, rank, torch.device("cpu"), TrainSettings(), clock)
    samples = engine.rows[1] - engine.rows[0]
    links = EmulatedLinks(plan, engine.stage.index, busy)
    pad = _pad(plan, world, engine.stage.ranks[0].gpu, samples) if sleeps else None
    units = UnitClock(engine.module.units, stamps, pad, links)
    clock.inner = units
    pipeline, seq_len = plan.pipelines[0], plan.job.seq_len
    tokens = torch.Generator().manual_seed(0)
    text = torch.randint(0, 257, (pipeline.global_batch, seq_len + 1), generator=tokens)
    batches = []
    for k in range(pipeline.num_micro_batches):
        rows = slice(k * pipeline.micro_batch + engine.rows[0], k * pipeline.micro_batch + engine.rows[1])
        ids = torch.arange(rows.start, rows.stop)
        batches.append(engine.micro_batch(text[rows, :-1], text[rows, 1:], ids))
    spans, loss = [], 0.0
    for step in range(steps + 1):
        dist.barrier()
        clock.begin_step(step)
        loss = engine.train_step(batches).loss
        clock.end_step(step)
        spans.append(clock.step_ns)
        if step == 0:
            units.forget()
    links.close()
    gpu = engine.stage.ranks[0].gpu
    # Under a quota a pass runs at full speed until the quota is used up: only means say how fast it is.
    found = units.times(median if sleeps else fmean)
    times = [
        AtomTimes(rank, gpu, atom, samples, one.forward_s, one.backward_s) for atom, one in found.items()
    ]
    return spans, loss, times


def _pad(plan: PlanDocument, world: World, gpu: str, samples: int) -> Callable[[int, TaskKind, int], None]:
    kind = world.kinds[gpu]

    def pad(atom: int, task: TaskKind, start_ns: int) -> None:
        share = share_of_layer(atom, plan.num_atoms)
        target_s = kind.seconds(share, samples, backward=task is TaskKind.BACKWARD)
        _sleep_until(start_ns / 1e9 + target_s)

    return pad


def _sleep_until(when_s: float) -> None:
    left = when_s - time.perf_counter()
    if left > 0:
        time.sleep(left)


class EmulatedLinks(StepHooks):
    """Holds every send back until its link has carried it.

    Args:
        plan: The plan; its predicted transfers say how long a link is busy, and what it shares.
        stage: Of this rank.
        busy: Shared by all ranks: until when each resource is busy, and when each transfer arrives.
    """

    def __init__(self, plan: PlanDocument, stage: int, busy: Any) -> None:
        self._edges = simulate_plan(plan).pipeline.edges
        self._stage, self._busy = stage, busy
        names = {name for e in self._edges for name in (*e.forward_resources, *e.backward_resources)}
        names |= {f"edge {i} {way}" for i in range(len(self._edges)) for way in ("there", "back")}
        self._number = {name: number for number, name in enumerate(sorted(names))}
        self._num_micro_batches = plan.pipelines[0].num_micro_batches
        self._step = 0
        self._senders = {kind: _Sender() for kind in (TaskKind.SEND_FORWARD, TaskKind.SEND_BACKWARD)}

    def begin_step(self, step: int) -> None:
        self._step = step

    def send(self, kind: TaskKind, micro_batch: int, post: Callable[[], None]) -> None:
        arrival_s = self._arrival_s(kind, micro_batch, time.perf_counter())
        self._senders[kind].put(arrival_s, post)

    def flush(self) -> None:
        for sender in self._senders.values():
            sender.flush()

    def close(self) -> None:
        for sender in self._senders.values():
            sender.close()

    def _arrival_s(self, kind: TaskKind, k: int, ready_s: float) -> float:
        """When a transfer arrives; the first rank of the stage to come takes the link for all of them."""
        there = kind is TaskKind.SEND_FORWARD
        index = self._stage if there else self._stage - 1
        edge = self._edges[index]
        occupancy_ns = edge.forward_occupancy_ns if there else edge.backward_occupancy_ns
        shared = edge.forward_resources if there else edge.backward_resources
        used = [self._number[name] for name in (*shared, f"edge {index} {'there' if there else 'back'}")]
        slot = len(self._number) + 2 * ((2 * index + there) * self._num_micro_batches + k)
        with self._busy.get_lock():
            if self._busy[slot] == self._step + 1:  # steps count from 1 here, and slots start at 0
                return max(self._busy[slot + 1], ready_s)
            start_s = max([ready_s, *(self._busy[number] for number in used)])
            for number in used:
                self._busy[number] = start_s + occupancy_ns / 1e9
            arrival_s = start_s + (occupancy_ns + edge.latency_ns) / 1e9
            self._busy[slot], self._busy[slot + 1] = self._step + 1, arrival_s
        return arrival_s


class _Sender:
    """A thread that posts sends when they are due, in order."""

    def __init__(self) -> None:
        self._queue: queue.Queue[tuple[float, Callable[[], None]] | None] = queue.Queue()
        self._thread = threading.Thread(target=self._work, daemon=True)
        self._thread.start()

    def put(self, when_s: float, post: Callable[[], None]) -> None:
        self._queue.put((when_s, post))

    def flush(self) -> None:
        self._queue.join()

    def close(self) -> None:
        self._queue.put(None)
        self._thread.join()

    def _work(self) -> None:
        while (entry := self._queue.get()) is not None:
            _sleep_until(entry[0])
            try:
                entry[1]()
            finally:
                self._queue.task_done()
