"""One profiling run: layers on every kind of GPU there is, then the links between all processes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from tangram.errors import InputError
from tangram.profiler.collectives import LinkNames, check_sizes, default_sizes, time_collectives
from tangram.profiler.device import Device
from tangram.profiler.groups import rank_groups
from tangram.profiler.launch import Process, all_ranks, first_of_kind, joined
from tangram.profiler.request import LayerRequest
from tangram.profiler.results import Profile, Skipped, TimedLayer
from tangram.profiler.sweep import time_layers
from tangram.profiles.records import Record


@dataclass(frozen=True, slots=True)
class CollectiveRequest:
    """Which messages to time.

    Attributes:
        sizes: In bytes; empty for the usual ones.
        repeats: Runs that count.
        links: What the links are called.
    """

    sizes: tuple[int, ...] = ()
    repeats: int = 5
    links: LinkNames = field(default_factory=LinkNames)


def check_partners(process: Process) -> None:
    """Makes sure that there is somebody to talk to.

    Raises:
        InputError: There is one process only.
    """
    if process.world_size == 1:
        raise InputError(
            "one process has nobody to talk to",
            where="--collectives",
            hint="torchrun --nproc-per-node=gpu --no-python tangram profile ... --collectives",
        )


def run_profile(
    process: Process,
    device: Device,
    layers: LayerRequest,
    collectives: CollectiveRequest | None,
    stack: str,
    progress: Callable[[str], None] = lambda text: None,
    keep: Callable[[Sequence[Record]], None] = lambda records: None,
) -> Profile:
    """Profiles; every process of a run must call this, and all get the same answer.

    Args:
        process: This one.
        device: Its device.
        layers: Which layers; with no pieces, none.
        collectives: Which messages; None for none.
        stack: The software stack that the layers stand for.
        progress: Is told what comes next.
        keep: Is given records, some of them twice, as soon as this process knows them.

    Raises:
        InputError: Collectives are asked for, and no two processes are on GPUs of one kind, or they cannot
            talk to each other.
    """
    if collectives is not None:
        check_partners(process)
    with joined(process, device):
        ranks = all_ranks(process, device)
        nothing: tuple[tuple[TimedLayer, ...], tuple[Skipped, ...]] = ((), ())
        found = first_of_kind(
            process,
            ranks,
            lambda: time_layers(layers, device, stack, progress, lambda record: keep([record])),
            nothing,
        )
        profile = Profile(
            device=device.words,
            layers=tuple(timed for timeds, _ in found for timed in timeds),
            skipped=tuple(one for _, skips in found for one in skips),
        )
        keep(profile.records)
        if collectives is None:
            return profile
        groups = rank_groups(ranks)
        if not groups:
            raise InputError("no two processes are on GPUs of one kind", where="--collectives")
        sizes = collectives.sizes or default_sizes("nccl" if device.is_cuda else "gloo")
        check_sizes(sizes, device)
        timed, notes = time_collectives(
            process, groups, device, sizes, collectives.repeats, collectives.links, progress
        )
    kinds = {rank.gpu for rank in ranks}
    mixed = ("no messages between GPUs of different kinds: a record has one kind",) if len(kinds) > 1 else ()
    keep([one.record for one in timed])
    return Profile(profile.device, profile.layers, timed, profile.skipped, notes + mixed)
