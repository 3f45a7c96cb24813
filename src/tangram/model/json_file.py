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
        raise InputError(
            f"is not UTF-8 (byte {error.start})", where=where, hint="save it as UTF-8"
        ) from error


def parse_json_object(text: str, *, where: str) -> dict[str, object]:
    """Parses a text that holds one JSON object.

    Args:
        text: The JSON text.
        where: The file, for messages.

    Raises:
        InputError: The text is not JSON (with line and column), nests too deeply, repeats a key, holds a
            number that is not finite, or is not an object.
    """
    try:
        value = json.loads(
            text,
            object_pairs_hook=lambda pairs: _object(pairs, where),
            parse_constant=lambda name: _refuse_number(name, where),
            parse_float=lambda digits: _finite(digits, where),
        )
    except json.JSONDecodeError as error:
        place = f"{where}:{error.lineno}:{error.colno}"
        raise InputError(f"broken JSON: {error.msg}", where=place) from error
    except RecursionError as error:
        raise InputError("nests too deeply", where=where) from error
    except InputError:
        raise
    except ValueError as error:  # int() refuses thousands of digits
        raise InputError("holds a number with too many digits", where=where) from error
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
        raise InputError(f"cannot be read: {error.strerror or error}", where=where) from error
    except InputError:
        raise
    except ValueError as error:  # a path with a NUL or a lone surrogate
        raise InputError("is not a path", where=where) from error
    if len(raw) > max_bytes:
        limit = max_bytes // 1024**2
        raise InputError(f"is larger than {limit} MiB", where=where)
    return raw


def _object(pairs: list[tuple[str, object]], where: str) -> dict[str, object]:
    values: dict[str, object] = {}
    for key, value in pairs:
        if key in values:
            raise InputError(f"the key {key[:80]!r} occurs twice", where=where, hint="remove one of them")
        values[key] = value
    return values


def _finite(digits: str, where: str) -> float:
    value = float(digits)
    if not math.isfinite(value):
        _refuse_number(digits, where)
    return value


def _refuse_number(name: str, where: str) -> None:
    raise InputError(f"{name[:40]} is not a finite number", where=where)
