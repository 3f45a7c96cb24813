"""Which executor, as the user names it."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

from tangram.errors import InputError, UnknownNameError
from tangram.executors.as_needed import AsNeededExecutor
from tangram.executors.inline import InlineExecutor
from tangram.executors.processes import ProcessExecutor
from tangram.executors.protocol import Executor

MOST_WORKERS = 1024
WHERE = "--executor"

_NAMES = ("auto", "inline", "processes", "processes:8", "ray", "ray://head:10001")


class ExecutorKind(StrEnum):
    """Where errands run.

    ``auto`` stays in this process until an errand is large, then takes processes.
    """

    AUTO = "auto"
    INLINE = "inline"
    PROCESSES = "processes"
    RAY = "ray"


@dataclass(frozen=True, slots=True)
class ExecutorChoice:
    """An executor that is not started yet.

    Attributes:
        kind: Where errands run.
        workers: Processes; 0 for one per core.
        address: Of a Ray cluster's client server, ``ray://host:port``; None for ``RAY_ADDRESS``, and without
            that for a new cluster on this machine.
    """

    kind: ExecutorKind = ExecutorKind.AUTO
    workers: int = 0
    address: str | None = None


def parse_executor(text: str, where: str = WHERE) -> ExecutorChoice:
    """Reads ``auto``, ``inline``, ``processes``, ``processes:N``, ``ray`` or ``ray://host:port``.

    Raises:
        UnknownNameError: It is none of them.
        InputError: The number of processes, or the address, is none.
    """
    kind, colon, rest = text.strip().partition(":")
    if kind == ExecutorKind.PROCESSES and colon:
        if not re.fullmatch("[0-9]{1,9}", rest) or not 1 <= int(rest) <= MOST_WORKERS:
            hint = f"processes:N with N from 1 to {MOST_WORKERS}, or processes for one per core"
            raise InputError(f"{rest or 'nothing'!r} is no number of processes", where=where, hint=hint)
        return ExecutorChoice(ExecutorKind.PROCESSES, int(rest))
    if kind == ExecutorKind.RAY and colon:
        if not re.fullmatch(r"//(\[[0-9A-Fa-f:.]+\]|[\w.-]+)(:[0-9]{1,5})?", rest):
            hint = "ray://HOST:PORT of its client server (the port is mostly 10001), or ray alone"
            raise InputError(f"{text.strip()!r} is no address of a Ray cluster", where=where, hint=hint)
        return ExecutorChoice(ExecutorKind.RAY, address=text.strip())
    if colon or kind not in set(ExecutorKind):
        raise UnknownNameError("executor", text, _NAMES, where=where)
    return ExecutorChoice(ExecutorKind(kind))


def new_executor(choice: ExecutorChoice, report: Callable[[str], None] | None = None) -> Executor:
    """Returns an executor, which has to be closed; one on Ray is connected already.

    Args:
        choice: Which one.
        report: Called with a line when something is worth knowing, such as a worker's death.

    Raises:
        InputError: Ray is not installed, or its cluster does not answer.
    """
    match choice.kind:
        case ExecutorKind.INLINE:
            return InlineExecutor()
        case ExecutorKind.PROCESSES:
            return ProcessExecutor(choice.workers)
        case ExecutorKind.RAY:
            # Imported where it is needed: Ray is optional, and large.
            from tangram.executors.ray_cluster import RayExecutor

            return RayExecutor(choice.address, report)
    return AsNeededExecutor()
