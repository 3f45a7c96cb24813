"""Reads vTrain's all-reduce tables (github.com/VIA-Research/vTrain, ``trace/<gpu>/AR_GPU<n>_1M_1024M_LUT``).

CSV of nccl-tests' all-reduce inside one node: bytes, count, type, then nanoseconds and bus bandwidth twice:
out of place and in place. The in-place time is kept, because that is how training reduces gradients. The bus
bandwidth is compared with the time, so that a table in another unit is refused.
"""

from __future__ import annotations

import csv
import re
from pathlib import Path

from tangram.errors import InputError
from tangram.profiles.importers.harvest import Given, Harvest, file_name, read_text, text_number
from tangram.profiles.records import CollectiveTime, Op, Scope
from tangram.units import GB, NS_PER_S

STACK = "nccl"
PATTERN = re.compile(r"AR_GPU(?P<ranks>\d{1,5})_.*LUT")

_HEADER = ["size(B)", "count", "type", "time(ns)", "busbw(GB/s)", "time(ns)", "busbw(GB/s)"]
_TOLERANCE = 0.02  # of the bus bandwidth that follows from the time; it is printed with two decimals


def read(path: Path, given: Given, harvest: Harvest) -> None:
    """Reads one file; its name says how many GPUs took part.

    Raises:
        InputError: It is not such a file, or nobody says which GPU ran.
    """
    where = file_name(path)
    match = PATTERN.fullmatch(path.name)
    if match is None or int(match["ranks"]) < 2:
        raise InputError("the name does not say how many GPUs", where=where, hint="AR_GPU<n>_1M_1024M_LUT")
    ranks = int(match["ranks"])
    gpu = given.gpu_name(path.absolute().parent.name, where, harvest)
    reader = csv.reader(read_text(path).splitlines())
    header = [name.strip() for name in next(reader, [])]
    if header != _HEADER:
        raise InputError("is no all-reduce table", where=f"{where}:1", hint="expected: " + ",".join(_HEADER))
    source = f"vTrain, {path.absolute().parent.name}/{path.name}"
    for line in reader:
        place = f"{where}:{reader.line_num}"
        if not line:
            continue
        if len(line) != len(_HEADER):
            raise InputError(f"has {len(line)} cells, not {len(_HEADER)}", where=place)
        num_bytes = text_number(line[0], f"{place}: size(B)", least=1)
        time_ns = text_number(line[5], f"{place}: time(ns)", least=1)
        bus = text_number(line[6], f"{place}: busbw(GB/s)")
        record = CollectiveTime(
            gpu,
            given.stack or STACK,
            given.link,
            Scope.INTRA_NODE,
            Op.ALL_REDUCE,
            ranks,
            ranks,
            round(num_bytes),
            time_ns / NS_PER_S,
            source,
        )
        implied = record.bus_bytes_per_s / GB
        if abs(implied - bus) > _TOLERANCE * implied + 0.01:
            raise InputError(
                f"{time_ns:g} ns for {num_bytes:g} bytes are {implied:.2f} GB/s, but the line says {bus:g}",
                where=place,
            )
        harvest.records.append(record)
