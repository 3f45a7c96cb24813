"""One malformed input, what it must be refused with, and how to ask the command line for that."""

from __future__ import annotations

import functools
import io
import json
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import tangram.cli.app as app
from tangram.cli.main import main


@dataclass(frozen=True, slots=True)
class Malformed:
    """A malformed input.

    Attributes:
        name: What is wrong with it.
        argv: The command, run in a folder that holds the files.
        says: What the message must say: place and reason at least.
        files: Names and contents.
        code: The exit code.
    """

    name: str
    argv: tuple[str, ...]
    says: tuple[str, ...]
    files: Mapping[str, str | bytes] = field(default_factory=dict)
    code: int = 2

    def write(self, folder: Path) -> None:
        """Puts the files into a folder."""
        for name, content in self.files.items():
            data = content if isinstance(content, bytes) else content.encode("utf-8", "surrogatepass")
            (folder / name).write_bytes(data)


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a command did: its exit code, what it printed, and the time it took of a processor."""

    code: int
    out: str
    err: str
    cpu_s: float


def run(argv: tuple[str, ...] | list[str]) -> Outcome:
    """Runs a command in this process."""
    out, err = io.StringIO(), io.StringIO()
    started = time.process_time()
    with redirect_stdout(out), redirect_stderr(err):
        code = main(argv)
    return Outcome(code, out.getvalue(), err.getvalue(), time.process_time() - started)


@contextmanager
def commands_built_once() -> Iterator[None]:
    """typer takes longer to build the commands than most of them to refuse a file."""
    build, app.build_command = app.build_command, functools.cache(app.build_command)
    try:
        yield
    finally:
        app.build_command = build


def to_text(data: Any) -> str:
    """A document as JSON, which is YAML too; what is no number may be in it."""
    return json.dumps(data, indent=1) + "\n"


def nested(depth: int) -> str:
    """Lists in lists."""
    return "[" * depth + "]" * depth
