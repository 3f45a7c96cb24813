"""One rank's run: step after step, with what it measures gathered on rank 0."""

from __future__ import annotations

import resource
import socket
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from tangram.errors import UnknownNameError
from tangram.plan.schema import PlanDocument
from tangram.run_options import RunOptions
from tangram.runtime.data.samples import Feed
from tangram.runtime.engine import Engine, StepResult
from tangram.runtime.lifeline import StopSignal
from tangram.runtime.results import RunWriter
from tangram.runtime.settings import Decay, TrainSettings
from tangram.runtime.watch.clock import Clock, Event, Stamps
from tangram.runtime.watch.figures import RankFigures
from tangram.runtime.watch.layers import AtomTimes
from tangram.runtime.watch.timeline import RankEvents
from tangram.runtime.watch.units import UnitClock

FIRST_TIMED_STEP = 2
"""Steps before it (the first one) are slower: kernels are loaded, and memory is taken."""
_CLOCK_ROUNDS = 16


@dataclass(frozen=True, slots=True)
class Run:
    """What a rank needs to train.

    Attributes:
        plan: The plan.
        rank: Of this process.
        device: Where it computes.
        gpu: Under which name its measured times are kept.
        options: How to train, and what to leave behind.
        feed: The batches.
        num_steps: How many.
        control: A gloo group of all ranks, for objects.
    """

    plan: PlanDocument
    rank: int
    device: Any
    gpu: str
    options: RunOptions
    feed: Feed
    num_steps: int
    control: Any


def train_settings(options: RunOptions, num_steps: int) -> TrainSettings:
    """Returns the engine's settings.

    Raises:
        InputError: A value is out of range.
    """
    decays = [decay.value for decay in Decay]
    if options.decay not in decays:
        raise UnknownNameError("decay", options.decay, decays, where="--decay")
    return TrainSettings(
        learning_rate=options.learning_rate,
        min_learning_rate=options.min_learning_rate,
        warmup_steps=options.warmup_steps,
        total_steps=num_steps,
        decay=Decay(options.decay),
        weight_decay=options.weight_decay,
        max_grad_norm=options.max_grad_norm,
        seed=options.seed,
        virtual_stages=options.virtual_stages,
        zero_bubble=options.zero_bubble,
    )


def train(run: Run, stop: StopSignal, writer: RunWriter | None) -> int:
    """Trains; returns the number of steps that were done. All ranks call it together.

    Args:
        run: What to do.
        stop: Set by Ctrl-C; all ranks then stop after the same step.
        writer: Of rank 0; None on others.
    """
    stamps = Stamps(torch if run.device.type == "cuda" else None)
    clock = Clock(stamps)
    settings = train_settings(run.options, run.num_steps)
    engine = Engine(run.plan, run.rank, run.device, settings, clock)
    units: UnitClock | None = None
    if run.options.save_profile is not None:
        units = UnitClock(engine.module.units, stamps)
        clock.inner = units
    if run.options.init is not None:
        _load(engine, run)
    offset_ns, traced = 0, 0
    if run.options.trace is not None:
        offset_ns, traced = clock_offset_ns(run.control), min(run.options.trace_step, run.num_steps)
    done = 0
    with ExitStack() as stack:
        if writer is not None:
            stack.enter_context(writer)
        for step in range(run.num_steps):
            result = _step(run, engine, clock, step)
            events = clock.events()
            if units is not None and step + 1 < FIRST_TIMED_STEP:
                units.forget()
            count = run.plan.pipelines[0].num_micro_batches
            figures = RankFigures.of(run.rank, clock.step_ns, events, count, memory_bytes(run.device))
            traces = _rank_events(run.rank, clock, events, offset_ns) if step + 1 == traced else None
            gathered = _gathered(run, (figures, traces, stop.is_set))
            done = step + 1
            if writer is not None:
                _write(writer, run, result, gathered)
            if any(stopped for _, _, stopped in gathered):
                break
        _finish(run, engine, units, writer)
    return done


