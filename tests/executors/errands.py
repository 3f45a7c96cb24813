"""Errands for workers: they leave a mark per call in a folder, and some of them end their process."""

from __future__ import annotations

import os
import signal
import time
import uuid
from collections.abc import Sequence
from pathlib import Path

from tangram.parallelizers.protocols import Capabilities, SlicePlan, SliceRequest
from tangram.parallelizers.uniform import UniformPlanner


def mark(folder: str, name: str) -> int:
    """Leaves one more mark of this name; returns how many there are now."""
    path = Path(folder) / f"{name}.{os.getpid()}.{uuid.uuid4().hex}"
    path.touch()
    return len(marks(folder, name))


def marks(folder: str | Path, name: str) -> list[int]:
    """Returns the process of every mark of this name."""
    return [int(path.name.split(".")[1]) for path in sorted(Path(folder).glob(f"{name}.*"))]


def is_first(folder: str, name: str) -> bool:
    """Whether no process has asked this before; the one that has stands in the file of that name."""
    try:
        with (Path(folder) / name).open("x") as file:
            file.write(str(os.getpid()))
    except FileExistsError:
        return False
    return True


def killed() -> None:
    """Ends this process as a kill from outside does: no clean-up, no last word."""
    os.kill(os.getpid(), signal.SIGKILL)


def squares(folder: str, items: Sequence[int]) -> list[int]:
    for item in items:
        mark(folder, str(item))
    return [item * item for item in items]


def squares_after_a_death(folder: str, victim: int, items: Sequence[int]) -> list[int]:
    """The first worker that meets ``victim`` dies of it."""
    for item in items:
        mark(folder, str(item))
        if item == victim and is_first(folder, "killed"):
            killed()
    return [item * item for item in items]


def squares_but_one(victim: int, items: Sequence[int]) -> list[int]:
    """Every worker that meets ``victim`` dies of it."""
    if victim in items:
        killed()
    return [item * item for item in items]


def leaves(code: int, items: Sequence[int]) -> list[int]:
    os._exit(code)


def raises(items: Sequence[int]) -> list[int]:
    raise LookupError(f"no luck with {items[0]}")


def sleeps(folder: str, items: Sequence[float]) -> list[float]:
    for item in items:
        mark(folder, "asleep")
        time.sleep(item)
    return list(items)


class Mortal(UniformPlanner):
    """``uniform``, but the worker that answers its ``deadly``-th question is killed. Each answer takes a
    moment, so that others are at work then. In the process that made it, it never dies.
    """

    name = "mortal"
    capabilities = Capabilities(seconds_per_query=2.0)

    def __init__(self, folder: str, deadly: int, seconds: float = 0.01) -> None:
        self.folder, self.deadly, self.seconds, self.home = folder, deadly, seconds, os.getpid()

    def plan(self, request: SliceRequest) -> Sequence[SlicePlan]:
        if os.getpid() != self.home:
            time.sleep(self.seconds)
            if mark(self.folder, "asked") >= self.deadly and is_first(self.folder, "killed"):
                killed()
        return super().plan(request)


class Deadly(UniformPlanner):
    """``uniform``, but every process that is asked about the embedding on one GPU dies of it."""

    name = "deadly"
    capabilities = Capabilities(seconds_per_query=2.0)

    def __init__(self) -> None:
        self.home = os.getpid()

    def plan(self, request: SliceRequest) -> Sequence[SlicePlan]:
        if os.getpid() != self.home and request.stop == request.portion.num_gpus == 1:
            killed()
        return super().plan(request)
