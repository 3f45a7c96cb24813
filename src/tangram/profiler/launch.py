"""The processes of a run: one by itself, or all that torchrun started.

A node is one agent of torchrun (one ``torchrun`` command). Every kind of GPU has one process that times
layers, the first on such a GPU; its siblings wait. Rank 0 collects and writes.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar

import torch.distributed as dist

# Imported before there is a group, because its functions take the group of that moment as a default. An
# optimizer imports it: the group would then never be freed, and its threads get in the way of Python's end.
import torch.distributed.nn.functional  # noqa: F401

from tangram.errors import InputError
from tangram.profiler.device import Device
from tangram.profiler.groups import Rank

T = TypeVar("T")

_WAIT = timedelta(hours=12)
"""Those who do not time layers wait for those who do."""

_LOST = ("Connection closed by peer", "Connection reset by peer", "Connection refused", "imed out")
"""What gloo says of a process that is not there, or no longer."""

_NAMES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "GROUP_RANK", "MASTER_ADDR", "MASTER_PORT")


@dataclass(frozen=True, slots=True)
class Process:
    """Where this process stands in the run.

    Attributes:
        rank, world_size: Among all.
        local_rank: On its node.
        node: Number of its node.
    """

    rank: int = 0
    world_size: int = 1
    local_rank: int = 0
    node: int = 0

    @property
    def writes(self) -> bool:
        """Whether this process prints and writes."""
        return self.rank == 0


def this_process(environ: Mapping[str, str] = os.environ) -> Process:
    """Returns where this process stands, from what torchrun put into the environment.

    Raises:
        InputError: Some of torchrun's variables are there, and some are not or are no numbers.
    """
    if environ.get("WORLD_SIZE", "1") == "1":
        return Process()
    missing = [name for name in _NAMES if name not in environ]
    if missing:
        raise InputError(
            f"the environment has no {' and no '.join(missing)}",
            where="torchrun",
            hint="start it with torchrun --no-python tangram profile ...",
        )
    try:
        rank, world_size, local_rank, node = (int(environ[name]) for name in _NAMES[:4])
    except ValueError as error:
        raise InputError(f"a rank in the environment is no number: {error}", where="torchrun") from None
    return Process(rank, world_size, local_rank, node)


@contextmanager
def joined(process: Process, device: Device) -> Iterator[None]:
    """Joins the processes of the run for the time of the block; does nothing for one by itself.

    Raises:
        InputError: They do not find each other, or lose each other.
    """
    if process.world_size == 1:
        yield
        return
    try:
        if device.is_cuda:
            dist.init_process_group("nccl", timeout=_WAIT, device_id=device.torch_device)
        else:
            dist.init_process_group("gloo", timeout=_WAIT)
        try:
            yield
        finally:
            dist.destroy_process_group()
    except RuntimeError as error:
        text = str(error).partition("\n")[0]
        if not isinstance(error, dist.DistError) and not any(words in text for words in _LOST):
            raise
        raise InputError(
            f"the processes cannot talk to each other: {text}",
            where="torchrun",
            hint="the network, the firewall or a process that ended; NCCL_DEBUG=INFO says more",
        ) from error


def all_ranks(process: Process, device: Device) -> list[Rank]:
    """Returns all processes of the run, by rank; every one of them must call this."""
    return collected(process, Rank(process.rank, process.node, device.gpu))


def collected(process: Process, own: T) -> list[T]:
    """Returns what every process gives, by rank; every one of them must call this."""
    if process.world_size == 1:
        return [own]
    found: list[Any] = [None] * process.world_size
    dist.all_gather_object(found, own)
    return found


def first_of_kind(process: Process, ranks: list[Rank], work: Callable[[], T], idle: T) -> list[T]:
    """Lets the first process on each kind of GPU do some work; returns everybody's results, by rank.

    Args:
        process: This one.
        ranks: All.
        work: What to do.
        idle: The result of those that wait.
    """
    firsts = {rank.gpu: rank.number for rank in reversed(ranks)}
    return collected(process, work() if process.rank in firsts.values() else idle)
