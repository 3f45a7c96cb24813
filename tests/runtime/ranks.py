"""A pool of processes that are the ranks of small gloo worlds, reused by all tests of a session.

A case is a function of a test module (it is sent by name) that all its ranks run at once:

    def rank_of_group(rank: int, size: int) -> int: ...

    def test_it(ranks: RankPool) -> None:
        assert ranks.run(3, rank_of_group, 3) == [0, 1, 2]

Every case has a process group of its own, made anew over the first so many processes. What a case gets and
returns is pickled by value, tensors too. A rank that fails or hangs ends the case with its traceback, and
the pool starts anew.
"""

from __future__ import annotations

import multiprocessing
import os
import pickle
import tempfile
import traceback
from collections.abc import Callable
from datetime import timedelta
from multiprocessing.connection import Connection, wait
from pathlib import Path
from time import monotonic
from typing import Any

MOST_RANKS = 6
WAIT_S = 60.0
LAST_WORDS_S = 5.0
"""How long the other ranks of a failed case may take to fail themselves."""


class RankPool:
    """Processes that wait for cases; started when the first case comes."""

    def __init__(self) -> None:
        self._pipes: list[Connection] = []
        self._processes: list[Any] = []
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        self._cases = 0

    def run(self, size: int, case: Callable[..., Any], *args: object, wait_s: float = WAIT_S) -> list[Any]:
        """Runs ``case(rank, *args)`` on the first ``size`` processes; returns what each of them returns."""
        assert 1 <= size <= MOST_RANKS
        if not self._processes:
            self._start()
        assert self._folder is not None
        self._cases += 1
        rendezvous = str(Path(self._folder.name) / f"case-{self._cases}")
        job = pickle.dumps((case, args, size, rendezvous, wait_s))
        for pipe in self._pipes[:size]:
            pipe.send_bytes(job)
        answers = self._answers(size, wait_s)
        failed = [f"rank {rank}:\n{answers[rank][1]}" for rank in sorted(answers) if not answers[rank][0]]
        silent = sorted(set(range(size)) - answers.keys())
        if failed or silent:
            self.close()
            raise AssertionError("\n".join([*failed, f"no answer from ranks {silent}" if silent else ""]))
        return [answers[rank][1] for rank in range(size)]

    def _answers(self, size: int, wait_s: float) -> dict[int, tuple[bool, Any]]:
        """Answers by rank, as far as they come in time; a failure shortens the time of the others."""
        answers: dict[int, tuple[bool, Any]] = {}
        end = monotonic() + wait_s
        while len(answers) < size and (left := end - monotonic()) > 0:
            open_pipes = {pipe: rank for rank, pipe in enumerate(self._pipes[:size]) if rank not in answers}
            for pipe in wait(list(open_pipes), timeout=left):
                rank = open_pipes[pipe]  # type: ignore[index]
                try:
                    answers[rank] = pickle.loads(pipe.recv_bytes())  # type: ignore[union-attr]
                except EOFError:
                    answers[rank] = (False, "the process ended")
                if not answers[rank][0]:
                    end = min(end, monotonic() + LAST_WORDS_S)
        return answers

    def _start(self) -> None:
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(["torch", "torch.distributed.nn.functional"])
        self._folder = tempfile.TemporaryDirectory()
        for rank in range(MOST_RANKS):
            ours, theirs = context.Pipe()
            process = context.Process(target=_serve, args=(rank, theirs), daemon=True)
            process.start()
            theirs.close()
            self._pipes.append(ours)
            self._processes.append(process)

    def close(self) -> None:
        """Ends all processes."""
        for process in self._processes:
            process.kill()
        for process in self._processes:
            process.join()
        for pipe in self._pipes:
            pipe.close()
        if self._folder is not None:
            self._folder.cleanup()
        self._pipes, self._processes, self._folder = [], [], None


def _serve(rank: int, pipe: Connection) -> None:
    """Works on cases until the pool is gone."""
    import torch

    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    torch.set_num_threads(1)
    while True:
        try:
            case, args, size, rendezvous, wait_s = pickle.loads(pipe.recv_bytes())
        except EOFError:
            return
        try:
            answer = (True, _run(rank, case, args, size, rendezvous, wait_s))
        except BaseException:
            answer = (False, traceback.format_exc())
        pipe.send_bytes(pickle.dumps(answer))


def _run(
    rank: int, case: Callable[..., Any], args: tuple[Any, ...], size: int, rendezvous: str, wait_s: float
) -> Any:
    import torch.distributed as dist

    store = dist.FileStore(rendezvous, size)
    dist.init_process_group(
        "gloo", store=store, rank=rank, world_size=size, timeout=timedelta(seconds=wait_s)
    )
    try:
        result = case(rank, *args)
        dist.barrier()  # nobody leaves while others still connect to it
        return result
    finally:
        dist.destroy_process_group()
