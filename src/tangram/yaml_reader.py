"""Reads small YAML files written by people, so that every complaint names the file, the line and the field.

The file is read as a stream of parser events and never turned into Python objects by the YAML library. That
keeps out what makes YAML dangerous or surprising: anchors and aliases (which can expand to gigabytes),
tags, merge keys, duplicate keys, deep nesting, and plain words that YAML 1.1 takes for something else
(``no`` for false, ``12:30`` for 750). JSON is YAML, so a JSON file of the same shape works too.
"""

from __future__ import annotations

import re
import stat
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

import yaml

from tangram.errors import InputError, UnknownNameError, nearest

MAX_BYTES = 1024 * 1024
"""Largest file that is read: a description by hand has a few kilobytes."""

MAX_DEPTH = 16
"""Deepest nesting of lists and mappings; our formats need five."""

_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class Kind(StrEnum):
    """What a value is; plain scalars are sorted by what YAML 1.1 or 1.2 readers would take them for."""

    TEXT = "text"
    INTEGER = "whole number"
    NUMBER = "number"
    BOOLEAN = "yes/no value"
    NULL = "empty value"
    DATE = "date"
    AMBIGUOUS = "value that YAML readers disagree about"
    LIST = "list"
    MAPPING = "mapping"


_PLAIN_KINDS = (
    (Kind.NULL, re.compile(r"~|null|Null|NULL|")),
    (Kind.BOOLEAN, re.compile(r"(?:yes|no|on|off|true|false)", re.IGNORECASE)),
    (Kind.INTEGER, re.compile(r"[-+]?(?:0|[1-9][0-9]*)")),
    (Kind.NUMBER, re.compile(r"[-+]?(?:\.[0-9]+|(?:0|[1-9][0-9]*)(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?")),
    (Kind.NUMBER, re.compile(r"[-+]?\.(?:inf|nan)", re.IGNORECASE)),
    (Kind.DATE, re.compile(r"[0-9]{4}-[0-9]{1,2}-[0-9]{1,2}(?:[Tt ].*)?")),
    (
        Kind.AMBIGUOUS,
        re.compile(r"[-+]?0[box]?[0-9a-fA-F_]+|[-+]?[0-9][0-9_]*(?::[0-9]+)*(?:\.[0-9_]*)?|=|<<"),
    ),
)


@dataclass(frozen=True, slots=True)
class Value:
    """One value of a file, with its place.

    Attributes:
        kind: What it is.
        content: The text of a scalar, the values of a list, or the keys and values of a mapping.
        file: The file, as the user wrote it.
        line: Line of the value, or of its key in a mapping; from 1.
        path: The field, for example ``nodes[0].gpu``; empty for the whole file.
    """

    kind: Kind
    content: str | tuple[Value, ...] | Mapping[str, Value]
    file: str
    line: int
    path: str

    @property
    def where(self) -> str:
        """The place for an error: file, line and field."""
        return f"{self.file}:{self.line}" + (f": {self.path}" if self.path else "")

    def mapping(self, *, required: Iterable[str] = (), optional: Iterable[str] = ()) -> Mapping[str, Value]:
        """Returns the members of a mapping.

        Raises:
            InputError: It is no mapping, or a required key is missing.
            UnknownNameError: It has a key that is neither required nor optional.
        """
        members, required = self.content, tuple(required)
        if not isinstance(members, Mapping):
            raise self._wrong_kind("a mapping (key: value)")
        known = [*required, *optional]
        for key, member in members.items():
            if key not in known:
                raise UnknownNameError("key", key, known, where=member.where)
        for key in required:
            if key not in members:
                hint = "needed: " + ", ".join(required)
                raise InputError(f"the key {key!r} is missing", where=self.where, hint=hint)
        return members

    def items(self) -> tuple[Value, ...]:
        """Returns the values of a list.

        Raises:
            InputError: It is no list.
        """
        if not isinstance(self.content, tuple):
            raise self._wrong_kind("a list")
        return self.content

    def text(self, expected: str = "a text") -> str:
        """Returns a text that is not blank, and that no YAML reader takes for a number, date or boolean.

        Args:
            expected: What is expected here, for the error message: ``a bandwidth such as 100Gbit``.

        Raises:
            InputError: It is anything else.
        """
        if self.kind is not Kind.TEXT or not isinstance(self.content, str):
            raise self._wrong_kind(expected, quotable=expected == "a text")
        if not self.content.strip():
            raise InputError("the text is blank", where=self.where)
        return self.content

    def integer(self, low: int, high: int) -> int:
        """Returns a whole number between ``low`` and ``high``, both included.

        Raises:
            InputError: It is no decimal whole number, or out of range.
        """
        if self.kind is not Kind.INTEGER or not isinstance(self.content, str):
            raise self._wrong_kind("a whole number", hint=f"legal: {low} to {high}")
        number = int(self.content) if len(self.content) <= 20 else None
        if number is None or not low <= number <= high:
            raise InputError(
                f"{shorten(self.content)} is out of range", where=self.where, hint=f"legal: {low} to {high}"
            )
        return number

    def _wrong_kind(self, expected: str, *, quotable: bool = False, hint: str | None = None) -> InputError:
        found = f"an {self.kind}" if self.kind is Kind.NULL else f"a {self.kind}"
        if isinstance(self.content, str) and self.content:
            found += f", {shorten(self.content)!r}"
        if quotable and isinstance(self.content, str):
            hint = "put it in quotes if a text is meant"
        return InputError(f"expected {expected}, found {found}", where=self.where, hint=hint)


