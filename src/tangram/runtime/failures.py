"""How a rank tells its launcher why it failed: in a file, which tells the first failure from its echoes."""

from __future__ import annotations

import json
import time
import traceback
from dataclasses import asdict, dataclass
from pathlib import Path

from tangram.errors import TangramError

_LOST = (
    "Connection closed by peer",
    "Connection reset by peer",
    "Connection refused",
    "imed out",
    "remote process",
)
"""What gloo and NCCL say of a process that is not there, or no longer."""


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a rank failed.

    Attributes:
        time_ns: When, by the clock of the host.
        exit_code: Of the process: 2 where the user can mend it.
        message, where, hint: As of :class:`~tangram.errors.TangramError`.
        details: The traceback, where it is no error of that kind.
    """

    time_ns: int
    exit_code: int
    message: str
    where: str | None = None
    hint: str | None = None
    details: str = ""

    @property
    def is_echo(self) -> bool:
        """Whether it only says that another rank is gone."""
        return any(words in self.message for words in _LOST)


def failure_of(error: BaseException) -> Failure:
    """Returns what is to be told of an error."""
    if isinstance(error, TangramError):
        return Failure(time.time_ns(), error.exit_code, error.message, error.where, error.hint)
    first = str(error).partition("\n")[0]
    details = "".join(traceback.format_exception(error))
    return Failure(time.time_ns(), 1, f"{type(error).__name__}: {first}", details=details)


def write_failure(path: Path, failure: Failure) -> None:
    """Writes it at once, so that nobody reads half of it."""
    part = path.with_suffix(".part")
    part.write_text(json.dumps(asdict(failure)), encoding="utf-8")
    part.replace(path)


def read_failure(path: Path) -> Failure | None:
    """Returns what a rank wrote, or None where it wrote nothing."""
    try:
        return Failure(**json.loads(path.read_text(encoding="utf-8")))
    except FileNotFoundError:
        return None
