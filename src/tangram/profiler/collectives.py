"""Times collectives and point-to-point messages between the processes of a run, group by group.

Calls follow each other without a pause, as in nccl-tests; a repeat is the mean of such a run, and a group is
as slow as its slowest rank. A send is half of a ping-pong: one way, latency included. Buffers are fp32 zeros:
contents do not matter to links, and sums of zeros stay finite.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

from tangram.errors import InputError
from tangram.profiler.clock import clock_of
from tangram.profiler.device import Device, software
from tangram.profiler.groups import RankGroup
from tangram.profiler.launch import Process, collected
from tangram.profiler.results import Spread, TimedCollective
from tangram.profiles.records import CollectiveTime, Op, Scope
from tangram.units import KIB, MIB, format_bytes

ELEMENT_BYTES = 4
LARGEST_BYTES = {"nccl": 256 * MIB, "gloo": 16 * MIB}
SMALLEST_BYTES = 4 * KIB
BUFFERS = 3
"""What a process holds of a message at once: to send, to receive, and a share."""

RUN_S, MOST_CALLS = 0.02, 50
"""A repeat calls as often as takes about 20 ms, at most 50 times."""

# Renamed in torch 2.13 or a little earlier; the old names warn.
_all_gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
_reduce_scatter = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor


@dataclass(frozen=True, slots=True)
class LinkNames:
    """What joins the ranks, in the user's words; empty where nobody says."""

    intra: str = ""
    inter: str = ""


def default_sizes(backend: str) -> tuple[int, ...]:
    """Returns message sizes: 4 KiB, four times that and so on, up to the largest one for the backend."""
    sizes, size = [], SMALLEST_BYTES
    while size <= LARGEST_BYTES[backend]:
        sizes.append(size)
        size *= 4
    return tuple(sizes)


def check_sizes(sizes: Sequence[int], device: Device) -> None:
    """Refuses messages whose buffers a device does not hold.

    Raises:
        InputError: One is too large.
    """
    free = device.free_bytes()
    if free is not None and BUFFERS * max(sizes) > free:
        raise InputError(
            f"{BUFFERS} buffers of {format_bytes(max(sizes))} do not fit",
            where="--message-bytes",
            hint=f"{format_bytes(free)} are free on {device.words}",
        )


def time_collectives(
    process: Process,
    groups: Sequence[RankGroup],
    device: Device,
    sizes: Sequence[int],
    repeats: int,
    links: LinkNames = LinkNames(),
    progress: Callable[[str], None] = lambda text: None,
) -> tuple[tuple[TimedCollective, ...], tuple[str, ...]]:
    """Times all operations of all groups and sizes; every process of the run must call this.

    Args:
        process: This one.
        groups: Who talks to whom.
        device: Of this process.
        sizes: Bytes of the messages, as :class:`CollectiveTime` counts them; rounded up to whole elements.
        repeats: Runs that count.
        links: Names of the links.
        progress: Is told what comes next.

    Returns:
        What was timed, in the order of groups, operations and sizes, and what could not be and why; the same
        in every process.
    """
    own: list[tuple[int, TimedCollective]] = []
    notes: list[str] = []
    for number, group in enumerate(groups, 1):
        progress(f"group {number} of {len(groups)}: {len(group.members)} ranks, {group.scope.value}")
        handle = dist.new_group(list(group.members))
        if process.rank in group.members:
            bench = _Bench(group, handle, device, repeats, links)
            for op in operations(group):
                reason = bench.refusal(op)
                notes += [f"no {op.value}: {reason}"] if reason else []
                timed = [] if reason else [bench.time(op, size) for size in sizes]
                if process.rank == group.members[0]:  # it speaks for the group
                    own += [(number, one) for one in timed]
            dist.destroy_process_group(handle)
        dist.barrier()
    everything = collected(process, (own, notes))
    found = sorted((one for timed, _ in everything for one in timed), key=lambda one: one[0])
    return (
        tuple(timed for _, timed in found),
        tuple(dict.fromkeys(note for _, heard in everything for note in heard)),
    )