def shorten(text: str, limit: int = 40) -> str:
    """Returns the text, cut to ``limit`` characters, for an error message."""
    return text if len(text) <= limit else text[: limit - 3] + "..."


def read_yaml(path: str | Path, what: str) -> Value:
    """Reads a YAML (or JSON) file.

    Args:
        path: The file.
        what: What the file should be, for error messages: ``cluster file``.

    Raises:
        InputError: There is no such file, it is not a regular file of UTF-8 text of at most
            :data:`MAX_BYTES`, or it is not YAML as :func:`parse_yaml` accepts it.
    """
    return parse_yaml(_read_text(path, what), str(path))


def parse_yaml(text: str, file: str) -> Value:
    """Parses the text of a YAML (or JSON) file with one document.

    Raises:
        InputError: It is not YAML, is empty, nests too deeply, has several documents, or uses anchors,
            aliases, tags, duplicate keys or keys that are no text. The error names the line.
    """
    builder = _Builder(file)
    try:
        for event in yaml.parse(text, Loader=_LOADER):
            builder.feed(event)
    except yaml.YAMLError as err:
        raise _syntax_error(err, file, text) from None
    if builder.root is None or builder.root.kind is Kind.NULL:
        raise InputError("the file is empty", where=file)
    return builder.root


def read_assumed(value: Value | None) -> list[tuple[str, str]]:
    """Reads the list that marks what the source of a file does not state: pairs of ``what`` and ``why``.

    Args:
        value: The list of mappings, or None where the file has none.

    Raises:
        InputError: An entry lacks one of the two, or they are no texts.
    """
    pairs = []
    for entry in value.items() if value is not None else ():
        members = entry.mapping(required=("what", "why"))
        pairs.append((members["what"].text(), members["why"].text()))
    return pairs


@dataclass(slots=True)
class _Open:
    """A list or mapping whose end has not been read yet."""

    line: int
    path: str
    members: dict[str, Value] | list[Value]
    key: str | None = None
    key_line: int = 0


class _Builder:
    """Builds the tree of values from parser events, with a stack instead of recursion."""

    def __init__(self, file: str) -> None:
        self.file = file
        self.root: Value | None = None
        self.stack: list[_Open] = []

    def feed(self, event: yaml.Event) -> None:
        """Takes one event."""
        line = (event.start_mark.line if event.start_mark else 0) + 1
        if isinstance(event, yaml.AliasEvent):
            raise self._refusal("aliases (*name) are not accepted", line, "write the value out")
        if isinstance(event, yaml.DocumentStartEvent) and self.root is not None:
            raise self._refusal("a second document begins here", line, "keep one per file")
        if isinstance(event, yaml.CollectionEndEvent):
            self._close()
        elif isinstance(event, yaml.NodeEvent):
            self._refuse_decoration(event, line)
            if isinstance(event, yaml.ScalarEvent):
                self._scalar(event, line)
            else:
                self._open(event, line)

    def _refuse_decoration(self, event: yaml.NodeEvent, line: int) -> None:
        if event.anchor is not None:
            raise self._refusal(
                "anchors (&name) are not accepted", line, "write the value out where it is used"
            )
        tag = getattr(event, "tag", None)
        if tag is not None:
            raise self._refusal(f"the tag {shorten(tag)!r} is not accepted", line, "leave it out")

    def _scalar(self, event: yaml.ScalarEvent, line: int) -> None:
        parent = self.stack[-1] if self.stack else None
        if parent is not None and isinstance(parent.members, dict) and parent.key is None:
            if event.value in parent.members:
                first = parent.members[event.value].line
                raise self._refusal(
                    f"the key {shorten(event.value)!r} is given twice", line, f"first in line {first}"
                )
            parent.key, parent.key_line = event.value, line
            return
        kind = Kind.TEXT if event.style else _plain_kind(event.value)
        self._add(kind, event.value, line, self._path())

    def _open(self, event: yaml.NodeEvent, line: int) -> None:
        if len(self.stack) >= MAX_DEPTH:
            raise self._refusal(f"lists and mappings nest deeper than {MAX_DEPTH}", line, None)
        parent = self.stack[-1] if self.stack else None
        if parent is not None and isinstance(parent.members, dict) and parent.key is None:
            raise self._refusal("a list or mapping cannot be a key", line, "keys are plain words")
        members: dict[str, Value] | list[Value] = {} if isinstance(event, yaml.MappingStartEvent) else []
        self.stack.append(_Open(line, self._path(), members))

    def _close(self) -> None:
        done = self.stack.pop()
        if isinstance(done.members, dict):
            self._add(Kind.MAPPING, done.members, done.line, done.path)
        else:
            self._add(Kind.LIST, tuple(done.members), done.line, done.path)

    def _add(
        self, kind: Kind, content: str | tuple[Value, ...] | Mapping[str, Value], line: int, path: str
    ) -> None:
        if not self.stack:
            self.root = Value(kind, content, self.file, line, path)
            return
        parent = self.stack[-1]
        if isinstance(parent.members, list):
            parent.members.append(Value(kind, content, self.file, line, path))
        elif parent.key is not None:
            parent.members[parent.key] = Value(kind, content, self.file, parent.key_line, path)
            parent.key = None

    def _path(self) -> str:
        """The field of the value that comes next."""
        if not self.stack:
            return ""
        parent = self.stack[-1]
        if isinstance(parent.members, list):
            return f"{parent.path}[{len(parent.members)}]"
        key = shorten(parent.key or "")
        return f"{parent.path}.{key}" if parent.path else key

    def _refusal(self, message: str, line: int, hint: str | None) -> InputError:
        return InputError(message, where=f"{self.file}:{line}", hint=hint)


