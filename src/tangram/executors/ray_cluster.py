"""Runs errands on a Ray cluster (the extra ``ray``); the only module that imports it.

What items share is put into Ray's object store once per errand; every chunk is a task of one CPU. Ray's own
retries are off: whoever asked keeps what came back, and asks again what a dead worker, or a dead node, had in
hand, and Ray puts that elsewhere. What cannot be had from the cluster, because the connection is gone or
every worker died of it, is asked in a process of this machine in the end.

Nodes need the same version of Tangram; a parallelizer that reads the environment, or files, reads those of
its node. With equal versions of Python's packages on equal kinds of CPU, results are equal to the last bit.
"""

from __future__ import annotations

import logging
import os
import pickle
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

from tangram._version import VERSION
from tangram.errors import InputError
from tangram.executors.crew import Chunk, Died, Done, attempt, cut_chunks, share_out
from tangram.executors.processes import ProcessExecutor
from tangram.executors.protocol import Errand, Item, Lost, Result

# Ray would connect to whatever it finds when a connection is lost, in the middle of an errand.
os.environ.setdefault("RAY_ENABLE_AUTO_CONNECT", "0")

try:
    import ray
    from ray.exceptions import RayError, RayTaskError
except ImportError as error:
    raise InputError(
        "Ray is not installed", where="--executor", hint="pip install 'tangram-llm[ray]', or processes"
    ) from error

_WAIT_S = 1.0  # between two looks at the clock of signals: Ray's own waiting does not always see them


class RayExecutor:
    """Runs errands on a Ray cluster.

    Args:
        address: ``ray://host:port``; None for ``RAY_ADDRESS``, and without that for a new one on this
            machine, which ends with the executor.
        report: Called with a line when a worker dies.

    Raises:
        InputError: There is no such cluster, or its Tangram is of another version.
    """

    def __init__(self, address: str | None = None, report: Callable[[str], None] | None = None) -> None:
        self._report = report
        self._is_ours = not ray.is_initialized()
        if self._is_ours:
            _connect(address)
        self._fallback: ProcessExecutor | None = None
        self._is_gone = False
        try:
            self._task = ray.remote(max_retries=0, num_cpus=1)(_attempt)
            _check_version(self._task)
        except BaseException:
            self.close()
            raise

    def run(self, errand: Errand[Item, Result]) -> list[Result | Lost]:
        """Shares the items out over the cluster.

        Raises:
            InputError: A worker lacks the module of what it is asked about.
            InternalError: The function raised.
        """
        results: list[Result | Lost] = [Lost("not asked yet")] * len(errand.items)
        crew = self._crew(errand)
        if crew is not None and errand.items:
            chunks = cut_chunks(len(errand.items), crew.num_workers, errand.seconds_each)
            results = share_out(crew, errand, chunks)
            self._is_gone = bool(crew.gone)
        lost = [place for place, result in enumerate(results) if isinstance(result, Lost)]
        if lost:
            items = [errand.items[place] for place in lost]
            again: list[Result | Lost] = self._here().run(replace(errand, items=items))
            for place, result in zip(lost, again, strict=True):
                results[place] = result
        return results

    def close(self) -> None:
        """Disconnects; a cluster that was started for this executor ends."""
        if self._fallback is not None:
            self._fallback.close()
            self._fallback = None
        if self._is_ours:
            ray.shutdown()
            self._is_ours = False

    def _crew(self, errand: Errand[Item, Result]) -> _RayCrew | None:
        """The cluster, told of an errand; None when it is gone."""
        if self._is_gone:
            return None
        try:
            num_workers = int(ray.cluster_resources().get("CPU", 1))
            common = ray.put(pickle.dumps((errand.function, errand.shared)))
        except Exception as error:
            self._is_gone = True
            self._told(_gone(error))
            return None
        return _RayCrew(self._task, common, errand.items, num_workers, self._told)

    def _here(self) -> ProcessExecutor:
        if self._fallback is None:
            self._fallback = ProcessExecutor()
        return self._fallback

    def _told(self, line: str) -> None:
        if self._report is not None:
            self._report(line)


@dataclass(frozen=True, slots=True)
class _Stranger:
    """A worker that lacks a module, or has another version of it.

    Attributes:
        said: What Python says of it.
    """

    said: str


