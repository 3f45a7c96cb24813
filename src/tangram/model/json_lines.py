"""Adds the line to what is wrong with the content of a JSON file.

Readers of JSON give values without places, and what is wrong with them is known by field only. So the text is
looked through again, once, when there is something to complain about.

>>> text = '{"a": 1,\\n "kinds": [{},\\n  {"width": 7}]}'
>>> line_of(text, ("kinds", 1, "width"))
3
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from tangram.errors import InputError, UnknownNameError

_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"|[{}\[\],:]|[^\s{}\[\],:"]+', re.DOTALL)
_PART = re.compile(r"\[(\d+)\]|([^.\[\]\s:]+)")
_NO_KEY = re.compile(r"'([^']*)' is no key of ")

Part = str | int


@contextmanager
def lines_named(text: str, where: str) -> Iterator[None]:
    """Gives errors about a field of this file the field's line: ``file: a.b`` becomes ``file:7: a.b``.

    Args:
        text: The file's content, which is JSON.
        where: The file, as errors name it.
    """
    try:
        yield
    except InputError as error:
        field = _field(error, where)
        parts = tuple(int(i) if i else key for i, key in _PART.findall(field))
        unknown = _unknown_key(error)
        parts += () if unknown is None else (unknown,)
        if parts:
            error.where = f"{where}:{line_of(text, parts)}" + (f": {field}" if field else "")
        raise


def line_of(text: str, path: Sequence[Part]) -> int:
    """Returns the line, from 1, of a member's key or of a list's item; where there is none of that path, that
    of the innermost one that there is.
    """
    at, depth = 0, 0
    for position, found in _members(text):
        if len(found) > depth and found == tuple(path[: len(found)]):
            at, depth = position, len(found)
            if depth == len(path):
                break
    return text.count("\n", 0, at) + 1


def _members(text: str) -> Iterator[tuple[int, tuple[Part, ...]]]:
    """Yields where each member or item begins, and its path; outer ones first."""
    path: list[Part] = []
    wants_key: list[bool] = []  # of the open brackets: an object that waits for a key
    for token in _TOKEN.finditer(text):
        word, is_object = token.group(), bool(path) and isinstance(path[-1], str)
        if word in "{[":
            if path and not is_object:
                yield token.start(), tuple(path)
            path.append("" if word == "{" else 0)
            wants_key.append(word == "{")
        elif word in "}]":
            path.pop()
            wants_key.pop()
        elif word == ",":
            if is_object:
                wants_key[-1] = True
            else:
                path[-1] = int(path[-1]) + 1
        elif word != ":" and path:
            if is_object and wants_key[-1]:
                path[-1], wants_key[-1] = json.loads(word, strict=False), False
                yield token.start(), tuple(path)
            elif not is_object:
                yield token.start(), tuple(path)


def _field(error: InputError, where: str) -> str:
    """The field that an error is about; empty for the whole file, or another one."""
    place = error.where or ""
    return place.removeprefix(f"{where}: ") if place.startswith(f"{where}: ") else ""


def _unknown_key(error: InputError) -> str | None:
    if isinstance(error, UnknownNameError):
        return error.name if "key" in error.message.split("'")[0] else None
    found = _NO_KEY.match(error.message)
    return found[1] if found else None
