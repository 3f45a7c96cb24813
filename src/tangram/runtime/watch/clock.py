"""When a rank computed what, in one step: host time on a CPU, events of the device on a GPU."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tangram.runtime.hooks import StepHooks, TaskKind


@dataclass(frozen=True, slots=True)
class Event:
    """A task of this rank, as it ran.

    Attributes:
        kind: ``FORWARD``, ``BACKWARD`` or ``STEP``; of transfers, ``SEND_FORWARD`` and ``SEND_BACKWARD``.
        micro_batch: Which; None for the end of the step.
        start_ns, end_ns: On the host's monotonic clock. Of a transfer that was sent, both are the time of
            sending; of one that was received, both are the time when the wait for it was over.
        received: Whether a transfer came in here.
    """

    kind: TaskKind
    micro_batch: int | None
    start_ns: int
    end_ns: int
    received: bool = False


class Stamps:
    """Takes times and tells them later: on a GPU they are known once the work before them is done.

    Args:
        torch: The library, for a GPU; None reads the host's clock.
    """

    def __init__(self, torch: Any = None) -> None:
        self._torch = torch
        self._anchor: Any = None
        self._anchor_ns = 0

    def anchor(self) -> None:
        """Ties the device's clock to the host's; what was stamped before it can no longer be told."""
        if self._torch is not None:
            self._torch.cuda.synchronize()
            self._anchor = self.take()
            self._anchor_ns = time.perf_counter_ns()

    def take(self) -> Any:
        """Returns a stamp."""
        if self._torch is None:
            stamp: Any = time.perf_counter_ns()
            return stamp
        event = self._torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def settle(self) -> None:
        """Waits until all stamps can be told."""
        if self._torch is not None:
            self._torch.cuda.synchronize()

    def tell(self, stamp: Any) -> int:
        """Returns the time of a stamp on the host's monotonic clock, in nanoseconds."""
        if self._torch is None:
            return int(stamp)
        return self._anchor_ns + round(float(self._anchor.elapsed_time(stamp)) * 1e6)


class Clock(StepHooks):
    """Notes every task of a step.

    Args:
        stamps: The clock.
        inner: Called too, inside of what is timed.

    Attributes:
        inner: As given; may be set later.
    """

    def __init__(self, stamps: Stamps, inner: StepHooks | None = None) -> None:
        self._stamps = stamps
        self.inner = inner or StepHooks()
        self._tasks: list[tuple[TaskKind, int | None, Any, Any, bool]] = []
        self._begun: Any = None
        self._step: tuple[Any, Any] = (0, 0)

    def begin_step(self, step: int) -> None:
        """Starts anew."""
        self._tasks.clear()
        self._stamps.anchor()
        self._step = (self._stamps.take(), None)
        self.inner.begin_step(step)

    def begin(self, kind: TaskKind, micro_batch: int | None) -> None:
        """Notes the start of a task."""
        self._begun = self._stamps.take()
        self.inner.begin(kind, micro_batch)

    def end(self, kind: TaskKind, micro_batch: int | None) -> None:
        """Notes the task."""
        self.inner.end(kind, micro_batch)
        self._tasks.append((kind, micro_batch, self._begun, self._stamps.take(), False))

    def send(self, kind: TaskKind, micro_batch: int, post: Callable[[], None]) -> None:
        """Notes when a tensor is there to be sent."""
        now = self._stamps.take()
        self._tasks.append((kind, micro_batch, now, now, False))
        self.inner.send(kind, micro_batch, post)

    def flush(self) -> None:
        """Passes on."""
        self.inner.flush()

    def received(self, kind: TaskKind, micro_batch: int) -> None:
        """Notes when a tensor is there."""
        self.inner.received(kind, micro_batch)
        now = self._stamps.take()
        self._tasks.append((kind, micro_batch, now, now, True))

    def end_step(self, step: int) -> None:
        """Ends the step."""
        self.inner.end_step(step)
        self._step = (self._step[0], self._stamps.take())
        self._stamps.settle()

    @property
    def step_ns(self) -> tuple[int, int]:
        """Start and end of the last step."""
        return self._stamps.tell(self._step[0]), self._stamps.tell(self._step[1])

    def events(self) -> list[Event]:
        """Returns all tasks of the last step, in the order in which they ended."""
        tell = self._stamps.tell
        return [Event(kind, k, tell(a), tell(b), received) for kind, k, a, b, received in self._tasks]