@dataclass(slots=True, eq=False)
class _RayCrew:
    """A cluster at work on one errand; whoever dies, and comes back, is Ray's affair.

    A lost connection makes Ray's functions raise anything, ``Exception`` itself included.

    Attributes:
        task, common, items: The function of workers, and what it is given.
        num_workers: CPUs of the cluster, now.
        report: Called with a line when something dies.
        gone: Why nothing more can be had from the cluster; empty while something can.
    """

    task: Any
    common: Any
    items: Sequence[Any]
    num_workers: int
    report: Callable[[str], None]
    gone: str = ""
    _sent: dict[Any, Chunk] = field(default_factory=dict)
    _unsent: list[Chunk] = field(default_factory=list)

    def send(self, chunk: Chunk) -> None:
        if not self.gone:
            try:
                ref = self.task.remote(self.common, pickle.dumps([self.items[place] for place in chunk]))
            except Exception as error:
                self._lose(error)
            else:
                self._sent[ref] = chunk
                return
        self._unsent.append(chunk)

    def receive(self) -> tuple[Chunk, Done | Died]:
        ready: list[Any] = []
        while not ready and not self.gone:
            try:
                ready, _ = ray.wait(list(self._sent), num_returns=1, timeout=_WAIT_S)
            except Exception as error:
                self._lose(error)
        if self.gone:
            return self._unsent.pop(), Died(self.gone)
        chunk = self._sent.pop(ready[0])
        try:
            done = ray.get(ready[0])
        except RayTaskError as error:
            return chunk, Done(None, str(error))
        except RayError as error:
            self.report(f"a Ray worker died; what it had in hand is asked again: {_line(error)}")
            return chunk, Died(_line(error))
        except Exception as error:
            self._lose(error)
            return chunk, Died(self.gone)
        if isinstance(done, _Stranger):
            raise InputError(
                f"a worker of the Ray cluster cannot read the question: {done.said}",
                where="--executor",
                hint="install the parallelizer's package, in this version, on each of its nodes",
            )
        return chunk, done

    def abandon(self) -> None:
        for ref in self._sent:
            with suppress(Exception):
                ray.cancel(ref, force=True)
        self._sent.clear()

    def _lose(self, error: Exception) -> None:
        self.gone = _gone(error)
        self.report(self.gone)
        self._unsent += self._sent.values()
        self._sent.clear()


def _attempt(common: bytes, items: bytes) -> Done | _Stranger:
    """In a worker: does a chunk, if what it is about is known here."""
    try:
        function, shared = pickle.loads(common)
        return attempt(function, shared, pickle.loads(items))
    except (ImportError, AttributeError) as error:
        return _Stranger(_line(error))


def _connect(address: str | None) -> None:
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # A planner tells nobody that it was used.
    chosen = address or os.environ.get("RAY_ADDRESS") or "local"
    local = {"include_dashboard": False} if chosen == "local" else {}
    try:
        ray.init(chosen, log_to_driver=False, logging_level=logging.ERROR, **local)
    except Exception as error:  # Ray raises all sorts: ConnectionError, RuntimeError, TimeoutError ...
        raise InputError(
            f"no Ray cluster at {chosen}: {_line(error)}",
            where="--executor",
            hint="ray://HOST:PORT of its client server (ray start --head opens port 10001), or processes",
        ) from error


def _check_version(task: Any) -> None:
    hint = f"pip install tangram-llm=={VERSION} on each of its nodes"
    try:
        done = ray.get(task.remote(pickle.dumps((_versions, ())), pickle.dumps([None])))
    except Exception as error:
        raise InputError(
            f"Tangram does not run on the Ray cluster: {_line(error)}", where="--executor", hint=hint
        ) from error
    theirs = done.said if isinstance(done, _Stranger) else done.results[0]
    if theirs != VERSION:
        raise InputError(
            f"the Ray cluster has Tangram {theirs}, this is {VERSION}", where="--executor", hint=hint
        )


def _versions(items: Sequence[None]) -> list[str]:
    return [VERSION for _ in items]


def _gone(error: Exception) -> str:
    return f"the Ray cluster is gone, the rest is asked on this machine: {_line(error)}"


def _line(error: BaseException) -> str:
    """The last line of what an error says: Ray's errors begin with a page of traceback."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[-1] if lines else type(error).__name__
