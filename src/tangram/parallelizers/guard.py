"""Queries that cannot take the search down: a parallelizer that misbehaves is reported by name and skipped.

A query ends in an :class:`Answer`: plans in order, and a :class:`Rejection` for everything that was not. In
this process a query cannot be interrupted, so its time is measured afterwards; a :class:`GuardedWorker` runs
it in a process of its own, which is ended when the budget is over.
"""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess
from types import TracebackType
from typing import Self

from tangram.parallelizers.invariants import faults_text, plan_faults, request_text, table_faults
from tangram.parallelizers.protocols import (
    OptionTable,
    SlicePlan,
    SlicePlanner,
    SliceRequest,
    StageTable,
    TableRequest,
)

RECOSTED_OPTIONS = 64
"""Options of a foreign table that are re-costed one by one; the rest is checked as columns."""


class RejectionKind(StrEnum):
    """Why an answer was not used."""

    RAISED = "raised"
    TOO_SLOW = "too-slow"
    INVALID = "invalid"


@dataclass(frozen=True, slots=True)
class Rejection:
    """One answer that was not used.

    Attributes:
        parallelizer: Its name.
        kind: Why.
        reason: The same in words.
        request: What was asked, in words.
    """

    parallelizer: str
    kind: RejectionKind
    reason: str
    request: str

    def __str__(self) -> str:
        return f"parallelizer {self.parallelizer!r} skipped for {self.request}: {self.reason}"


@dataclass(frozen=True, slots=True)
class Answer:
    """What a query brought.

    Attributes:
        plans: Slice plans that obey every invariant, in the parallelizer's order.
        rejections: Everything else.
    """

    plans: tuple[SlicePlan, ...]
    rejections: tuple[Rejection, ...]


@dataclass(frozen=True, slots=True)
class TableAnswer:
    """What a query to a stage table brought: the table, or why there is none."""

    table: OptionTable | None
    rejections: tuple[Rejection, ...]


def guarded_plan(
    planner: SlicePlanner,
    request: SliceRequest,
    budget_s: float | None = None,
    clock: Callable[[], float] = time.perf_counter,
) -> Answer:
    """Asks a slice planner in this process.

    Args:
        planner: The parallelizer.
        request: The question.
        budget_s: An answer that took longer is rejected; None allows any time.
        clock: Seconds; passed in by tests.
    """

    def reject(kind: RejectionKind, reason: str) -> Rejection:
        return Rejection(planner.name, kind, reason, request_text(request))

    began = clock()
    try:
        plans = tuple(planner.plan(request))
    except Exception as error:
        return Answer((), (reject(RejectionKind.RAISED, _said(error)),))
    if late := _overrun(clock() - began, budget_s):
        return Answer((), (reject(RejectionKind.TOO_SLOW, late),))
    return _checked(request, plans, reject)


def guarded_options(
    planner: StageTable,
    request: TableRequest,
    budget_s: float | None = None,
    max_recosted: int | None = RECOSTED_OPTIONS,
    clock: Callable[[], float] = time.perf_counter,
) -> TableAnswer:
    """Asks a stage table in this process.

    Args:
        planner: The parallelizer.
        request: The question.
        budget_s: An answer that took longer is rejected; None allows any time.
        max_recosted: Options to re-cost one by one; 0 checks the columns only, None re-costs all.
        clock: Seconds; passed in by tests.
    """

    def reject(kind: RejectionKind, reason: str) -> TableAnswer:
        return TableAnswer(None, (Rejection(planner.name, kind, reason, request_text(request)),))

    began = clock()
    try:
        table = planner.options(request)
    except Exception as error:
        return reject(RejectionKind.RAISED, _said(error))
    if late := _overrun(clock() - began, budget_s):
        return reject(RejectionKind.TOO_SLOW, late)
    try:
        faults = table_faults(request, table, planner, max_recosted)
    except Exception as error:
        return reject(RejectionKind.INVALID, f"its table cannot be read: {_said(error)}")
    if faults:
        return reject(RejectionKind.INVALID, faults_text(faults))
    return TableAnswer(table, ())


class GuardedWorker:
    """A process of its own for a slice planner that may hang; a context manager.

    The process starts with the first query, serves many, and is ended and replaced when one exceeds its
    budget or kills it.

    Args:
        planner: The parallelizer; it and its requests must be picklable.
        budget_s: Per query.
        start_budget_s: For the process to start and import what the planner needs.
    """

    def __init__(self, planner: SlicePlanner, budget_s: float, start_budget_s: float = 60.0) -> None:
        self._planner = planner
        self._budget_s = budget_s
        self._start_budget_s = start_budget_s
        self._process: SpawnProcess | None = None
        self._pipe: Connection | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def plan(self, request: SliceRequest) -> Answer:
        """Asks the planner in its process."""

        def reject(kind: RejectionKind, reason: str) -> Rejection:
            return Rejection(self._planner.name, kind, reason, request_text(request))

        try:
            pipe = self._connected()
            pipe.send(request)
            if not pipe.poll(self._budget_s):
                self.close()
                reason = f"no answer within its {self._budget_s:g} s; its process was ended"
                return Answer((), (reject(RejectionKind.TOO_SLOW, reason),))
            answer = pipe.recv()
        except (EOFError, OSError) as error:
            self.close()
            return Answer((), (reject(RejectionKind.RAISED, f"its process ended: {_said(error)}"),))
        except Exception as error:  # Whatever pickling brings up, in either direction.
            self.close()
            return Answer((), (reject(RejectionKind.RAISED, _said(error)),))
        if isinstance(answer, str):
            return Answer((), (reject(RejectionKind.RAISED, answer),))
        return _checked(request, answer, reject)

    def close(self) -> None:
        """Ends the process, if there is one."""
        if self._pipe is not None:
            self._pipe.close()
        if self._process is not None:
            self._process.kill()
            self._process.join()
            self._process.close()
        self._pipe = self._process = None

    def _connected(self) -> Connection:
        if self._pipe is None:
            context = multiprocessing.get_context("spawn")
            self._pipe, theirs = context.Pipe()
            self._process = context.Process(target=_serve, args=(theirs, self._planner), daemon=True)
            self._process.start()
            theirs.close()
            if not self._pipe.poll(self._start_budget_s):
                raise EOFError(f"it did not start within {self._start_budget_s:g} s")
            self._pipe.recv()
        return self._pipe


def _serve(pipe: Connection, planner: SlicePlanner) -> None:
    """Answers requests until the other end closes; an exception is answered as text."""
    pipe.send("ready")
    while True:
        try:
            request = pipe.recv()
        except EOFError:
            return
        try:
            answer: object = tuple(planner.plan(request))
        except Exception as error:
            answer = _said(error)
        pipe.send(answer)


def _checked(
    request: SliceRequest, plans: tuple[SlicePlan, ...], reject: Callable[[RejectionKind, str], Rejection]
) -> Answer:
    good, rejections = [], []
    for plan in plans:
        try:
            faults = plan_faults(request, plan)
        except Exception as error:
            faults = [f"its plan cannot be read: {_said(error)}"]
        if faults:
            rejections.append(reject(RejectionKind.INVALID, faults_text(faults)))
        else:
            good.append(plan)
    return Answer(tuple(good), tuple(rejections))


def _overrun(took_s: float, budget_s: float | None) -> str | None:
    if budget_s is None or took_s <= budget_s:
        return None
    return f"it took {took_s:.3g} s, more than its {budget_s:g} s"


def _said(error: BaseException) -> str:
    text = str(error).strip().splitlines()
    return f"{type(error).__name__}: {text[0]}" if text else type(error).__name__
