"""Reads what nccl-tests (and rccl-tests) print: github.com/NVIDIA/nccl-tests.

One file may hold several runs; labels that mpirun puts before lines are dropped. A run says its ranks, their
hosts and devices under ``Using devices``, and its collective in ``Collective test starting``. Older versions
do not say the collective: then it is the one whose bus bandwidth fits (all-gather and all-to-all look alike,
so one of them has to be given).

Of the two timings the one that training does is kept: in place for all-reduce, out of place for the others.
The algorithm bandwidth is compared with size and time, so that another unit is refused. ``size`` is kept as
it is: it is the definition of ``num_bytes`` in :class:`tangram.profiles.records.CollectiveTime`.

Left out: sizes of 0 bytes, and rows whose result was wrong.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from tangram.errors import InputError
from tangram.profiles.importers.harvest import Given, Harvest, file_name, read_text, text_number
from tangram.profiles.records import CollectiveTime, Op, Scope

STACK = "nccl"

_LABEL = re.compile(r"\s*(?:\[[\d,]+\](?:<\w+>)?:|\d+:(?=\s))")
_START = re.compile(r"#\s*Collective test starting:\s*(\S+)")
_RANK = re.compile(
    r"#\s*Rank\s+(\d+)\s+(?:Group\s+\d+\s+)?Pid\s+\d+\s+on\s+(\S+)\s+device\s+\d+\s+\[[^\]]*\]\s+(.+)"
)
_HEADER = re.compile(r"#\s+size\s+count\s+type\b")
_ROW = re.compile(r"\s*\d+\s+\d+\s+[A-Za-z]\w*\s")

_OPS = {
    "all_reduce_perf": Op.ALL_REDUCE,
    "all_gather_perf": Op.ALL_GATHER,
    "reduce_scatter_perf": Op.REDUCE_SCATTER,
    "alltoall_perf": Op.ALL_TO_ALL,
    "sendrecv_perf": Op.SEND,
}
_TOLERANCE = 0.03  # of the algorithm bandwidth; it and the time are rounded in print
_WRONG = "rows whose result was wrong"
_EMPTY = "sizes of 0 bytes"


@dataclass(frozen=True, slots=True)
class _Timing:
    time_us: float
    algorithm_gb_per_s: float
    bus_gb_per_s: float
    wrong: bool


@dataclass(slots=True)
class _Run:
    """One run of one test: its ranks (host and device by rank) and its rows."""

    op: Op | None = None
    hosts: dict[int, str] = field(default_factory=dict)
    devices: set[str] = field(default_factory=set)
    has_header: bool = False
    rows: list[tuple[str, int, str, _Timing, _Timing]] = field(default_factory=list)


def read(path: Path, given: Given, harvest: Harvest) -> None:
    """Reads one file.

    Raises:
        InputError: It holds no results, does not say which ranks took part or which collective ran, or its
            numbers contradict each other.
    """
    where = file_name(path)
    runs = list(_runs(read_text(path), where, given))
    if not runs:
        raise InputError(
            "holds no results of nccl-tests", where=where, hint="give the whole output of a test"
        )
    for run in runs:
        _add(run, path.name, where, given, harvest)


def _runs(text: str, where: str, given: Given) -> Iterator[_Run]:
    run = _Run(given.op)
    for number, labelled in enumerate(text.splitlines(), 1):
        line = _LABEL.sub("", labelled, count=1)
        place = f"{where}:{number}"
        start, rank = _START.search(line), _RANK.search(line)
        begins = start is not None or (rank is not None and bool(run.rows))
        if begins and run.rows:
            yield run
            run = _Run(given.op)
        if start is not None:
            run.op = given.op or _op(start[1], place)
        elif rank is not None:
            _add_rank(run, int(rank[1]), rank[2], rank[3].strip(), place)
        elif _HEADER.search(line):
            run.has_header = True
        elif run.has_header and _ROW.match(line):
            run.rows.append(_row(line, place))
    if run.rows:
        yield run


def _add_rank(run: _Run, rank: int, host: str, device: str, where: str) -> None:
    if rank in run.hosts:
        raise InputError(
            f"rank {rank} occurs twice", where=where, hint="nccl-tests was built without MPI: MPI=1"
        )
    run.hosts[rank] = host
    run.devices.add(device)


def _row(line: str, where: str) -> tuple[str, int, str, _Timing, _Timing]:
    cells = line.split()
    # From the right: two groups of time, algorithm bandwidth, bus bandwidth, errors; what stands between the
    # type and these (operation, root) differs from version to version.
    if len(cells) < 11:
        raise InputError(f"has {len(cells)} cells", where=where, hint="size, count, type, ..., two timings")
    size = round(text_number(cells[0], f"{where}: size"))
    operation = cells[3] if len(cells) > 11 else ""
    return where, size, operation, _timing(cells[-8:-4], where), _timing(cells[-4:], where)


def _timing(cells: list[str], where: str) -> _Timing:
    names = ("time", "algbw", "busbw")
    time_us, algorithm, bus = (
        text_number(cell, f"{where}: {name}") for cell, name in zip(cells, names, strict=False)
    )
    wrong = cells[3] != "N/A" and text_number(cells[3], f"{where}: #wrong") > 1e-3
    return _Timing(time_us, algorithm, bus, wrong)


def _add(run: _Run, file: str, where: str, given: Given, harvest: Harvest) -> None:
    ranks, per_node = _group(run, where)
    devices = sorted(run.devices)
    if len(devices) > 1 and given.gpu is None:
        raise InputError(
            f"ranks ran on different GPUs: {', '.join(devices)}", where=where, hint="give --gpu, the slowest"
        )
    gpu = given.gpu_name(devices[0], where, harvest)
    op = run.op or _guessed_op(run, ranks, where)
    scope = Scope.INTRA_NODE if per_node == ranks else Scope.INTER_NODE
    for place, size, _, outside, inside in run.rows:
        timing = inside if op is Op.ALL_REDUCE else outside
        if timing.wrong:
            harvest.leave_out(_WRONG)
        elif size == 0:
            harvest.leave_out(_EMPTY)
        else:
            seconds = timing.time_us / 1e6
            if seconds == 0:
                raise InputError("a time of 0 was not measured", where=place)
            implied = size / seconds / 1e9
            if abs(implied - timing.algorithm_gb_per_s) > _TOLERANCE * implied + 0.011:
                raise InputError(
                    f"{size} bytes in {timing.time_us:g} us are {implied:.2f} GB/s, but the line says "
                    f"{timing.algorithm_gb_per_s:g}",
                    where=place,
                )
            harvest.records.append(
                CollectiveTime(
                    gpu,
                    given.stack or STACK,
                    given.link,
                    scope,
                    op,
                    ranks,
                    per_node,
                    size,
                    seconds,
                    f"nccl-tests, {file}",
                )
            )


def _group(run: _Run, where: str) -> tuple[int, int]:
    """Ranks, and ranks per node."""
    ranks = len(run.hosts)
    if ranks < 2 or sorted(run.hosts) != list(range(ranks)):
        raise InputError(
            f"{ranks} ranks are listed under 'Using devices'; two or more are needed, and none left out",
            where=where,
            hint="give the whole output of a test",
        )
    per_node = set(Counter(run.hosts.values()).values())
    if len(per_node) > 1:
        counts = ", ".join(map(str, sorted(per_node)))
        raise InputError(f"nodes have different numbers of ranks: {counts}", where=where)
    return ranks, per_node.pop()


def _op(name: str, where: str) -> Op:
    if name not in _OPS:
        raise InputError(
            f"{name[:40]} is not used in training", where=where, hint="known: " + ", ".join(_OPS)
        )
    return _OPS[name]


def _guessed_op(run: _Run, ranks: int, where: str) -> Op:
    """By the ratio of the two bandwidths of the largest message, and whether something is summed."""
    place, _, operation, timing, _ = max(run.rows, key=lambda row: row[1])
    ratio = timing.bus_gb_per_s / timing.algorithm_gb_per_s if timing.algorithm_gb_per_s else 0.0
    hint = "give --op: " + ", ".join(Op)
    fits = [op for op in Op if abs(op.bus_ratio(ranks) - ratio) < 0.02]
    summed = operation not in ("", "none")
    fits = [op for op in fits if (op in (Op.ALL_REDUCE, Op.REDUCE_SCATTER)) == summed]
    if len(fits) != 1:
        names = " or ".join(fits) or "none that is known"
        raise InputError(
            f"does not say which collective ran; it fits {names}", where=place or where, hint=hint
        )
    return fits[0]
