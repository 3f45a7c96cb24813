"""Starts the ranks of this host, watches over them, and ends all of them together.

The launcher holds the store that ranks meet at, so there is no port to guess. Every rank is a process of its
own session, so that a Ctrl-C reaches the launcher alone: it asks the ranks to stop after the step that they
are in, and ends those that do not. When a rank dies, the others wait for it in vain; they are ended, and the
error of the one that died first is shown. When the launcher dies, a pipe closes, and the ranks end themselves
(:mod:`tangram.runtime.lifeline`).
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from tangram.errors import InputError, TangramError
from tangram.runtime.failures import Failure, read_failure
from tangram.runtime.place import HostShare

GRACE_S = 30.0
"""How long ranks may take to finish their step after Ctrl-C."""
KILL_S = 5.0
"""How long they may take to end when they are told to."""
LAST_WORDS_S = 2.0
"""Within this time the first rank to fail may still be telling why, while others have found it gone."""
_POLL_S = 0.05
_LAST_LINES = 30

EXIT_INTERRUPTED = 130


class RankDiedError(TangramError):
    """A rank ended with an error that was not the user's."""

    exit_code = 1


@dataclass(slots=True)
class _Child:
    """One rank's process.

    Attributes:
        rank: In the plan.
        words: Where it runs, for people.
        process: It.
        stderr: What it said, where it does not say it on the terminal.
        failure: The file in which it says why it failed.
    """

    rank: int
    words: str
    process: subprocess.Popen[bytes]
    stderr: Path | None
    failure: Path


@dataclass(slots=True)
class Launcher:
    """Runs the ranks of one machine.

    Attributes:
        share: The ranks.
        command: Of a rank, after the interpreter's name.
        environ: Variables for all ranks, besides those of this process.
        port: Of the store, which the caller holds.
        words: Of a rank, where it runs, for people.
        grace_s, kill_s: How long ranks may take to stop, and to end.
    """

    share: HostShare
    command: Sequence[str]
    environ: dict[str, str]
    port: int
    words: Callable[[int], str]
    grace_s: float = GRACE_S
    kill_s: float = KILL_S
    _children: list[_Child] = field(default_factory=list)

    def run(self) -> int:
        """Starts all ranks and waits until they are done; returns the exit code.

        Raises:
            InputError: A rank refused what the user gave, with the rank's message.
            RankDiedError: A rank failed in another way.
        """
        with tempfile.TemporaryDirectory(prefix="tangram-run-") as folder:
            read_end, write_end = os.pipe()
            try:
                for local_rank in range(len(self.share.slots)):
                    self._start(local_rank, Path(folder), read_end)
                return self._wait()
            finally:
                self._end_all()
                os.close(read_end)
                os.close(write_end)

    def _start(self, local_rank: int, folder: Path, lifeline: int) -> None:
        rank, world = self.share.slots[local_rank].rank, str(len(self.share.slots))
        failure = folder / f"failure-{rank}.json"
        environ = os.environ | {
            "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1"),
            "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
            **self.environ,
            "RANK": str(local_rank),
            "LOCAL_RANK": str(local_rank),
            "GROUP_RANK": "0",
            "WORLD_SIZE": world,
            "LOCAL_WORLD_SIZE": world,
            "GROUP_WORLD_SIZE": "1",
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(self.port),
            "TORCHELASTIC_USE_AGENT_STORE": "True",
            "TANGRAM_LIFELINE": str(lifeline),
            "TANGRAM_FAILURE": str(failure),
        }
        # The first rank shows the table. What the others say is for those who ask why one of them died.
        stderr = None if rank == 0 else folder / f"stderr-{rank}.txt"
        with ExitStack() as stack:
            process = subprocess.Popen(
                [sys.executable, *self.command],
                env=environ,
                stdin=subprocess.DEVNULL,
                stdout=None if rank == 0 else subprocess.DEVNULL,
                stderr=None if stderr is None else stack.enter_context(stderr.open("wb")),
                pass_fds=[lifeline],
                start_new_session=True,
            )
        self._children.append(_Child(rank, self.words(rank), process, stderr, failure))

    def _wait(self) -> int:
        """Waits for the end of all, or of the first that fails."""
        interrupts, deadline = 0, None
        while True:
            try:
                codes = [child.process.poll() for child in self._children]
                if any(codes):
                    return self._failed()
                if None not in codes:
                    return EXIT_INTERRUPTED if interrupts else 0
                if deadline is not None and time.monotonic() > deadline:
                    raise KeyboardInterrupt
                time.sleep(_POLL_S)
            except KeyboardInterrupt:
                interrupts += 1
                if interrupts > 1:
                    raise
                deadline = time.monotonic() + self.grace_s
                print(
                    "\ninterrupted: the ranks stop after this step (again: at once)",
                    file=sys.stderr,
                    flush=True,
                )
                self._signal(signal.SIGINT)

    def _failed(self) -> int:
        """Ends the others and says what happened to the first."""
        until = time.monotonic() + LAST_WORDS_S
        while time.monotonic() < until and any(child.process.poll() is None for child in self._children):
            heard = [read_failure(child.failure) for child in self._children]
            if any(failure is not None and not failure.is_echo for failure in heard):
                break
            time.sleep(_POLL_S)
        dead = [child for child in self._children if child.process.poll()]
        # One that has told why may still be on its way out.
        told = {child.rank: read_failure(child.failure) for child in self._children}
        found = [(child, failure) for child in self._children if (failure := told[child.rank]) is not None]
        self._end_all()
        silent = [child for child in dead if told[child.rank] is None]
        # What was killed from outside, for want of memory for example, comes before all complaints; but NCCL
        # aborts processes whose partner is gone.
        killed = [child for child in silent if child.process.returncode != -signal.SIGABRT]
        if killed or not found:
            raise _death((killed or silent)[0], None)
        child, failure = min(found, key=lambda pair: (pair[1].is_echo, pair[1].time_ns))
        if failure.exit_code == InputError.exit_code:
            raise InputError(failure.message, where=failure.where, hint=failure.hint)
        raise _death(child, failure)

    def _signal(self, number: signal.Signals) -> None:
        for child in self._children:
            if child.process.poll() is None:
                child.process.send_signal(number)

    def _end_all(self) -> None:
        self._signal(signal.SIGTERM)
        until = time.monotonic() + self.kill_s
        for child in self._children:
            try:
                child.process.wait(max(until - time.monotonic(), 0))
            except subprocess.TimeoutExpired:
                child.process.kill()
                child.process.wait()


def _death(child: _Child, failure: Failure | None) -> RankDiedError:
    code = child.process.returncode
    if failure is not None:
        how = f"failed: {failure.message}"
    elif code < 0:
        how = f"was ended by {signal.Signals(-code).name}"
    else:
        how = f"ended with exit code {code}"
    text = failure.details if failure is not None else _last_lines(child.stderr)
    if text:
        print(text, file=sys.stderr)
    hint = "out of host memory, most likely" if code == -signal.SIGKILL else None
    return RankDiedError(f"rank {child.rank} {how}; the others were ended", where=child.words, hint=hint)


def _last_lines(path: Path | None) -> str:
    if path is None:
        return ""
    lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    return "\n".join(lines[-_LAST_LINES:])
