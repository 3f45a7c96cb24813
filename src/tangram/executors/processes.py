"""Runs errands in processes of this machine.

Every worker has a pipe of its own, so it is known which one died and what it had in hand; another takes its
place. Processes are spawned, not forked: they are the same on every system, and inherit no locks. They ignore
Ctrl-C, which a terminal sends to all of them: what it means is this process's affair.
"""

from __future__ import annotations

import atexit
import multiprocessing
import os
import pickle
import signal
import sys
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from types import FrameType
from typing import Any, cast

from tangram.errors import InputError
from tangram.executors.crew import Chunk, Died, Done, attempt, cut_chunks, share_out
from tangram.executors.protocol import Errand, Item, Lost, Result

_READY = "ready"
_GRACE_S = 5.0  # for a worker to end by itself, and with it what it started, before it is killed


@dataclass(slots=True, eq=False)
class _Worker:
    """One process.

    Attributes:
        process, pipe: It, and the way to it.
        is_ready: Whether it has started.
        errand: Number of the errand that it has been told of.
        chunk: What it has in hand.
    """

    process: SpawnProcess
    pipe: Connection
    is_ready: bool = False
    errand: int = 0
    chunk: Chunk | None = None


class ProcessExecutor:
    """Runs errands in spawned processes, which start with the first errand and serve all of them.

    Args:
        num_workers: How many; 0 for one per core.
    """

    def __init__(self, num_workers: int = 0) -> None:
        self.num_workers = num_workers or os.cpu_count() or 1
        self._workers: list[_Worker] = []
        self._errands = 0

    def run(self, errand: Errand[Item, Result]) -> list[Result | Lost]:
        """Shares the items out; a single worker, or a single item, is not worth the way and stays here.

        Raises:
            InputError: Processes cannot be started.
            InternalError: The function raised.
        """
        if not errand.items:
            return []
        chunks = cut_chunks(len(errand.items), self.num_workers, errand.seconds_each)
        if not self._workers:
            atexit.register(self.close)
        self._errands += 1
        common = pickle.dumps((errand.function, errand.shared))
        crew = _ProcessCrew(
            self._workers, min(self.num_workers, len(chunks)), self._errands, common, errand.items
        )
        return share_out(crew, errand, chunks)

    def close(self) -> None:
        """Ends the processes, and gives those that are busy a moment to end what they started."""
        workers, self._workers = self._workers, []
        for worker in workers:
            _dismiss(worker)
        for worker in workers:
            _end(worker)
        atexit.unregister(self.close)


@dataclass(slots=True, eq=False)
class _ProcessCrew:
    """Processes at work on one errand; those that die are replaced while there is work for them."""

    workers: list[_Worker]
    num_workers: int
    errand: int
    common: bytes
    items: Any
    _waiting: deque[Chunk] = field(default_factory=deque)

    def send(self, chunk: Chunk) -> None:
        self._waiting.append(chunk)

    def receive(self) -> tuple[Chunk, Done | Died]:
        while True:
            self._hand_out()
            by_pipe = {w.pipe: w for w in self.workers if w.chunk is not None or not w.is_ready}
            for pipe in wait(list(by_pipe)):
                back = self._heard(by_pipe[cast(Connection, pipe)])
                if back is not None:
                    return back

    def abandon(self) -> None:
        self._waiting.clear()
        busy = [worker for worker in self.workers if worker.chunk is not None]
        for worker in busy:
            self.workers.remove(worker)
            _dismiss(worker)
        for worker in busy:
            _end(worker)

    def _hand_out(self) -> None:
        while len(self.workers) < self.num_workers and len(self._waiting) > self._num_starting():
            self.workers.append(_started())
        for worker in list(self.workers):
            if self._waiting and worker.is_ready and worker.chunk is None:
                chunk = self._waiting.popleft()
                common = None if worker.errand == self.errand else self.common
                try:
                    worker.pipe.send((common, [self.items[place] for place in chunk]))
                except OSError:  # It died while it had nothing to do.
                    self._waiting.appendleft(chunk)
                    self._buried(worker)
                    continue
                worker.errand, worker.chunk = self.errand, chunk

    def _num_starting(self) -> int:
        return sum(not worker.is_ready for worker in self.workers)

    def _heard(self, worker: _Worker) -> tuple[Chunk, Done | Died] | None:
        try:
            message = worker.pipe.recv()
        except (EOFError, OSError):
            chunk, was_ready = worker.chunk, worker.is_ready
            how = self._buried(worker)
            if not was_ready:
                raise _unstartable(how) from None
            return None if chunk is None else (chunk, Died(how))
        if not worker.is_ready:
            worker.is_ready = True
            return None
        chunk, worker.chunk = worker.chunk, None
        assert chunk is not None
        return chunk, message

    def _buried(self, worker: _Worker) -> str:
        self.workers.remove(worker)
        code = _end(worker)
        if code is not None and code < 0:
            return f"ended by {signal.Signals(-code).name}"
        return f"ended with exit code {code}"


def _started() -> _Worker:
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_serve, args=(theirs,))
    try:
        process.start()
    except (RuntimeError, OSError) as error:  # RuntimeError: a script without a guard, run by its own worker.
        raise _unstartable(str(error).strip().splitlines()[0]) from error
    theirs.close()
    return _Worker(process, ours)


def _unstartable(how: str) -> InputError:
    return InputError(
        f"worker processes cannot be started: {how}",
        where="--executor",
        hint="inline needs none; a script that calls tangram.plan needs if __name__ == '__main__' around it",
    )


def _dismiss(worker: _Worker) -> None:
    """Asks a worker to end: one without work at the end of its pipe, a busy one by a signal."""
    worker.pipe.close()
    if worker.chunk is not None or not worker.is_ready:
        worker.process.terminate()


def _end(worker: _Worker) -> int | None:
    """Waits for the end of a worker; returns its exit code."""
    worker.pipe.close()
    worker.process.join(_GRACE_S)
    if worker.process.exitcode is None:
        worker.process.kill()
        worker.process.join()
    code = worker.process.exitcode
    worker.process.close()
    return code


def _serve(pipe: Connection) -> None:
    """A worker's life: answers until the other end closes."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, _leave)
    function: Callable[..., Any] = _no_function
    shared: tuple[Any, ...] = ()
    try:
        pipe.send(_READY)
        while True:
            common, items = pipe.recv()
            if common is not None:
                function, shared = pickle.loads(common)
            pipe.send(attempt(function, shared, items))
    except (EOFError, OSError):
        return


def _no_function(*unused: object) -> list[object]:
    raise AssertionError("a chunk came before its errand")


def _leave(number: int, frame: FrameType | None) -> None:
    """Ends a worker in order, so that programs it runs are ended too."""
    sys.exit(128 + number)
