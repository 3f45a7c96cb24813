"""Runs a program under a time limit, in a process group of its own that does not outlive the call."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

_TAIL_BYTES = 64 * 1024  # Of what a program said, for messages.


class ProgramError(RuntimeError):
    """An external program could not be started, failed, was late, or answered what nobody can read."""


@dataclass(frozen=True, slots=True)
class Finished:
    """How a program ended.

    Attributes:
        code: Exit status; None where it was ended because its time was over.
        said: The end of what it wrote to stderr.
    """

    code: int | None
    said: str

    @property
    def last_line(self) -> str:
        """The last line that it wrote to stderr; of a Python program that failed, its exception."""
        lines = [line.strip() for line in self.said.splitlines() if line.strip()]
        return lines[-1] if lines else "it said nothing"


def run_limited(command: Sequence[str], folder: Path, limit_s: float) -> Finished:
    """Runs a program, and ends it with everything that it started once its time is over.

    Output goes to files in ``folder``: a pipe that a child of the program holds open could block.

    Args:
        command: Program and arguments; no shell is involved.
        folder: Working folder.
        limit_s: Seconds of wall clock.

    Raises:
        ProgramError: It cannot be started.
    """
    said = folder / "stderr.txt"
    with (folder / "stdout.txt").open("wb") as out, said.open("wb") as err:
        try:
            process = subprocess.Popen(
                command,
                cwd=folder,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                start_new_session=True,
            )
        except OSError as error:
            raise ProgramError(f"{command[0]} cannot be started: {error.strerror or error}") from error
        code: int | None
        try:
            code = process.wait(limit_s)
        except subprocess.TimeoutExpired:
            code = None
        finally:
            # Also after an orderly end: nothing that the program left behind runs on.
            _end_group(process)
    return Finished(code, said.read_bytes()[-_TAIL_BYTES:].decode("utf-8", "replace"))


def _end_group(process: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
