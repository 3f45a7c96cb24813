"""The cells of one row, read by column: strict about numbers, clear about what is wrong.

A cell that cannot be used makes its row unusable and nothing else: :class:`RowError` carries the column, a
short code that summaries count by, and what to write instead.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping

_COUNT = re.compile(r"[0-9]{1,15}(?:\.0+)?")


class RowError(Exception):
    """A row that cannot be used.

    Args:
        code: What kind of problem, for counting: ``missing``, ``not-a-number``, ``impossible`` ...
        message: What is wrong, with the legal form.
        column: The column, or None when several are at odds.
    """

    def __init__(self, code: str, message: str, *, column: str | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.column = column

    def __str__(self) -> str:
        return (
            f"{self.code}: {self.column}: {self.message}" if self.column else f"{self.code}: {self.message}"
        )


class Cells:
    """The cells of one row; a missing column counts as an empty cell.

    Args:
        row: Column names and cells.
        names: For messages, the names that the file has for columns, where they differ.
    """

    def __init__(self, row: Mapping[str, str], names: Mapping[str, str] | None = None) -> None:
        self._row = row
        self._names = names or {}

    def name(self, column: str) -> str:
        """Returns what the file calls a column."""
        return self._names.get(column, column)

    def text(self, column: str) -> str:
        """Returns the cell without blanks at its ends; empty where there is none."""
        return self._row.get(column, "").strip()

    def needed_text(self, column: str) -> str:
        """Returns the cell.

        Raises:
            RowError: It is empty, or there is no such column.
        """
        found = self.text(column)
        if not found:
            where = "is empty" if column in self._row else "is missing from the table"
            raise RowError(
                "missing",
                f"{where}, and the configuration is incomplete without it",
                column=self.name(column),
            )
        return found

    def count(self, column: str, default: int | None = None) -> int:
        """Returns a whole number of at least 1; the default where the cell is empty, if there is one.

        Raises:
            RowError: It is empty without a default, or no such number.
        """
        found = self.text(column)
        if not found and default is not None:
            return default
        text = self.needed_text(column)
        if not _COUNT.fullmatch(text) or int(float(text)) < 1:
            raise RowError(
                "not-a-number", f"{_shown(text)} is no whole number above 0", column=self.name(column)
            )
        return int(float(text))

    def optional_count(self, column: str) -> int | None:
        """Returns a whole number of at least 1, or None where the cell is empty.

        Raises:
            RowError: It is no such number.
        """
        return self.count(column) if self.text(column) else None

    def optional_number(self, column: str) -> float | None:
        """Returns a number above zero, or None where the cell is empty.

        Raises:
            RowError: It is no such number.
        """
        text = self.text(column)
        if not text:
            return None
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not (math.isfinite(value) and value > 0):
            raise RowError("not-a-number", f"{_shown(text)} is no number above 0", column=self.name(column))
        return value


def _shown(text: str) -> str:
    return repr(text if len(text) <= 40 else text[:37] + "...")
