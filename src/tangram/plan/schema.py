"""The plan document, version 1: all that a reader, an executor or an exporter needs, in one JSON file.

A plan is data. Nothing here knows how it was found, so a plan written by hand or by another planner can
be checked, simulated, drawn, exported and run like one of ours.
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from tangram.plan.schema_cluster import (
    AssumptionSection,
    ClusterSection,
    GpuSection,
    IslandSection,
    LinkSection,
    NodeSection,
)
from tangram.plan.schema_job import JobSection, OptimizerSection, PinsSection
from tangram.plan.schema_model import (
    AttentionSection,
    FeedForwardSection,
    LayerKind,
    ModelSection,
    MoeSection,
)
from tangram.plan.schema_report import (
    BoundSection,
    BoundStep,
    Comparison,
    IdleSection,
    Prediction,
    SearchSection,
)
from tangram.plan.schema_stage import (
    GpuSlot,
    LayerConfig,
    LayerRecompute,
    MeshSection,
    PipelineSection,
    RankSlot,
    ScheduleSection,
    StagePrediction,
    StageSection,
    TiedGroup,
)
from tangram.plan.section import Count, Section

__all__ = [
    "PlanDocument",
    # inputs
    "AssumptionSection",
    "AttentionSection",
    "ClusterSection",
    "FeedForwardSection",
    "GpuSection",
    "IslandSection",
    "JobSection",
    "LayerKind",
    "LinkSection",
    "ModelSection",
    "MoeSection",
    "NodeSection",
    "OptimizerSection",
    "PinsSection",
    # what to carry out
    "GpuSlot",
    "LayerConfig",
    "LayerRecompute",
    "MeshSection",
    "PipelineSection",
    "RankSlot",
    "ScheduleSection",
    "StagePrediction",
    "StageSection",
    "TiedGroup",
    # what to print
    "BoundSection",
    "BoundStep",
    "Comparison",
    "IdleSection",
    "Prediction",
    "SearchSection",
]


class PlanDocument(Section):
    """A plan and all that it rests on.

    Attributes:
        format: ``tangram-plan``.
        version: 1.
        tangram_version: Who wrote it.
        model: The whole model.
        cluster: The whole cluster.
        job: The whole job.
        granularity: How the model was cut into atoms: ``operator``, ``block``, ``layer`` or a number of
            layers.
        num_atoms: Atoms of the model, embedding and head included.
        islands: Homogeneous sets of nodes.
        tolerances: With which the islands were built (``compute``, ``memory``, ``intra``, ``network``); null
            is infinite.
        pipelines: What runs; exactly one in version 1.
        tied_weight_groups: Weights that live on several stages.
        prediction: What the simulator says of it.
        bound: What no plan can beat.
        idle: GPUs left out, with reasons.
        comparisons: Other ways to use the cluster.
        assumptions: What was assumed on the way.
        search: How the plan was found.
        extensions: Room for others; Tangram keeps it and reads nothing from it.
    """

    format: Literal["tangram-plan"] = "tangram-plan"
    version: Literal[1] = 1
    tangram_version: str
    model: ModelSection
    cluster: ClusterSection
    job: JobSection
    granularity: str
    num_atoms: Count
    islands: list[IslandSection]
    tolerances: dict[str, float | None]
    pipelines: list[PipelineSection]
    tied_weight_groups: list[TiedGroup] = Field(default_factory=list)
    prediction: Prediction
    bound: BoundSection
    idle: list[IdleSection] = Field(default_factory=list)
    comparisons: list[Comparison] = Field(default_factory=list)
    assumptions: list[AssumptionSection] = Field(default_factory=list)
    search: SearchSection
    extensions: dict[str, Any] = Field(default_factory=dict)

    @property
    def stages(self) -> list[StageSection]:
        """Stages of all pipelines, in order."""
        return [stage for pipeline in self.pipelines for stage in pipeline.stages]

    @property
    def num_gpus(self) -> int:
        """GPUs that the plan uses."""
        return sum(len(stage.ranks) for stage in self.stages)
