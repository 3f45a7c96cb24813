"""Reads tables of measured runs: every row becomes a run, or says why it cannot be used."""

from __future__ import annotations

import csv
import io
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from tangram.errors import InputError
from tangram.model.json_file import printable, read_json_text
from tangram.validation.cells import Cells, RowError
from tangram.validation.common import build_run
from tangram.validation.layouts import Layout, find_layout
from tangram.validation.run import Origin, Run
from tangram.validation.sources import OTHER, resolve
from tangram.yaml_reader import shorten

# A published table of thousands of runs has a few hundred KiB.
MAX_BYTES = 8 * 1024**2
MAX_ROWS = 100_000
MAX_COLUMNS = 500
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
    where = printable(str(path))
    table, num_lines = _table(path, where)
    if not table:
        raise InputError("has no header", where=where, hint="the first line names the columns")
    header = [column.strip() for column in table[0]]
    if header[0].startswith(("{", "[")):
        hint = "columns with commas between them, their names in the first line"
        raise InputError("is JSON, not a table", where=f"{where}:1", hint=hint)
    doubled = sorted(column for column, count in Counter(header).items() if column and count > 1)
    if doubled:
        raise InputError(
            f"has the column {shorten(doubled[0])!r} twice", where=where, hint="rename or remove one of them"
        )
    for number, most, what in ((len(header), MAX_COLUMNS, "columns"), (num_lines - 1, MAX_ROWS, "rows")):
        if number > most:
            raise InputError(f"has {number} {what}", where=where, hint=f"legal: up to {most}")
    layout = find_layout(header)
    return [
        _read_row(layout, _row(header, cells), path.name, line)
        for line, cells in enumerate(table[1:], start=1)
    ]


def _table(path: Path, where: str) -> tuple[list[list[str]], int]:
    """The cells of a file, as far as its rows are legal, and how many lines have any; lines without any are
    left out, as csv readers do.
    """
    text = read_json_text(path, max_bytes=MAX_BYTES)
    reader = csv.reader(io.StringIO(text, newline=""), strict=True)
    try:
        lines = (cells for cells in reader if cells)
        table = list(islice(lines, MAX_ROWS + 1))
        return table, len(table) + sum(1 for _ in lines)
    except csv.Error as error:
        raise InputError(f"is no CSV: {error}", where=f"{where}:{reader.line_num}") from None


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
