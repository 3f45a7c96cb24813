"""Where others look on while a rank works, or slow it down: clocks, traces, emulated hardware. No torch."""

from __future__ import annotations

from collections.abc import Callable

from tangram.simulate.timeline import TaskKind

__all__ = ["StepHooks", "TaskKind"]


class StepHooks:
    """Called by the engine on every rank; this one does nothing but send.

    ``begin`` and ``end`` stand directly around the compute of a task, so waiting for a neighbour is outside
    of them. Both are called on the thread that computes.
    """

    def begin_step(self, step: int) -> None:
        """A step starts on this rank."""

    def begin(self, kind: TaskKind, micro_batch: int | None) -> None:
        """A task starts to compute.

        Args:
            kind: ``FORWARD``, ``BACKWARD`` or ``STEP``.
            micro_batch: Which; None for the end of the step.
        """

    def end(self, kind: TaskKind, micro_batch: int | None) -> None:
        """The task has computed."""

    def send(self, kind: TaskKind, micro_batch: int, post: Callable[[], None]) -> None:
        """A tensor is there for the neighbour.

        Args:
            kind: ``SEND_FORWARD`` or ``SEND_BACKWARD``.
            micro_batch: Which.
            post: Issues the send. It may be called later, and on another thread, but in the order of these
                calls, and before :meth:`flush` returns.
        """
        post()

    def flush(self) -> None:
        """Returns once every send was issued; the engine calls it before it waits for them."""

    def received(self, kind: TaskKind, micro_batch: int) -> None:
        """A tensor from a neighbour is there, and the wait for it over.

        Args:
            kind: How the neighbour sent it: ``SEND_FORWARD`` is an activation, ``SEND_BACKWARD`` a gradient.
            micro_batch: Which.
        """

    def end_step(self, step: int) -> None:
        """The step is done on this rank."""