def _plain_kind(text: str) -> Kind:
    for kind, pattern in _PLAIN_KINDS:
        if pattern.fullmatch(text):
            return kind
    return Kind.TEXT


def _syntax_error(err: yaml.YAMLError, file: str, text: str) -> InputError:
    mark = getattr(err, "problem_mark", None)
    problem = getattr(err, "problem", None) or getattr(err, "reason", None) or "it cannot be parsed"
    if mark is None:
        unprintable = yaml.reader.Reader.NON_PRINTABLE.search(text)
        line = text[: unprintable.start()].count("\n") + 1 if unprintable else 1
        return InputError(f"not valid YAML: {problem}", where=f"{file}:{line}")
    lines = text.splitlines()
    shown = lines[mark.line] if mark.line < len(lines) else ""
    indent = shown[: len(shown) - len(shown.lstrip())]
    hint = "indent with spaces: YAML does not accept tabs" if "\t" in indent else None
    return InputError(
        f"not valid YAML: {problem}", where=f"{file}:{mark.line + 1}:{mark.column + 1}", hint=hint
    )


def _read_text(path: str | Path, what: str) -> str:
    try:
        mode = Path(path).stat().st_mode
    except (OSError, ValueError) as err:
        raise InputError(f"no such {what}", where=str(path), hint=nearby(path)) from err
    if stat.S_ISDIR(mode):
        raise InputError(f"this is a directory, not a {what}", where=str(path), hint=_contents(path))
    if not stat.S_ISREG(mode):
        raise InputError(f"this is not a regular file, so not a {what}", where=str(path))
    try:
        with Path(path).open("rb") as stream:
            data = stream.read(MAX_BYTES + 1)
    except OSError as err:
        reason = err.strerror or type(err).__name__
        raise InputError(f"the {what} cannot be read: {reason}", where=str(path)) from err
    if len(data) > MAX_BYTES:
        raise InputError(f"a {what} has at most {MAX_BYTES // 1024} KiB; this is larger", where=str(path))
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as err:
        line = data[: err.start].count(b"\n") + 1
        raise InputError(f"a {what} is UTF-8 text; this is not", where=f"{path}:{line}") from None


def nearby(path: str | Path) -> str | None:
    """Returns a hint that names files beside a missing one that are spelt nearly alike; None without any."""
    try:
        near = nearest(Path(path).name, [beside.name for beside in Path(path).parent.iterdir()])
    except (OSError, ValueError):
        return None
    return (
        "did you mean " + " or ".join(str(Path(path).parent / name) for name in near) + "?" if near else None
    )


def _contents(path: str | Path) -> str | None:
    try:
        names = sorted(p.name for p in Path(path).iterdir() if p.suffix in (".yaml", ".yml", ".json"))
    except OSError:
        return None
    return "it holds " + ", ".join(names[:8]) + (", ..." if len(names) > 8 else "") if names else None
