"""How long every atom of a stage takes, by marks between its units in the forward and the backward pass.

A mark is an identity of autograd that calls somebody when its backward runs. Units follow each other, so the
backward of a unit lies between the mark on its output and the one on its input; that of the embedding, whose
input has no gradient, ends with the backward of the stage.

What a unit recomputes for backward runs inside of it, so a backward that recomputes is longer by that.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from statistics import median
from typing import Any

import torch

from tangram.runtime.hooks import StepHooks, TaskKind
from tangram.runtime.watch.clock import Stamps
from tangram.units import NS_PER_S


class _Mark(torch.autograd.Function):
    """The identity, which tells when its gradient comes by."""

    @staticmethod
    def forward(ctx: Any, tensor: Any, told: Callable[[], None]) -> Any:
        """Returns the tensor."""
        ctx.told = told
        return tensor.view_as(tensor)

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        """Tells, and passes the gradient on."""
        ctx.told()
        return gradient, None


Pad = Callable[[int, TaskKind, Any], None]
"""Gets an atom, the pass and the stamp of its start, when the unit has computed: to make it last longer."""


@dataclass(frozen=True, slots=True)
class UnitTimes:
    """One atom over many micro-batches.

    Attributes:
        forward_s, backward_s: Medians, or another kind of average.
        count: Micro-batches.
    """

    forward_s: float
    backward_s: float
    count: int


class UnitClock(StepHooks):
    """Times units; to be called as the innermost of the hooks.

    Args:
        units: By atom, in the order in which they run.
        stamps: The clock.
        pad: Called at the end of each pass of each unit, inside of what is timed.
        inner: Called too, inside of what is timed.
    """

    def __init__(
        self,
        units: Mapping[int, Any],
        stamps: Stamps,
        pad: Pad | None = None,
        inner: StepHooks | None = None,
    ) -> None:
        self._atoms = tuple(units)
        self._stamps, self._pad = stamps, pad
        self._inner = inner or StepHooks()
        self._started: dict[tuple[int, TaskKind], Any] = {}
        self._spans: dict[tuple[int, TaskKind], list[tuple[Any, Any]]] = {}
        self._seconds: dict[tuple[int, TaskKind], list[float]] = {}
        for atom, unit in units.items():
            self._attach(atom, unit)

    def begin_step(self, step: int) -> None:
        """Passes on."""
        self._inner.begin_step(step)

    def begin(self, kind: TaskKind, micro_batch: int | None) -> None:
        """The last unit's backward starts with that of the stage."""
        self._inner.begin(kind, micro_batch)
        if kind is TaskKind.BACKWARD:
            self._start(self._atoms[-1], kind)

    def end(self, kind: TaskKind, micro_batch: int | None) -> None:
        """The first unit's backward ends with that of the stage, unless its input had a gradient."""
        if kind is TaskKind.BACKWARD and (self._atoms[0], kind) in self._started:
            self._stop(self._atoms[0], kind)
        self._inner.end(kind, micro_batch)

    def send(self, kind: TaskKind, micro_batch: int, post: Callable[[], None]) -> None:
        """Passes on."""
        self._inner.send(kind, micro_batch, post)

    def flush(self) -> None:
        """Passes on."""
        self._inner.flush()

    def received(self, kind: TaskKind, micro_batch: int) -> None:
        """Passes on."""
        self._inner.received(kind, micro_batch)

    def end_step(self, step: int) -> None:
        """Tells the times of the step, which can be told until the next one starts."""
        self._inner.end_step(step)
        self._stamps.settle()
        for key, spans in self._spans.items():
            tell = self._stamps.tell
            self._seconds.setdefault(key, []).extend((tell(b) - tell(a)) / NS_PER_S for a, b in spans)
        self._spans.clear()

    def forget(self) -> None:
        """Forgets what was timed so far: first steps are slower than others."""
        self._seconds.clear()

    def times(self, average: Callable[[list[float]], float] = median) -> dict[int, UnitTimes]:
        """Returns the times of every atom that ran both passes.

        Args:
            average: Of many passes: the median leaves out disturbances, the mean counts them.
        """
        found = {}
        for atom in self._atoms:
            forward = self._seconds.get((atom, TaskKind.FORWARD), [])
            backward = self._seconds.get((atom, TaskKind.BACKWARD), [])
            if forward and backward:
                count = min(len(forward), len(backward))
                found[atom] = UnitTimes(average(forward), average(backward), count)
        return found

    def _attach(self, atom: int, unit: Any) -> None:
        def before(module: Any, inputs: tuple[Any, ...]) -> Any:
            self._start(atom, TaskKind.FORWARD)
            hidden = inputs[0]
            if not (torch.is_tensor(hidden) and hidden.requires_grad and torch.is_grad_enabled()):
                return None
            marked = _Mark.apply(hidden, lambda: self._stop(atom, TaskKind.BACKWARD))
            return (marked, *inputs[1:])

        def behind(module: Any, inputs: Any, output: Any) -> Any:
            self._stop(atom, TaskKind.FORWARD)
            if atom == self._atoms[-1] or not output.requires_grad:
                return None
            return _Mark.apply(output, lambda: self._start(atom, TaskKind.BACKWARD))

        unit.register_forward_pre_hook(before)
        unit.register_forward_hook(behind)

    def _start(self, atom: int, kind: TaskKind) -> None:
        self._started[atom, kind] = self._stamps.take()

    def _stop(self, atom: int, kind: TaskKind) -> None:
        start = self._started.pop((atom, kind))
        if self._pad is not None:
            self._pad(atom, kind, start)
        self._spans.setdefault((atom, kind), []).append((start, self._stamps.take()))
