"""Planners side by side, as a document: what ``tangram compare --json`` prints."""

from __future__ import annotations

from enum import StrEnum
from typing import Literal

from pydantic import Field

from tangram.plan.schema import GpuSlot, PlanDocument
from tangram.plan.section import Count, Integer, Positive, Section


class PlannerKind(StrEnum):
    """How a planner sees a mixed cluster.

    ``tangram`` composes slices that a parallelizer plans on islands; ``alone`` is a parallelizer for equal
    GPUs that takes all GPUs for the slowest; ``cluster`` plans the whole cluster by itself.
    """

    TANGRAM = "tangram"
    ALONE = "alone"
    CLUSTER = "cluster"


class ReplicasSection(Section):
    """Data-parallel replicas of a stage that are alike.

    Attributes:
        gpus: In mesh order: dp, cp, tp, the last varies fastest.
        gpu: Names of the parts, the slowest first.
        dp, tp, cp, ep, expert_tp, zero: Degrees; ``dp`` counts these replicas only.
        samples: Of every micro-batch, what they take together.
        forward_s, backward_s: Of one micro-batch, as the referee has it.
        peak_bytes: Upper estimate of the peak of one GPU.
        capacity_bytes: What the smallest of the GPUs has.
        atom_degrees: Of every atom in words, where atoms differ; the degrees above are then the first one's.
    """

    gpus: list[GpuSlot]
    gpu: list[str]
    dp: Positive
    tp: Positive
    cp: Positive
    ep: Positive
    expert_tp: Positive
    zero: Count
    samples: Integer
    forward_s: float | None
    backward_s: float | None
    peak_bytes: Integer | None
    capacity_bytes: Integer | None
    atom_degrees: list[str] = Field(default_factory=list)


class ClusterStageSection(Section):
    """A stage that may mix kinds of GPUs.

    Attributes:
        atoms: ``[start, stop)``.
        replicas: One entry per kind.
        recomputed_atoms: Atoms that are recomputed in full, ascending.
        step_s: Gradient synchronisation and optimizer; null without a simulation, as all such figures.
    """

    atoms: tuple[Integer, Integer]
    replicas: list[ReplicasSection]
    recomputed_atoms: list[Count]
    step_s: float | None


class ClusterPlanSection(Section):
    """The plan of a planner of whole clusters, a plain 1F1B pipeline.

    Attributes:
        format: Tells it from a plan document.
        micro_batch: Samples that enter the pipeline together.
        num_micro_batches: Per step.
        stages: First to last.
        predicted_s: What the planner itself believes; null when it predicts nothing.
        notes: What the planner says beside its plan.
    """

    format: Literal["cluster-plan"] = "cluster-plan"
    micro_batch: Integer
    num_micro_batches: Count
    stages: list[ClusterStageSection]
    predicted_s: float | None
    notes: list[str]


class PlannerSection(Section):
    """One planner's answer, and what the referee says of it.

    Attributes:
        planner: Its name.
        kind: As :class:`PlannerKind` says.
        iteration_time_s: Simulated by the referee; null without a plan, or where it cannot be simulated.
        tokens_per_s: The same as throughput.
        planning_time_s: Wall clock of this run.
        executable: Whether the plan trains the whole model within memory.
        reason: Why not; empty for an executable plan.
        summary: The plan in a few words.
        features: What the plan makes use of.
        lacked_by_exact: Which of these no plan of ``exact`` has.
        peak_memory_frac: The fullest GPU's peak as a share of what it has.
        plan: The plan: a plan document, or a cluster plan; null without one.
    """

    planner: str
    kind: PlannerKind
    iteration_time_s: float | None
    tokens_per_s: float | None
    planning_time_s: float
    executable: bool
    reason: str
    summary: str
    features: list[str]
    lacked_by_exact: list[str]
    peak_memory_frac: float | None
    plan: PlanDocument | ClusterPlanSection | None


class ComparisonDocument(Section):
    """All planners on one question.

    Attributes:
        format, version: Of this document.
        model, cluster: Names.
        global_batch, seq_len, precision: The job.
        planners: In the order in which they were asked.
    """

    format: Literal["tangram-comparison"] = "tangram-comparison"
    version: Literal[1] = 1
    model: str
    cluster: str
    global_batch: Positive
    seq_len: Positive
    precision: str
    planners: list[PlannerSection]

    @property
    def fastest(self) -> PlannerSection | None:
        """The executable plan with the least iteration time; of equals the first."""
        timed = [p for p in self.planners if p.executable and p.iteration_time_s is not None]
        return min(timed, key=lambda p: p.iteration_time_s or 0.0, default=None)
