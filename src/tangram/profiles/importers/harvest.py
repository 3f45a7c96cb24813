"""What an import is given, and what it gathers: records, and what was left out and why."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from tangram.errors import InputError
from tangram.job import Precision
from tangram.model.json_file import printable, read_json_text
from tangram.profiles.peers import ProfiledModel, knows_gpu, profiled_gpu, profiled_model
from tangram.profiles.records import Op, Record

MAX_FILE_BYTES = 64 * 1024**2

_MOST = 1e12  # no figure of any format is near; products with units stay far from overflow

OTHERS = "figures of other GPUs or models than the given ones"


@dataclass(frozen=True, slots=True)
class Given:
    """What the user says of the files; it wins over what they say themselves.

    Attributes:
        gpu: Name of the part.
        model: A preset, a file, or a name that published profiles use.
        seq_len: Tokens per sample.
        precision: Arithmetic of the matrix products.
        stack: Software that ran; by default the format's name.
        link: What joins the ranks, in words.
        op: Which collective a file holds.
    """

    gpu: str | None = None
    model: str | None = None
    seq_len: int | None = None
    precision: Precision | None = None
    stack: str | None = None
    link: str = ""
    op: Op | None = None

    def gpu_name(self, named: str | None, where: str, harvest: Harvest) -> str:
        """Returns the part, as given or as the file or folder calls it.

        Raises:
            InputError: Neither says it, what the file calls it is no known part, or one given name would
                stand for parts that files tell apart.
        """
        if self.gpu is not None:
            harvest.rename("--gpu", self.gpu, named, where)
            with located("--gpu"):
                return profiled_gpu(self.gpu)
        if named is None or not knows_gpu(named):
            problem = "the file does not say which GPU ran"
            if named is not None:
                problem = f"{named!r} names no GPU of the catalogue"
            raise InputError(problem, where=where, hint="give --gpu, for example --gpu A100-80GB-SXM")
        return profiled_gpu(named)

    def profiled_model(self, named: str | None, where: str, harvest: Harvest) -> ProfiledModel:
        """Returns the model, as given or as the file or folder calls it.

        Raises:
            InputError: Neither says it, there is no such model, or one given name would stand for models
                that files tell apart.
        """
        if self.model is not None:
            harvest.rename("--model", self.model, named, where)
            with located("--model"):
                return profiled_model(self.model)
        hint = "give --model: a preset, a config.json, or a name of docs/profiles.md"
        if named is None:
            raise InputError("the file does not say which model ran", where=where, hint=hint)
        try:
            return profiled_model(named)
        except InputError as error:
            raise InputError(f"{named!r} names no known model", where=where, hint=hint) from error

    def seq_len_of(self, model: ProfiledModel, where: str) -> int:
        """Returns the sequence length, as given or as known for the model.

        Raises:
            InputError: Nobody says it.
        """
        found = self.seq_len if self.seq_len is not None else model.seq_len
        if found is None:
            raise InputError(
                "the file does not say how long sequences are", where=where, hint="give --seq-len"
            )
        return found

    def precision_or(self, default: Precision | None, where: str, hint: str) -> Precision:
        """Returns the precision, as given or as the file says.

        Raises:
            InputError: Nobody says it; ``hint`` tells what is known.
        """
        found = self.precision if self.precision is not None else default
        if found is None:
            raise InputError(
                "the file does not say in which precision it was measured",
                where=where,
                hint=f"give --precision; {hint}",
            )
        return found


@dataclass(slots=True)
class Harvest:
    """Records of one import so far, and how many figures were left out for which reason."""

    records: list[Record] = field(default_factory=list)
    left_out: Counter[str] = field(default_factory=Counter)
    renamed: dict[str, str] = field(default_factory=dict)

    def leave_out(self, reason: str, count: int = 1) -> None:
        """Counts figures that do not become records."""
        self.left_out[reason] += count

    def rename(self, option: str, given: str, named: str | None, where: str) -> None:
        """Notes that an option replaces a name that files use; it may replace only one.

        Raises:
            InputError: It replaced another name before.
        """
        if named is not None and self.renamed.setdefault(option, named) != named:
            raise InputError(
                f"{option} {given} cannot stand for both {self.renamed[option]} and {named}",
                where=where,
                hint="import them one after the other",
            )


@contextmanager
def located(where: str) -> Iterator[None]:
    """Adds the place to whatever is refused inside without naming it.

    Raises:
        InputError: What was refused, with ``where`` before the field that it names.
    """
    try:
        yield
    except InputError as error:
        inner = error.where or ""
        if where in inner or inner.startswith("--"):
            raise
        place = f"{where}: {inner}" if inner else where
        raise InputError(error.message, where=place, hint=error.hint) from error


def file_name(path: Path) -> str:
    """Returns a path as it is printed in messages."""
    return printable(str(path))


def read_text(path: Path) -> str:
    """Reads a profile of at most 64 MiB.

    Raises:
        InputError: It is missing, no regular file, not UTF-8 or too large.
    """
    return read_json_text(path, max_bytes=MAX_FILE_BYTES)


def text_number(text: str, where: str, *, least: float = 0.0) -> float:
    """Parses a finite number that stands in a text file.

    Raises:
        InputError: It is no number, not finite, or below ``least``.
    """
    try:
        value = float(text)
    except ValueError:
        raise InputError(f"{text.strip()[:40]!r} is not a number", where=where) from None
    return _checked(value, where, least)


def text_count(text: str, where: str) -> int:
    """Parses a whole number above zero that stands in a text file.

    Raises:
        InputError: It is something else.
    """
    value = text_number(text, where, least=1)
    if value != int(value):
        raise InputError(f"{text.strip()[:40]!r} is not a whole number", where=where)
    return int(value)


def json_number(value: object, where: str, *, least: float = 0.0) -> float:
    """Returns a finite number that stands in a JSON file.

    Raises:
        InputError: It is no number, or below ``least``.
    """
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise InputError(f"is {_kind(value)}, but must be a number", where=where)
    return _checked(_as_float(value), where, least)


def json_object(value: object, where: str) -> Mapping[str, object]:
    """Returns a JSON object.

    Raises:
        InputError: It is something else.
    """
    if not isinstance(value, dict):
        raise InputError(f"is {_kind(value)}, but must be an object", where=where)
    return value


def json_list(value: object, where: str) -> list[object]:
    """Returns a JSON list.

    Raises:
        InputError: It is something else.
    """
    if not isinstance(value, list):
        raise InputError(f"is {_kind(value)}, but must be a list", where=where)
    return value


def _as_float(value: int | float) -> float:
    try:
        return float(value)
    except OverflowError:
        return math.inf


def _checked(value: float, where: str, least: float) -> float:
    if not least <= value <= _MOST:
        raise InputError(f"{value:g} is out of range", where=where, hint=f"legal: {least:g} to {_MOST:g}")
    return value


def _kind(value: object) -> str:
    if value is None:
        return "null"
    names = {bool: "true or false", str: "text", list: "a list", dict: "an object", int: "a number"}
    return names.get(type(value), "a number")
