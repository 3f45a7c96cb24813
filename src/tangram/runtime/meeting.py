"""Brings all ranks of a plan together: the default process group, and one for talk about the run itself."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

# Imported before there is a group, because its functions take the group of that moment as a default. An
# optimizer imports it: the group would then never be freed, and its threads get in the way of Python's end.
import torch.distributed.nn.functional

from tangram.errors import InputError
from tangram.runtime.place import Place

WAIT = timedelta(minutes=10)
"""How long a rank waits for another one before it gives up."""


@contextmanager
def joined(place: Place, world_size: int, device: Any) -> Iterator[Any]:
    """Joins all ranks for the time of the block; gives a gloo group of all of them, for objects.

    Raises:
        InputError: They do not find each other, or two of them claim one rank.
    """
    host, port = place.master
    # torchrun's agent or the launcher holds the store; a bare start leaves it to the first process.
    holds = not place.agent_store and (place.host_number, place.local_rank) == (0, 0)
    try:
        store = dist.TCPStore(host, port, is_master=holds, timeout=WAIT, wait_for_workers=False)
    except (RuntimeError, TimeoutError) as error:
        raise InputError(
            f"the store of the run cannot be reached: {_first_line(error)}", where=f"{host}:{port}"
        ) from None
    store = dist.PrefixStore(f"tangram/{place.attempt}", store)
    _claim(store, place)
    backend = "nccl" if device.type == "cuda" else "gloo"
    options = {"device_id": device} if device.type == "cuda" else {}
    dist.init_process_group(
        backend, store=store, rank=place.rank, world_size=world_size, timeout=WAIT, **options
    )
    try:
        yield dist.group.WORLD if backend == "gloo" else dist.new_group(backend="gloo", timeout=WAIT)
        dist.barrier()  # nobody leaves while others still wait for what it sent
    finally:
        dist.destroy_process_group()


def check_agreement(control: Any, rank: int, own: Mapping[str, object]) -> None:
    """Makes sure that all ranks were given the same; all of them call it together.

    Args:
        control: Group of all ranks.
        rank: Of this process.
        own: What this rank was given, by what it is called.

    Raises:
        InputError: A rank was given something else than rank 0.
    """
    found: list[Any] = [None] * dist.get_world_size(control)
    dist.all_gather_object(found, dict(own), group=control)
    for other, theirs in enumerate(found):
        for name, value in theirs.items():
            if value != found[0][name]:
                raise InputError(
                    f"rank {other} has another {name} than rank 0: {value}, not {found[0][name]}",
                    where=f"rank {rank}",
                    hint="start all hosts with the same plan, data and options",
                )


def _claim(store: Any, place: Place) -> None:
    """Two processes of one rank would wait forever; so each claims its own, once."""
    if store.add(f"rank/{place.rank}", 1) != 1:
        raise InputError(
            f"two processes are rank {place.rank}",
            where=f"{socket.gethostname()}, node {place.host_number}",
            hint="a node rank is used twice, or another run holds this address and port",
        )


def _first_line(error: BaseException) -> str:
    return str(error).partition("\n")[0]


def this_device(index: int | None) -> Any:
    """Returns the device of this rank and makes it the current one; None is the CPU."""
    if index is None:
        if "OMP_NUM_THREADS" not in os.environ:
            torch.set_num_threads(1)  # several ranks share the cores
        return torch.device("cpu")
    torch.cuda.set_device(index)
    return torch.device("cuda", index)
