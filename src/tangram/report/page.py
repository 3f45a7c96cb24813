"""What a report is written on: lines of text of a known width, and the console that they go to."""

from __future__ import annotations

import textwrap
from typing import TextIO

from rich.console import Console
from rich.text import Text

from tangram.model.json_file import printable
from tangram.report.grid import Cell, Grid

_ASCII = str.maketrans(
    {"×": "x", "–": "-", "—": "-", "−": "-", "≥": ">=", "≤": "<=", "…": "...", "·": "|", "→": "->", "µ": "u"}
    | dict.fromkeys("‘’", "'")
    | dict.fromkeys("“”", '"')
)


class Page:
    """Lines that fit a width.

    Args:
        width: Characters per line.
        unicode: Whether block characters and typographic signs can be shown.
    """

    def __init__(self, width: int, *, unicode: bool) -> None:
        self.width = max(width, 40)
        self.unicode = unicode
        self.lines: list[Text] = []

    def heading(self, title: str, note: str = "") -> None:
        """Starts a section: a blank line, the title, and a note behind it or below it."""
        if self.lines:
            self.lines.append(Text())
        line = Text(title, style="bold")
        if note and len(title) + len(note) + 2 <= self.width:
            self.lines.append(line + Text(f": {note}"))
            return
        self.lines.append(line)
        if note:
            self.wrapped(note, indent=2)

    def line(self, text: Cell) -> None:
        """Adds a line that must fit by itself."""
        self.lines.append(text if isinstance(text, Text) else Text(text))

    def wrapped(self, text: str, *, indent: int = 2, first: str | None = None, style: str = "") -> None:
        """Adds a paragraph, wrapped to the width.

        Args:
            text: The paragraph.
            indent: Blanks before each line.
            first: What stands before the first line instead of the blanks.
            style: Of the paragraph; ``first`` has none.
        """
        lead = " " * indent if first is None else first
        room = max(self.width - max(len(lead), indent), 20)
        pieces = textwrap.wrap(text, room, break_long_words=True, break_on_hyphens=False) or [""]
        for idx, piece in enumerate(pieces):
            self.lines.append(Text(lead if idx == 0 else " " * indent) + Text(piece, style=style))

    def items(self, texts: list[str]) -> None:
        """Adds a list, one dash per item."""
        for text in texts:
            self.wrapped(text, indent=4, first="  - ")

    def facts(self, rows: list[tuple[str, str]]) -> None:
        """Adds names with what belongs to them, wrapped beside the names."""
        if not rows:
            return
        indent = max(len(name) for name, _ in rows) + 4
        for name, text in rows:
            self.wrapped(text, indent=indent, first=f"  {name}".ljust(indent))

    def grid(self, grid: Grid) -> None:
        """Adds a table."""
        self.lines.extend(grid.lines())

    def print(self, console: Console) -> None:
        """Prints all lines, as they are, but for characters that a terminal would obey."""
        for line in self.lines:
            shown = _harmless(line if self.unicode else _plain(line))
            console.print(shown, soft_wrap=True)


class _Console(Console):
    """A console that leaves it to the program what to do when whoever reads the output goes away."""

    def on_broken_pipe(self) -> None:
        """Called while the error is being handled; rich would end the program here with code 1."""
        raise  # noqa: PLE0704


def make_console(stream: TextIO, width: int) -> Console:
    """Returns a console that prints names as they are (no markup in brackets, no smileys in colons)."""
    return _Console(file=stream, width=width, markup=False, highlight=False, emoji=False, soft_wrap=True)


def can_show_unicode(stream: TextIO) -> bool:
    """Whether the stream's encoding holds block characters."""
    return (getattr(stream, "encoding", None) or "ascii").lower().replace("_", "-").startswith("utf")


def _harmless(line: Text) -> Text:
    """Names come from files, and a plan file may hold anything."""
    text = printable(line.plain)
    if text == line.plain:
        return line
    harmless = line.copy()
    harmless.plain = text
    return harmless


def _plain(line: Text) -> Text:
    """Writes typographic signs in ASCII; a line of names that were never ASCII stays as it is."""
    text = line.plain.translate(_ASCII)
    if len(text) != len(line.plain):  # positions of styles would shift
        return Text(text)
    plain = line.copy()
    plain.plain = text
    return plain
