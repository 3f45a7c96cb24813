"""What a step came to: figures of every rank, summed up per stage, beside what is predicted. No torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from tangram.plan.schema import PlanDocument, StageSection
from tangram.runtime.hooks import TaskKind
from tangram.runtime.watch.clock import Event
from tangram.units import NS_PER_S


@dataclass(frozen=True, slots=True)
class RankFigures:
    """One rank in one step.

    Attributes:
        rank: In the plan.
        start_ns, end_ns: Of the step, on the host's monotonic clock.
        forward_s, backward_s: Mean over the micro-batches.
        step_s: From the last backward to the end of the update, waiting for others left out.
        busy_s: All of it together.
        memory_bytes: Peak so far.
    """

    rank: int
    start_ns: int
    end_ns: int
    forward_s: float
    backward_s: float
    step_s: float
    busy_s: float
    memory_bytes: int

    @staticmethod
    def of(
        rank: int,
        step_ns: tuple[int, int],
        events: Sequence[Event],
        num_micro_batches: int,
        memory_bytes: int,
    ) -> RankFigures:
        """Sums up the events of a step; of interleaved chunks, all of a micro-batch count together."""
        seconds = dict.fromkeys(TaskKind, 0.0)
        for event in events:
            seconds[event.kind] += (event.end_ns - event.start_ns) / NS_PER_S
        forward, backward, step = (
            seconds[kind] for kind in (TaskKind.FORWARD, TaskKind.BACKWARD, TaskKind.STEP)
        )
        return RankFigures(
            rank=rank,
            start_ns=step_ns[0],
            end_ns=step_ns[1],
            forward_s=forward / num_micro_batches,
            backward_s=backward / num_micro_batches,
            step_s=step,
            busy_s=forward + backward + step,
            memory_bytes=memory_bytes,
        )


@dataclass(frozen=True, slots=True)
class StageFigures:
    """One stage in one step: of its slowest rank, and the one with most memory.

    Attributes:
        index: Of the stage.
        forward_s, backward_s, step_s: As of a rank.
        busy_frac: Share of the step in which it computed.
        memory_bytes: Peak so far.
    """

    index: int
    forward_s: float
    backward_s: float
    step_s: float
    busy_frac: float
    memory_bytes: int


@dataclass(frozen=True, slots=True)
class StepFigures:
    """One step.

    Attributes:
        step: Which, from 1.
        epoch: Epochs that are behind.
        loss: Mean over the tokens of the batch.
        tokens: Tokens that counted.
        grad_norm: Of all gradients, before they are cut.
        learning_rate: Of this step.
        loss_scale: 1 but for fp16.
        skipped: Whether gradients overflowed and nothing was updated.
        step_s: Time of the step.
        tokens_per_s: Of the whole batch.
        mfu: Model FLOP over what the GPUs' datasheets promise; None on CPUs.
        stages: First to last.
    """

    step: int
    epoch: float
    loss: float
    tokens: int
    grad_norm: float
    learning_rate: float
    loss_scale: float
    skipped: bool
    step_s: float
    tokens_per_s: float
    mfu: float | None
    stages: tuple[StageFigures, ...]

    def to_json(self) -> dict[str, Any]:
        """Returns all figures, ready for JSON."""
        return asdict(self)


def stage_figures(plan: PlanDocument, ranks: Sequence[RankFigures]) -> tuple[StageFigures, ...]:
    """Sums up ranks per stage; there is one entry per rank of the plan."""
    by_rank: Mapping[int, RankFigures] = {figures.rank: figures for figures in ranks}
    total_s = step_seconds(ranks)
    found = []
    for stage in plan.stages:
        own = [by_rank[slot.rank] for slot in stage.ranks]
        slowest = max(own, key=lambda one: one.forward_s + one.backward_s)
        busy = max(one.busy_s for one in own)
        found.append(
            StageFigures(
                index=stage.index,
                forward_s=slowest.forward_s,
                backward_s=slowest.backward_s,
                step_s=max(one.step_s for one in own),
                busy_frac=min(busy / total_s, 1.0) if total_s > 0 else 0.0,
                memory_bytes=max(one.memory_bytes for one in own),
            )
        )
    return tuple(found)


def step_seconds(ranks: Sequence[RankFigures]) -> float:
    """Returns the time of the step: that of the rank that took longest."""
    return max(one.end_ns - one.start_ns for one in ranks) / NS_PER_S


def peak_flop_per_s(plan: PlanDocument) -> float:
    """Returns what the datasheets of all GPUs of the plan promise in the job's precision."""
    parts = {gpu.name: gpu.peak_flop_per_s for gpu in plan.cluster.gpus}
    return sum(parts[slot.gpu][plan.job.precision] for stage in plan.stages for slot in stage.ranks)


def predicted_memory_bytes(stage: StageSection) -> int:
    """Returns the best estimate of what a process allocates: without what driver and libraries reserve."""
    memory = stage.predicted.memory
    return stage.predicted.peak_bytes - memory.get("reserve", 0) - memory.get("margin", 0)
