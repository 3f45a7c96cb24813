"""Reads Aceso's collectives and messages (github.com/microsoft/SuperScaler, Aceso branch).

Three kinds of file, told apart by name:

* ``prim_<model>_<collective>_<n>gpus.csv``: MiB held by one rank before the call, and milliseconds; one node.
* ``p2p_intra_node.csv``, ``p2p_inter_node.csv``: a line of MiB and a line of GiB/s (1024 based).
* ``collectives_<GPU>_<precision>.csv``, ``p2p_bandwidth.csv``: the same numbers put together.

Left out: collectives whose buffer did not fit (1e9) or whose size was rounded to 0; bandwidths with more than
six decimals, which were read off a fitted curve.
"""

from __future__ import annotations

import csv
import re
from pathlib import Path

from tangram.errors import InputError
from tangram.profiles.importers.csv_file import csv_rows
from tangram.profiles.importers.harvest import (
    OTHERS,
    Given,
    Harvest,
    file_name,
    located,
    read_text,
    text_count,
    text_number,
)
from tangram.profiles.peers import knows_gpu, profiled_gpu
from tangram.profiles.records import CollectiveTime, Op, Scope
from tangram.units import GIB, MIB

STACK = "aceso"

_COLLECTIVE = re.compile(
    r"prim_.+_(?P<op>all_reduce|all_gather|reduce_scatter|all_to_all)_(?P<ranks>\d{1,6})gpus\.csv"
)
_COLLECTIVE_TABLE = re.compile(r"collectives_(?P<gpu>.+)_(?P<precision>fp16|fp32)\.csv")
_P2P = re.compile(r"p2p_(?P<scope>intra|inter)_node\.csv")
_P2P_TABLE = re.compile(r"p2p_bandwidth\.csv")
PATTERNS = (_COLLECTIVE, _COLLECTIVE_TABLE, _P2P, _P2P_TABLE)

NO_BUFFER_MS = 1e9

_NO_BUFFER = "collectives whose buffer did not fit"
_NO_SIZE = "collectives of a size that was rounded to 0"
_FITTED = "bandwidths that were read off a fitted curve"


def read(path: Path, given: Given, harvest: Harvest) -> None:
    """Reads one file of any of the kinds.

    Raises:
        InputError: The name or the content is none of them, or nobody says which GPU ran.
    """
    if match := _COLLECTIVE.fullmatch(path.name):
        _read_collectives(path, match, given, harvest)
    elif match := _COLLECTIVE_TABLE.fullmatch(path.name):
        _read_collective_table(path, match, given, harvest)
    elif match := _P2P.fullmatch(path.name):
        _read_p2p(path, match, given, harvest)
    elif _P2P_TABLE.fullmatch(path.name):
        _read_p2p_table(path, given, harvest)
    else:
        hint = "prim_<model>_<collective>_<n>gpus.csv"
        raise InputError("the name is none of Aceso's", where=file_name(path), hint=hint)


def _read_collectives(path: Path, match: re.Match[str], given: Given, harvest: Harvest) -> None:
    gpu = given.gpu_name(None, file_name(path), harvest)
    for place, line in csv_rows(path, ("data_size(MB)", "time(ms)")):
        size, time = line["data_size(MB)"], line["time(ms)"]
        _add_collective(match["op"], int(match["ranks"]), size, time, gpu, path.name, place, given, harvest)


def _read_collective_table(path: Path, match: re.Match[str], given: Given, harvest: Harvest) -> None:
    gpu = given.gpu_name(match["gpu"], file_name(path), harvest)
    for place, line in csv_rows(path, ("collective", "num_gpus", "data_size_mb", "time_ms")):
        ranks = text_count(line["num_gpus"], place)
        size, time = line["data_size_mb"], line["time_ms"]
        _add_collective(line["collective"], ranks, size, time, gpu, path.name, place, given, harvest)


def _add_collective(
    name: str,
    ranks: int,
    size_text: str,
    time_text: str,
    gpu: str,
    file: str,
    where: str,
    given: Given,
    harvest: Harvest,
) -> None:
    if name not in (*Op,) or name == Op.SEND:
        raise InputError(f"unknown collective {name[:40]!r}", where=where)
    op = Op(name)
    held_mib, time_ms = text_number(size_text, where), text_number(time_text, where)
    if time_ms >= NO_BUFFER_MS:
        harvest.leave_out(_NO_BUFFER)
    elif held_mib == 0:
        harvest.leave_out(_NO_SIZE)
    else:
        # The tensor that a rank holds before an all-gather is a share of the result; in all other collectives
        # it is the larger buffer already.
        full = held_mib * MIB * (ranks if op is Op.ALL_GATHER else 1)
        stack, source = given.stack or STACK, f"Aceso, {file}"
        group = (Scope.INTRA_NODE, op, ranks, ranks)
        with located(where):
            record = CollectiveTime(gpu, stack, given.link, *group, round(full), time_ms / 1e3, source)
        harvest.records.append(record)


def _read_p2p(path: Path, match: re.Match[str], given: Given, harvest: Harvest) -> None:
    where = file_name(path)
    lines = [line for line in csv.reader(read_text(path).splitlines()) if line]
    if len(lines) != 2 or len(lines[0]) != len(lines[1]):
        raise InputError("is not one line of MiB and one line of GB/s of the same length", where=where)
    gpu = given.gpu_name(None, where, harvest)
    for column, (size, rate) in enumerate(zip(*lines, strict=True), 1):
        place = f"{where}: column {column}"
        _add_p2p(match["scope"], size, rate, gpu, path.name, place, given, harvest)


def _read_p2p_table(path: Path, given: Given, harvest: Harvest) -> None:
    for place, line in csv_rows(path, ("gpu", "scope", "data_size_mb", "bandwidth_GBps(1024-based)")):
        scope, name = line["scope"].removesuffix("_node"), line["gpu"]
        if not knows_gpu(name):
            harvest.leave_out(f"messages of {name}, which names no GPU")
            continue
        gpu = profiled_gpu(name)
        if given.gpu is not None and gpu != profiled_gpu(given.gpu):
            harvest.leave_out(OTHERS)
            continue
        rate = line["bandwidth_GBps(1024-based)"]
        _add_p2p(scope, line["data_size_mb"], rate, gpu, path.name, place, given, harvest)


def _add_p2p(
    scope_name: str,
    size_text: str,
    rate_text: str,
    gpu: str,
    file: str,
    where: str,
    given: Given,
    harvest: Harvest,
) -> None:
    if scope_name not in ("intra", "inter"):
        raise InputError(f"the scope {scope_name[:40]!r} is neither intra nor inter", where=where)
    if len(rate_text.strip().partition(".")[2]) > 6:
        harvest.leave_out(_FITTED)
        return
    size, rate = text_number(size_text, where) * MIB, text_number(rate_text, where) * GIB
    if rate == 0 or size == 0:
        raise InputError("size and bandwidth must be above zero", where=where)
    scope = Scope.INTRA_NODE if scope_name == "intra" else Scope.INTER_NODE
    per_node = 2 if scope is Scope.INTRA_NODE else 1
    stack, source = given.stack or STACK, f"Aceso, {file}"
    harvest.records.append(
        CollectiveTime(gpu, stack, given.link, scope, Op.SEND, 2, per_node, round(size), size / rate, source)
    )
