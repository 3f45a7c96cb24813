"""The formats that can be imported, and the way from paths to checked records."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median

from tangram.errors import InputError, UnknownNameError
from tangram.profiles import exchange
from tangram.profiles.importers import (
    aceso,
    aceso_collectives,
    galvatron_hardware,
    galvatron_model,
    metis,
    nccl_tests,
    sailor,
    vtrain,
)
from tangram.profiles.importers.harvest import Given, Harvest, file_name, located
from tangram.profiles.keys import key_of
from tangram.profiles.plausible import check_rate
from tangram.profiles.records import LayerTime, LinkRate, Record
from tangram.profiles.store import merged

Reader = Callable[[Path, Given, Harvest], None]


@dataclass(frozen=True, slots=True)
class Format:
    """One format.

    Attributes:
        about: What its files hold, for help.
        readers: Patterns of file names, each with who reads such a file.
        any_name: Who reads a file whose name says nothing, when it is given by itself; None where names have
            to fit.
    """

    about: str
    readers: tuple[tuple[re.Pattern[str], Reader], ...]
    any_name: Reader | None = None


FORMATS: Mapping[str, Format] = {
    "tangram": Format(
        "what tangram profiles export writes (JSON)",
        ((re.compile(r".+\.profiles\.json"), exchange.read),),
        any_name=exchange.read,
    ),
    "aceso": Format(
        "operators, collectives and messages (CSV)",
        (
            *((pattern, aceso.read) for pattern in aceso.PATTERNS),
            *((pattern, aceso_collectives.read) for pattern in aceso_collectives.PATTERNS),
        ),
    ),
    "metis": Format(
        "layers, forward and backward together (JSON)",
        ((metis.UPSTREAM, metis.read), (metis.SAILOR, metis.read)),
    ),
    "sailor": Format(
        "layers (profile.json), also the simulator's file of all models and GPUs",
        ((re.compile(r"profile\.json"), sailor.read),),
        any_name=sailor.read,
    ),
    "galvatron": Format(
        "hardware profiles, and time and memory of layers (JSON)",
        (
            (galvatron_hardware.PATTERN, galvatron_hardware.read),
            (galvatron_model.PATTERN, galvatron_model.read),
        ),
    ),
    "vtrain": Format("all-reduce tables (CSV)", ((vtrain.PATTERN, vtrain.read),)),
    "nccl-tests": Format(
        "output of all_reduce_perf and its like",
        ((re.compile(r".+\.(?:txt|log|out)"), nccl_tests.read),),
        any_name=nccl_tests.read,
    ),
}


@dataclass(frozen=True, slots=True)
class Imported:
    """What an import found.

    Attributes:
        records: Sorted by key, one per key.
        num_files: Files that were read.
        left_out: How many figures were left out, by reason, sorted.
        num_repeated: Figures that were folded into the median of others of equal key.
    """

    records: tuple[Record, ...]
    num_files: int
    left_out: tuple[tuple[str, int], ...]
    num_repeated: int


def import_files(format_name: str, paths: Iterable[Path], given: Given) -> Imported:
    """Reads profiles of other tools.

    A folder is searched, with all folders in it, for files whose names fit the format; a file given by itself
    has to be one. Nothing is written.

    Args:
        format_name: A key of :data:`FORMATS`.
        paths: Files and folders.
        given: What the user says of them.

    Raises:
        UnknownNameError: There is no such format.
        InputError: A path does not exist, a folder has no such file, a file is broken or does not say enough,
            or two files say different things of one layer.
    """
    chosen = FORMATS.get(format_name)
    if chosen is None:
        raise UnknownNameError("format", format_name, FORMATS)
    harvest = Harvest()
    jobs = [job for path in paths for job in _jobs(path, format_name, chosen)]
    for path, reader in jobs:
        before = len(harvest.records)
        with located(file_name(path)):
            reader(path, given, harvest)
        for record in harvest.records[before:]:
            if isinstance(record, LayerTime):
                check_rate(record, file_name(path))
    records, num_repeated = _folded(harvest.records)
    left_out = tuple(sorted(harvest.left_out.items()))
    return Imported(records, len(jobs), left_out, num_repeated)


def _jobs(path: Path, name: str, chosen: Format) -> list[tuple[Path, Reader]]:
    if not path.exists():
        raise InputError("no such file or folder", where=file_name(path))
    if not path.is_dir():
        reader = _reader(path, chosen) or chosen.any_name
        if reader is None:
            raise InputError(
                f"the name is none of the format {name}", where=file_name(path), hint="see docs/profiles.md"
            )
        return [(path, reader)]
    files = sorted(file for file in path.rglob("*") if file.is_file())
    found = [(file, reader) for file in files if (reader := _reader(file, chosen)) is not None]
    if not found:
        raise InputError(
            f"holds no file of the format {name}", where=file_name(path), hint="see docs/profiles.md"
        )
    return found


def _reader(path: Path, chosen: Format) -> Reader | None:
    return next((reader for pattern, reader in chosen.readers if pattern.fullmatch(path.name)), None)


def _folded(records: Iterable[Record]) -> tuple[tuple[Record, ...], int]:
    """One record per key, sorted: collectives by their median, layers where they do not contradict."""
    by_key: dict[tuple[object, ...], list[Record]] = {}
    num_records = 0
    for record in records:
        by_key.setdefault(key_of(record), []).append(record)
        num_records += 1
    folded = [_fold(group) for _, group in sorted(by_key.items(), key=lambda item: item[0])]
    return tuple(folded), num_records - len(folded)


def _fold(group: list[Record]) -> Record:
    first = group[0]
    if len(group) == 1:
        return first
    if isinstance(first, LayerTime):
        return _joined([record for record in group if isinstance(record, LayerTime)])
    source = first.source if len({record.source for record in group}) == 1 else f"{first.source}, and others"
    source += f" (median of {len(group)})"
    if isinstance(first, LinkRate):
        rates = [record.bus_bytes_per_s for record in group if isinstance(record, LinkRate)]
        return replace(first, bus_bytes_per_s=median(rates), source=source)
    times = [record.seconds for record in group if not isinstance(record, LayerTime | LinkRate)]
    return replace(first, seconds=median(times), source=source)


def _joined(group: list[LayerTime]) -> LayerTime:
    """Joins what different files say of one layer: times and sizes; never two different times."""
    joined = group[0]
    for record in group[1:]:
        for figures in (LayerTime.TIMES, LayerTime.SIZES):
            old = [getattr(joined, name) for name in figures]
            new = [getattr(record, name) for name in figures]
            if any(v is not None for v in old) and any(v is not None for v in new) and old != new:
                raise InputError(
                    f"{record.shape} at tp {record.tp}, micro-batch {record.micro_batch} on {record.gpu} has "
                    f"other figures in {joined.source!r}",
                    where=record.source,
                    hint="import them one after the other; --stack keeps them apart",
                )
        found = merged(joined, record)
        assert isinstance(found, LayerTime)
        joined = found
    return joined
