"""The life of one rank: finds its place, refuses what cannot be, meets the others, trains."""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from tangram.errors import InputError
from tangram.plan.json_io import to_json
from tangram.plan.schema import PlanDocument
from tangram.run_options import RunOptions
from tangram.runtime.data.opening import open_tokens
from tangram.runtime.data.samples import Feed, Samples
from tangram.runtime.devices import assigned, check_cpu_precision, found_devices
from tangram.runtime.lifeline import StopSignal, hold_on
from tangram.runtime.place import Place, this_place
from tangram.runtime.refusals import check_options, check_runnable

CPU_NAME = "CPU"
"""The name of measured times on a CPU that stands for a part of the catalogue."""


def open_feed(plan: PlanDocument, options: RunOptions) -> Feed:
    """Opens the data of a run.

    Raises:
        InputError: No data is named, or it is not what the plan's model can read.
    """
    if options.data is None:
        raise InputError(
            "there is nothing to train on",
            where="--data",
            hint="name a file of tokens; tangram tokenize TEXT -o NAME makes one",
        )
    samples = Samples(open_tokens(Path(options.data)), plan.job.seq_len, plan.model.vocab_size)
    samples.read(0)
    return Feed.of(samples, plan.pipelines[0].global_batch, options.seed)


def steps_of(feed: Feed, options: RunOptions) -> int:
    """Returns the number of steps: as asked, else one epoch, rounded up."""
    return options.steps or -(-feed.samples.num_samples // feed.global_batch)


def work(
    plan_file: str, plan: PlanDocument, options: RunOptions, environ: Mapping[str, str] = os.environ
) -> int:
    """Runs this rank; returns the exit code.

    Args:
        plan_file: Its name, for messages.
        plan: The plan.
        options: How to run it.
        environ: As torchrun or the launcher set it.

    Raises:
        InputError: Plan, cluster, data or options do not go together; no process group was formed then.
    """
    hold_on(environ)
    check_runnable(plan, plan_file)
    check_options(plan, options)
    place = this_place(plan, environ, one_machine=options.cpu)
    index, gpu = _device(plan, options, place)
    feed = open_feed(plan, options)
    num_steps = steps_of(feed, options)
    from tangram.runtime.results import RunWriter
    from tangram.runtime.training import train_settings

    train_settings(options, num_steps)  # refuses what is out of range
    writer = RunWriter(plan, options, num_steps) if place.rank == 0 else None
    stop = StopSignal()
    stop.listen()
    from tangram.runtime.meeting import check_agreement, joined, this_device
    from tangram.runtime.training import Run, train

    device = this_device(index)
    with joined(place, plan.num_gpus, device) as control:
        given = {
            "plan": hashlib.sha256(to_json(plan).encode()).hexdigest()[:16],
            "number of tokens": feed.samples.tokens.num_tokens,
            "list of options": " ".join(replace(options, data=None).arguments()),
        }
        check_agreement(control, place.rank, given)
        run = Run(plan, place.rank, device, gpu, options, feed, num_steps, control)
        done = train(run, stop, writer)
    if place.rank == 0 and done < num_steps:
        print(f"stopped after step {done} of {num_steps}", file=sys.stderr)
    return 0


def _device(plan: PlanDocument, options: RunOptions, place: Place) -> tuple[int | None, str]:
    """Index of the device of this rank (None is the CPU), and the name of its measured times."""
    from tangram.cluster import catalog

    if options.cpu:
        check_cpu_precision(plan.job.precision)
        # A CPU's times never go under the name of a real part.
        own = place.slot.gpu not in catalog.load_catalog()
        return None, place.slot.gpu if own else CPU_NAME
    devices = found_devices()
    found = assigned(place.share.slots, devices, plan.job.precision, any_gpu=options.any_gpu)
    mine = found[place.local_rank]
    return mine.index, mine.part or mine.name