def operations(group: RankGroup) -> tuple[Op, ...]:
    """Returns what is timed in a group: sends between two ranks only."""
    return tuple(op for op in Op if op is not Op.SEND or len(group.members) == 2)


class _Bench:
    """Times operations within one group; all its members do the same at the same time."""

    def __init__(self, group: RankGroup, handle: Any, device: Device, repeats: int, links: LinkNames) -> None:
        self._group = group
        self._handle = handle
        self._device = device
        self._repeats = repeats
        self._link = links.intra if group.scope is Scope.INTRA_NODE else links.inter
        self._clock = clock_of(device.torch_device)

    def refusal(self, op: Op) -> str:
        """Tries an operation on a small message; returns why the backend has none, or an empty text."""
        try:
            self._call(op, 1)[0]()
            self._clock.settle()
        except RuntimeError as error:
            text = str(error).partition("\n")[0]
            if any(words in text for words in ("not support", "not implement", "No backend")):
                return f"{dist.get_backend(self._handle)}: {text}"
            raise
        return ""

    def time(self, op: Op, size: int) -> TimedCollective:
        """Times an operation on messages of at least ``size`` bytes."""
        call, num_bytes = self._call(op, size)
        trips = 2 if op is Op.SEND else 1
        self._run(call, 2)
        (once,) = self._slowest([self._run(call, 1)])
        calls = max(1, min(MOST_CALLS, round(RUN_S / once)))
        runs = self._slowest([self._run(call, calls) for _ in range(self._repeats)])
        spread = Spread.of([seconds / trips for seconds in runs])
        record = CollectiveTime(
            gpu=self._group.gpu,
            stack=dist.get_backend(self._handle),
            link=self._link,
            scope=self._group.scope,
            op=op,
            ranks=len(self._group.members),
            ranks_per_node=self._group.ranks_per_node,
            num_bytes=num_bytes,
            seconds=spread.median_s,
            source=f"{software(self._device)}, {self._repeats} repeats",
        )
        return TimedCollective(record, spread)

    def _run(self, call: Callable[[], None], count: int) -> float:
        """Returns the mean time of ``count`` calls in a row, which all members start together."""
        dist.barrier(group=self._handle)
        self._clock.settle()
        start = self._clock.mark()
        for _ in range(count):
            call()
        end = self._clock.mark()
        self._clock.settle()
        return self._clock.seconds(start, end) / count

    def _slowest(self, seconds: list[float]) -> list[float]:
        """Returns, for each timing, that of the slowest member."""
        values = torch.tensor(seconds, dtype=torch.float64, device=self._device.torch_device)
        dist.all_reduce(values, op=dist.ReduceOp.MAX, group=self._handle)
        slowest: list[float] = values.tolist()
        return slowest

    def _call(self, op: Op, size: int) -> tuple[Callable[[], None], int]:
        """Returns an operation on new buffers, and the bytes of its message."""
        ranks, handle = len(self._group.members), self._handle
        share = max(1, -(-size // (ELEMENT_BYTES * ranks)))  # elements per rank; all operations split evenly
        whole = torch.zeros(share * ranks, dtype=torch.float32, device=self._device.torch_device)
        part = whole[:share].clone()
        other = torch.empty_like(whole)
        calls: dict[Op, Callable[[], None]] = {
            Op.ALL_REDUCE: lambda: dist.all_reduce(whole, group=handle),
            Op.ALL_GATHER: lambda: _all_gather(whole, part, group=handle),
            Op.REDUCE_SCATTER: lambda: _reduce_scatter(part, whole, group=handle),
            Op.ALL_TO_ALL: lambda: dist.all_to_all_single(other, whole, group=handle),
            Op.SEND: lambda: self._ping_pong(whole, other),
        }
        return calls[op], whole.nbytes

    def _ping_pong(self, there: Any, back: Any) -> None:
        first, second = self._group.members
        if dist.get_rank() == first:
            dist.send(there, second, group=self._handle)
            dist.recv(back, second, group=self._handle)
        else:
            dist.recv(back, first, group=self._handle)
            dist.send(there, first, group=self._handle)
