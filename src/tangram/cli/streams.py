"""Where things go: data to stdout, progress and warnings to stderr, documents to files."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from tangram.errors import InputError

if TYPE_CHECKING:
    from tangram.report.page import Page


class ReaderGoneError(Exception):
    """Whoever read stdout went away; not a broken pipe by name, at which typer would end the program."""


PIPED_WIDTH, WIDEST, NARROWEST = 100, 120, 40


def page_width(environ: Mapping[str, str] = os.environ) -> int:
    """Returns how wide to print: as ``COLUMNS`` says, else the terminal up to 120, else 100."""
    columns = environ.get("COLUMNS", "")
    if columns.isascii() and columns.isdigit() and int(columns[:6]) > 0:
        return max(int(columns[:6]), NARROWEST)
    if sys.stdout.isatty():
        return max(min(shutil.get_terminal_size().columns, WIDEST), NARROWEST)
    return PIPED_WIDTH


def print_page(fill: Callable[[Page], None]) -> None:
    """Prints what ``fill`` writes on a page of the right width."""
    from tangram.report.page import Page, can_show_unicode, make_console

    page = Page(page_width(), unicode=can_show_unicode(sys.stdout))
    fill(page)
    with _stdout() as stdout:
        page.print(make_console(stdout, page.width))


def print_json(value: Any) -> None:
    """Prints one JSON document."""
    print_text(json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False) + "\n")


def print_text(text: str) -> None:
    """Prints a text as it is."""
    with _stdout() as stdout:
        stdout.write(text)


@contextmanager
def _stdout() -> Iterator[TextIO]:
    try:
        yield sys.stdout
        sys.stdout.flush()
    except BrokenPipeError:
        raise ReaderGoneError from None


def note(text: str) -> None:
    """Tells something on stderr."""
    print(one_line(text), file=sys.stderr)


def one_line(text: str, longest: int = 1000) -> str:
    """Returns a text for the terminal: one line of bounded length, without characters that it would obey."""
    from tangram.model.json_file import printable

    shown = printable(text)
    return shown if len(shown) <= longest else f"{shown[: longest - 200]} ... {shown[-195:]}"


def check_target(path: Path | None, option: str) -> None:
    """Refuses a file that could not be written, before the work is done and not after it.

    Raises:
        InputError: The folder does not exist, or the file may not be written.
    """
    if path is None:
        return
    if str(path) == "-":
        raise InputError("- is no file", where=option, hint="--json writes the plan to stdout")
    folder = path.parent
    if path.is_dir():
        raise InputError("this is a folder, not a file", where=f"{option} {path}")
    if not folder.is_dir():
        raise InputError(
            f"there is no folder {str(folder)!r}", where=f"{option} {path}", hint="create it first"
        )
    if not os.access(path if path.exists() else folder, os.W_OK):
        raise InputError("no permission to write here", where=f"{option} {path}")


def write_text(path: Path, text: str, option: str) -> None:
    """Writes a file and says so on stderr.

    Raises:
        InputError: It cannot be written.
    """
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        reason = error.strerror or type(error).__name__
        raise InputError(f"cannot be written: {reason}", where=f"{option} {path}") from None
    note(f"wrote {path}")


class Progress:
    """One live line on stderr; silent when stderr is no terminal."""

    def __init__(self) -> None:
        self._live = sys.stderr.isatty()
        self._shown = False

    def __call__(self, text: str) -> None:
        """Replaces the line."""
        if self._live:
            room = shutil.get_terminal_size().columns - 1
            sys.stderr.write(f"\r\x1b[K{text[:room]}")
            sys.stderr.flush()
            self._shown = True

    def clear(self) -> None:
        """Takes the line away."""
        if self._shown:
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()
            self._shown = False
