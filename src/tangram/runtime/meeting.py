"""Brings all ranks of a plan together: the default process group, and one for talk about the run itself."""

from __future__ import annotations

import socket
from collections.abc import Iterator
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

_LOST = ("Connection closed by peer", "Connection reset by peer", "Connection refused", "imed out")
"""What gloo says of a process that is not there, or no longer."""


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


def is_lost_partner(error: BaseException) -> bool:
    """Returns whether an error only says that another rank is gone."""
    return isinstance(error, dist.DistError) or any(words in str(error) for words in _LOST)


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
        torch.set_num_threads(1)
        return torch.device("cpu")
    torch.cuda.set_device(index)
    return torch.device("cuda", index)