def _step(run: Run, engine: Engine, clock: Clock, step: int) -> StepResult:
    """Reads this rank's rows of every micro-batch and trains on them; reading is no part of the step."""
    pipeline = run.plan.pipelines[0]
    batch = run.feed.batch(step)
    first, last = engine.rows
    batches = []
    for k in range(pipeline.num_micro_batches):
        start = k * pipeline.micro_batch
        rows = slice(start + first, start + last)
        ids, labels = batch.rows(rows.start, rows.stop)
        batches.append(engine.micro_batch(ids, labels, batch.sample_ids[rows]))
    dist.barrier(run.control)
    clock.begin_step(step)
    result = engine.train_step(batches)
    clock.end_step(step)
    return result


def memory_bytes(device: Any) -> int:
    """Returns the peak so far: what torch allocated on a GPU; of a CPU, all that the process holds."""
    if device.type == "cuda":
        return int(torch.cuda.max_memory_allocated(device))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return int(peak) * (1 if sys.platform == "darwin" else 1024)


def clock_offset_ns(control: Any) -> int:
    """Returns what has to be added to this host's monotonic clock to have that of rank 0.

    On one host there is one clock. Between hosts, all read theirs as they leave a barrier, and the median of
    some rounds counts: that is as exact as the barrier's ends are, tens of microseconds in a data centre.
    """
    hosts: list[Any] = [None] * dist.get_world_size(control)
    dist.all_gather_object(hosts, socket.gethostname(), group=control)
    if len(set(hosts)) == 1:
        return 0
    rank, differences = dist.get_rank(control), []
    for _ in range(_CLOCK_ROUNDS):
        dist.barrier(control)
        times: list[Any] = [None] * len(hosts)
        dist.all_gather_object(times, time.perf_counter_ns(), group=control)
        differences.append(times[0] - times[rank])
    return int(sorted(differences)[_CLOCK_ROUNDS // 2])


def _rank_events(rank: int, clock: Clock, events: Sequence[Event], offset_ns: int) -> RankEvents:
    moved = tuple(
        Event(e.kind, e.micro_batch, e.start_ns + offset_ns, e.end_ns + offset_ns, e.received) for e in events
    )
    return RankEvents(rank, clock.step_ns[0] + offset_ns, moved)


Gathered = tuple[RankFigures, RankEvents | None, bool]


def _gathered(run: Run, own: Gathered) -> list[Gathered]:
    """What every rank has to tell of a step, on every rank: all have to know when to stop."""
    found: list[Any] = [None] * run.plan.num_gpus
    dist.all_gather_object(found, own, group=run.control)
    return found


def _write(writer: RunWriter, run: Run, result: StepResult, gathered: Sequence[Gathered]) -> None:
    writer.step(result, run.feed.epoch(result.step), [figures for figures, _, _ in gathered])
    traces = [events for _, events, _ in gathered if events is not None]
    if traces:
        writer.trace(traces)


def _finish(run: Run, engine: Engine, units: UnitClock | None, writer: RunWriter | None) -> None:
    """Saves what is kept at the end: measured times of layers, and weights."""
    if run.options.save_profile is not None:
        own: list[AtomTimes] = []
        if units is not None:
            samples = engine.rows[1] - engine.rows[0]
            own = [
                AtomTimes(run.rank, run.gpu, atom, samples, times.forward_s, times.backward_s)
                for atom, times in units.times().items()
            ]
        found: list[Any] = [None] * run.plan.num_gpus
        dist.all_gather_object(found, own, group=run.control)
        if writer is not None:
            writer.profile([times for rank in found for times in rank], _software(run))
    if run.options.save is not None:
        _save(engine, run)


def _software(run: Run) -> str:
    device = torch.cuda.get_device_name(run.device) if run.device.type == "cuda" else "CPU"
    return f"tangram run, torch {torch.__version__}, {device}, {run.num_steps} steps"


def _load(engine: Engine, run: Run) -> None:
    from tangram.runtime.weights import load_weights

    with engine.gathered():
        load_weights(Path(run.options.init or ""), engine.module)


def _save(engine: Engine, run: Run) -> None:
    from tangram.runtime.weights import save_weights

    with engine.gathered():
        save_weights(Path(run.options.save or ""), engine.module, run.plan, run.control)
