"""What an execution was: when every task and every transfer ran."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum

from tangram.simulate.pipeline import SimPipeline

Times = tuple[tuple[int, ...], ...]


class TaskKind(StrEnum):
    """Compute tasks, transfers to the next and to the previous stage, and the end of the step."""

    FORWARD = "F"
    BACKWARD = "B"
    SEND_FORWARD = "send_forward"
    SEND_BACKWARD = "send_backward"
    STEP = "step"


@dataclass(frozen=True, slots=True)
class SimTask:
    """One task.

    Attributes:
        stage: Where it runs; of a transfer, the sender.
        kind: What it is.
        micro_batch: Which; None for the end of the step.
        start_ns: Start.
        end_ns: End; of a transfer, the arrival (its link is free one latency earlier).
    """

    stage: int
    kind: TaskKind
    micro_batch: int | None
    start_ns: int
    end_ns: int


@dataclass(frozen=True, slots=True)
class Timeline:
    """An executed pipeline.

    Attributes:
        pipeline: What was executed.
        forward_starts_ns, backward_starts_ns: Per stage, per micro-batch.
        send_forward_starts_ns: Per edge ``i``, per micro-batch, from stage ``i`` to ``i + 1``.
        send_backward_starts_ns: Per edge ``i``, per micro-batch, from stage ``i + 1`` to ``i``.
        step_starts_ns: Per stage.
    """

    pipeline: SimPipeline
    forward_starts_ns: Times
    backward_starts_ns: Times
    send_forward_starts_ns: Times
    send_backward_starts_ns: Times
    step_starts_ns: tuple[int, ...]

    @property
    def iteration_ns(self) -> int:
        """End of the last step end."""
        return max(self.last_ns)

    @property
    def first_ns(self) -> tuple[int, ...]:
        """Per stage, when its first forward starts."""
        return tuple(starts[0] for starts in self.forward_starts_ns)

    @property
    def last_ns(self) -> tuple[int, ...]:
        """Per stage, when its step end is done."""
        stages = self.pipeline.stages
        return tuple(start + s.step_ns for start, s in zip(self.step_starts_ns, stages, strict=True))

    @property
    def busy_ns(self) -> tuple[int, ...]:
        """Per stage, time in forwards, backwards and step end (not in transfers, even if they block)."""
        m = self.pipeline.num_micro_batches
        return tuple(m * (s.forward_ns + s.backward_ns) + s.step_ns for s in self.pipeline.stages)

    @property
    def bubble_fracs(self) -> tuple[float, ...]:
        """Per stage, the share of the iteration in which it idles; 0 for an iteration that takes no time."""
        total = self.iteration_ns
        return tuple((total - busy) / total if total else 0.0 for busy in self.busy_ns)

    @property
    def bubble_frac(self) -> float:
        """The share of all stages' time that is idle."""
        return sum(self.bubble_fracs) / self.pipeline.num_stages

    def idle_frac(self, gpus: Sequence[int]) -> float:
        """Returns the share of all GPUs' time that is idle.

        Args:
            gpus: GPUs of each stage.
        """
        idle = sum(frac * count for frac, count in zip(self.bubble_fracs, gpus, strict=True))
        return idle / sum(gpus)

    def tasks(self) -> Iterator[SimTask]:
        """Yields every task: by stage, and within a stage by kind and micro-batch."""
        for i in range(self.pipeline.num_stages):
            yield from self._stage_tasks(i)

    def _stage_tasks(self, i: int) -> Iterator[SimTask]:
        stage, edges = self.pipeline.stages[i], self.pipeline.edges
        rows = [
            (TaskKind.FORWARD, self.forward_starts_ns[i], stage.forward_ns),
            (TaskKind.BACKWARD, self.backward_starts_ns[i], stage.backward_ns),
        ]
        if i < len(edges):
            rows.append((TaskKind.SEND_FORWARD, self.send_forward_starts_ns[i], edges[i].forward_ns))
        if i:
            rows.append(
                (TaskKind.SEND_BACKWARD, self.send_backward_starts_ns[i - 1], edges[i - 1].backward_ns)
            )
        for kind, starts, duration in rows:
            for k, start in enumerate(starts):
                yield SimTask(i, kind, k, start, start + duration)
        step = self.step_starts_ns[i]
        yield SimTask(i, TaskKind.STEP, None, step, step + stage.step_ns)
