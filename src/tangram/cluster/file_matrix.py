"""Square matrices of bandwidths in a cluster file: between the GPUs of a node, or between nodes.

    matrix: [[-, 50, 12], [50, -, 12], [12, 12, -]]
    unit: GB/s                           # or none, and 50GB/s in the cells

What stands on the diagonal is not read, except between groups of nodes. Where the two directions differ the
slower one counts, because every micro-batch goes one way and its gradient the other.
"""

from __future__ import annotations

from collections.abc import Sequence

from tangram.cluster import defaults
from tangram.errors import InputError
from tangram.yaml_reader import Kind, Value, shorten

Matrix = tuple[tuple[float | None, ...], ...]
"""Bytes per second; None where nothing is stated."""

_NOTHING = ("-", "x")
_NUMBERS = (Kind.INTEGER, Kind.NUMBER)


def read_matrix(value: Value, rows: Sequence[str], unit: Value | None) -> Matrix:
    """Reads a symmetric matrix; the slower of both directions counts.

    Args:
        value: A list of lists, one row for each of ``rows``.
        rows: What the rows stand for, for messages.
        unit: Of cells that are plain numbers, such as ``GB/s``.

    Raises:
        InputError: It is not square, a cell is no bandwidth, or one off the diagonal is empty.
    """
    suffix = unit.text("a unit such as GB/s or Gbit/s") if unit is not None else None
    if suffix is not None and unit is not None:
        defaults.bandwidth(f"1{suffix}", where=unit.where)
    lines = value.items()
    if len(lines) != len(rows):
        raise InputError(
            f"{len(lines)} rows for {len(rows)}: {_few(rows)}", where=value.where, hint="one row for each"
        )
    for line, row in zip(lines, rows, strict=True):
        if len(line.items()) != len(rows):
            message = f"the row of {row} has {len(line.items())} cells, not {len(rows)}"
            raise InputError(message, where=line.where, hint="one for each row")
    cells = [[_cell(cell, suffix) for cell in line.items()] for line in lines]
    return tuple(tuple(_slower(cells, lines, i, j) for j in range(len(rows))) for i in range(len(rows)))


def _cell(cell: Value, suffix: str | None) -> float | None:
    content = cell.content
    if cell.kind is Kind.NULL or (isinstance(content, str) and content.lower() in _NOTHING):
        return None
    if cell.kind in _NUMBERS and isinstance(content, str):
        if suffix is None:
            raise InputError(
                f"{shorten(content)} has no unit", where=cell.where, hint="add 'unit: GB/s' beside the matrix"
            )
        # A zero is how tools write that there is nothing to measure.
        return None if not float(content) else defaults.bandwidth(content + suffix, where=cell.where)
    return defaults.bandwidth(cell.text("a bandwidth such as 50GB/s"), where=cell.where)


def _slower(cells: list[list[float | None]], lines: Sequence[Value], i: int, j: int) -> float | None:
    there, back = cells[i][j], cells[j][i]
    if i == j or (there is not None and back is not None):
        return min(there, back) if there is not None and back is not None else None
    at = (i, j) if there is None else (j, i)
    raise InputError(
        "this cell is empty", where=lines[at[0]].items()[at[1]].where, hint="state both directions"
    )


def _few(names: Sequence[str]) -> str:
    return ", ".join(names[:6]) + (f" and {len(names) - 6} more" if len(names) > 6 else "")
