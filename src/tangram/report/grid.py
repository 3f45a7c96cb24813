"""A table of text whose width is known before it is printed, so that a narrower form can be chosen in time.

Rows never wrap: a table that does not fit is set in another form by who asks for it.
"""

from __future__ import annotations

from collections.abc import Sequence

from rich.text import Text

Cell = str | Text
_GAP = 2


class Grid:
    """Columns of cells.

    Args:
        headers: One per column; empty texts for a table without headers.
        align: One letter per column: ``l`` or ``r``.
        indent: Blanks before the first column.
    """

    def __init__(self, headers: Sequence[str], align: str, *, indent: int = 2) -> None:
        assert len(headers) == len(align)
        self._headers = tuple(headers)
        self._align = align
        self._indent = indent
        self._rows: list[list[Text]] = []

    def add(self, *cells: Cell) -> None:
        """Adds a row."""
        assert len(cells) == len(self._align)
        self._rows.append([cell if isinstance(cell, Text) else Text(cell) for cell in cells])

    @property
    def width(self) -> int:
        """Characters of the widest line."""
        return self._indent + sum(self._widths()) + _GAP * (len(self._align) - 1)

    def header(self) -> Text | None:
        """Returns the line of headers, or None when there are none."""
        if not any(self._headers):
            return None
        return self._line([Text(text, style="dim") for text in self._headers])

    def rows(self) -> list[Text]:
        """Returns the rows without the headers, one line each."""
        return [self._line(row) for row in self._rows]

    def lines(self) -> list[Text]:
        """Returns all lines."""
        header = self.header()
        return [*([header] if header is not None else []), *self.rows()]

    def _widths(self) -> list[int]:
        rows = [[Text(text) for text in self._headers], *self._rows]
        return [max(row[idx].cell_len for row in rows) for idx in range(len(self._align))]

    def _line(self, row: Sequence[Text]) -> Text:
        line = Text(" " * self._indent)
        for idx, (cell, width, side) in enumerate(zip(row, self._widths(), self._align, strict=True)):
            blanks = " " * (width - cell.cell_len)
            line.append(" " * (_GAP if idx else 0))
            line.append_text(Text(blanks) + cell if side == "r" else cell + Text(blanks))
        line.rstrip()
        return line
