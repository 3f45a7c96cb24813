"""Reads tables of measured runs: every row becomes a run, or says why it cannot be used."""

from __future__ import annotations

import csv
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from tangram.errors import InputError
from tangram.validation.cells import Cells, RowError
from tangram.validation.common import build_run
from tangram.validation.layouts import Layout, find_layout
from tangram.validation.run import Origin, Run
from tangram.validation.sources import OTHER, resolve

MAX_BYTES = 256 * 1024**2
_TOO_MANY = "\0"  # the key of cells beyond the header; no column of a file can have this name


@dataclass(frozen=True, slots=True)
class RowResult:
    """What became of one row.

    Attributes:
        origin: Where it stands.
        run: The run, or None.
        code: Why there is none, for counting: the name of an exclusion rule, or of a kind of problem.
        reason: The same as a sentence, with the column where there is one.
        alternatives: Whether the row's source lists plans to choose among.
    """

    origin: Origin
    run: Run | None
    code: str = ""
    reason: str = ""
    alternatives: bool = False


def read_runs(paths: Iterable[str]) -> list[RowResult]:
    """Reads files, one after the other.

    Args:
        paths: CSV files, in any layout of :mod:`tangram.validation.layouts`.

    Returns:
        One result per row of data, in order.

    Raises:
        InputError: A file cannot be read as a table at all.
    """
    return [result for path in paths for result in _read_file(Path(path))]


def _read_file(path: Path) -> list[RowResult]:
    table = _table(path)
    if not table:
        raise InputError("has no header", where=str(path), hint="the first line names the columns")
    header = [column.strip() for column in table[0]]
    doubled = sorted({column for column in header if column and header.count(column) > 1})
    if doubled:
        raise InputError(f"has the column {doubled[0]!r} twice", where=str(path))
    layout = find_layout(header)
    return [
        _read_row(layout, _row(header, cells), path.name, line)
        for line, cells in enumerate(table[1:], start=1)
    ]


def _table(path: Path) -> list[list[str]]:
    """The cells of a file; lines without any are left out, as csv readers do."""
    try:
        if path.stat().st_size > MAX_BYTES:
            raise InputError("is too large for a table of runs", where=str(path), hint="legal: up to 256 MiB")
        with path.open(encoding="utf-8-sig", newline="") as stream:
            return [cells for cells in csv.reader(stream, strict=True) if cells]
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror or error}", where=str(path)) from None
    except UnicodeDecodeError:
        raise InputError("is no text in UTF-8", where=str(path), hint="give a CSV file") from None
    except csv.Error as error:
        raise InputError(f"is no CSV: {error}", where=str(path)) from None


def _row(header: list[str], cells: list[str]) -> dict[str, str]:
    row = dict(zip(header, [*cells, *[""] * (len(header) - len(cells))], strict=False))
    if any(cell.strip() for cell in cells[len(header) :]):
        row[_TOO_MANY] = str(len(cells))
    return row


def _read_row(layout: Layout, row: dict[str, str], file: str, line: int) -> RowResult:
    origin = Origin(file, line, OTHER, row.get("gpu", "").strip())
    try:
        if _TOO_MANY in row:
            raise RowError("ragged", f"{row[_TOO_MANY]} cells, but the header names {len(row) - 1} columns")
        common = layout.renamed(row)
        resolved = resolve(common, file)
        origin = Origin(file, line, resolved.source, resolved.row.get("gpu", origin.gpu))
        if layout.derive is not None:
            resolved = resolve(common | dict(layout.derived(row)), file)
            origin = Origin(file, line, resolved.source, resolved.row.get("gpu", ""))
        if resolved.rule is not None:
            raise RowError(resolved.rule.name, resolved.rule.sentence)
        run = build_run(
            Cells(resolved.row, layout.names),
            resolved.settings,
            resolved.own,
            origin,
            flags=resolved.flags,
            filled=resolved.filled,
            not_in_key=resolved.not_in_key,
            hosts=resolved.hosts,
        )
    except RowError as problem:
        where = f"row {line}, column {problem.column}" if problem.column else f"row {line}"
        return RowResult(origin, None, problem.code, f"{problem.code}: {where}: {problem.message}")
    return RowResult(origin, run, alternatives=resolved.alternatives)
