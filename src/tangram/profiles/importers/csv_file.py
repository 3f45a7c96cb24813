"""Reads CSV files with a header, so that every complaint names file, line and column."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from pathlib import Path

from tangram.errors import InputError
from tangram.profiles.importers.harvest import file_name, read_text


def csv_rows(path: Path, columns: tuple[str, ...]) -> Iterator[tuple[str, dict[str, str]]]:
    """Yields the rows of a file by column name, each with its place.

    Args:
        path: The file.
        columns: The columns that must be there; others are allowed.

    Raises:
        InputError: A column is missing, a row has more or fewer cells than the header, or there is no row.
    """
    where = file_name(path)
    reader = csv.reader(read_text(path).splitlines())
    header = [name.strip() for name in next(reader, [])]
    missing = [name for name in columns if name not in header]
    if missing:
        expected = "expected: " + ", ".join(columns)
        raise InputError(f"the column {missing[0]!r} is missing", where=f"{where}:1", hint=expected)
    found = False
    for line in reader:
        if not line:
            continue
        place = f"{where}:{reader.line_num}"
        if len(line) != len(header):
            raise InputError(f"has {len(line)} cells, but the header has {len(header)}", where=place)
        found = True
        yield place, dict(zip(header, line, strict=True))
    if not found:
        raise InputError("has a header, and no rows", where=where)
