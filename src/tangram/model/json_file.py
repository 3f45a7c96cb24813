"""Reads one JSON object from a file, and refuses everything else with one clear message.

It decides nothing about the content (see :mod:`tangram.model.fields`). What Python's reader lets through,
but JSON or common sense does not, is refused too: duplicate keys (the last would win in silence), NaN and
infinite numbers, files that are no regular files (opening a pipe would wait for ever) and files that are far
too large.

>>> parse_json_object('{"num_hidden_layers": 2}', where="config.json")
{'num_hidden_layers': 2}
"""

from __future__ import annotations

import json
import math
import stat
from dataclasses import dataclass
from pathlib import Path

from tangram.errors import InputError

# A config.json has a few KiB.
MAX_FILE_BYTES = 8 * 1024**2

_KINDS = (
    (stat.S_ISDIR, "a folder"),
    (stat.S_ISFIFO, "a pipe"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
)

# What the reader's messages do not say: how to put it right.
_FIXES = (
    ("Expecting property name", "keys stand in double quotes; no comment, and no comma before a bracket"),
    ("Illegal trailing comma", "remove the comma before the closing bracket"),
    (
        "Expecting value",
        "texts stand in double quotes; no comment, and no comma before a bracket",
    ),
    ("Expecting ','", "a comma or a closing bracket is missing"),
    ("Expecting ':'", "a colon follows each key"),
    ("Unterminated string", "a quotation mark is missing"),
    ("Invalid control character", "write a line break as \\n"),
    ("Invalid \\", "write a backslash as \\\\"),
    ("Extra data", "a file holds one object"),
)


@dataclass(frozen=True, slots=True)
class _Unusable:
    """A number that is none, or too large for a computer; refused as soon as its key is known."""

    digits: str
    problem: str = "not a finite number"


def read_json_object(path: Path) -> dict[str, object]:
    """Reads a file that holds one JSON object, in UTF-8 (a byte order mark is allowed).

    Raises:
        InputError: The file is missing, unreadable, not a regular file, larger than 8 MiB or not UTF-8, or
            its content is not one JSON object.
    """
    text = read_json_text(path, max_bytes=MAX_FILE_BYTES)
    return parse_json_object(text, where=printable(str(path)))


def read_json_text(path: Path, *, max_bytes: int) -> str:
    """Reads a regular file of UTF-8 text (a byte order mark is allowed) of bounded size.

    Raises:
        InputError: The file is missing, unreadable, not a regular file, too large or not UTF-8.
    """
    where = printable(str(path))
    raw = _read_bytes(path, where, max_bytes)
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = raw[: error.start].count(b"\n") + 1
        raise InputError("is not UTF-8", where=f"{where}:{line}", hint="save it as UTF-8") from error


def parse_json_object(text: str, *, where: str) -> dict[str, object]:
    """Parses a text that holds one JSON object.

    Args:
        text: The JSON text.
        where: The file, for messages.

    Raises:
        InputError: The text is not JSON (with line and column), nests too deeply, repeats a key, holds a
            number that is not finite, or is not an object.
    """
    if not text.strip():
        raise InputError("is empty", where=where, hint="a JSON object starts with '{'")
    try:
        value = json.loads(
            text,
            object_pairs_hook=lambda pairs: _object(pairs, where),
            parse_constant=_Unusable,
            parse_float=_finite,
            parse_int=_whole,
        )
    except json.JSONDecodeError as error:
        if not text[: error.pos].strip() and text[error.pos].isprintable() and text[error.pos] not in '"[{':
            begins = text[error.pos :].split(maxsplit=1)[0][:40]
            raise InputError(
                f"is not JSON: it begins with {begins!r}",
                where=f"{where}:{error.lineno}",
                hint="a JSON object starts with '{'",
            ) from error
        place = f"{where}:{error.lineno}:{error.colno}"
        hint = next((fix for start, fix in _FIXES if error.msg.startswith(start)), None)
        raise InputError(f"broken JSON: {error.msg}", where=place, hint=hint) from error
    except RecursionError as error:
        raise InputError("nests too deeply", where=where) from error
    if not isinstance(value, dict):
        raise InputError("is not a JSON object", where=where, hint="it must start with '{'")
    return value


def printable(text: str) -> str:
    """Returns the text on one line, without characters that a terminal would obey."""
    return "".join(c if c.isprintable() else "?" for c in text)


def _read_bytes(path: Path, where: str, max_bytes: int) -> bytes:
    try:
        mode = path.stat().st_mode
        if not stat.S_ISREG(mode):
            kind = next((name for test, name in _KINDS if test(mode)), "something else")
            raise InputError(f"is {kind}, not a regular file", where=where)
        with path.open("rb") as file:
            raw = file.read(max_bytes + 1)
    except OSError as error:
        hint = _nearby(path) if isinstance(error, FileNotFoundError) else None
        raise InputError(f"cannot be read: {error.strerror or error}", where=where, hint=hint) from error
    except InputError:
        raise
    except ValueError as error:  # a path with a NUL or a lone surrogate
        raise InputError("is not a path", where=where) from error
    if len(raw) > max_bytes:
        limit = max_bytes // 1024**2
        raise InputError(f"is larger than {limit} MiB", where=where)
    return raw


def _nearby(path: Path) -> str | None:
    from tangram.yaml_reader import nearby  # and with it the YAML library, which most models do not need

    return nearby(path)


def _object(pairs: list[tuple[str, object]], where: str) -> dict[str, object]:
    values: dict[str, object] = {}
    for key, value in pairs:
        if key in values:
            raise InputError(f"the key {key[:80]!r} occurs twice", where=where, hint="remove one of them")
        if isinstance(value, list | _Unusable):
            _refuse_unusable(value, f"{where}: {key[:80]}")
        values[key] = value
    return values


def _refuse_unusable(value: list[object] | _Unusable, where: str) -> None:
    """Objects inside of the list have been looked through when they were read."""
    if isinstance(value, _Unusable):
        raise InputError(f"{value.digits[:40]} is {value.problem}", where=where)
    for idx, item in enumerate(value):
        if isinstance(item, list | _Unusable):
            _refuse_unusable(item, f"{where}[{idx}]")


def _finite(digits: str) -> float | _Unusable:
    value = float(digits)
    return value if math.isfinite(value) else _Unusable(digits)


def _whole(digits: str) -> int | _Unusable:
    try:
        return int(digits)
    except ValueError:  # thousands of digits, which take int() long
        return _Unusable(digits, f"the beginning of a number of {len(digits)} digits, which are too many")
