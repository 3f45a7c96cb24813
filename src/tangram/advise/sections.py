"""Cluster plans as sections of a document, and any plan in a few words."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

from tangram.advise.comparison import ClusterPlanSection, ClusterStageSection, ReplicasSection
from tangram.advise.referee import Verdict
from tangram.baselines.replica_cost import MixedStageCost
from tangram.cost.types import StageConfig
from tangram.parallelizers.protocols import ClusterPlan, ClusterRequest, ClusterStage, Replicas
from tangram.plan.schema import GpuSlot, LayerConfig, PlanDocument, StageSection

_MOST_STAGES = 6
"""Runs of alike stages that a summary names; it counts the others."""


def layers_of_stages(request: ClusterRequest, plan: ClusterPlan) -> list[int]:
    """Returns how many transformer layers each stage holds, or holds a part of."""
    return [
        len({layer for atom in request.atoms[stage.start : stage.stop] for layer in atom.layer_idxs})
        for stage in plan.stages
    ]


def cluster_plan_section(request: ClusterRequest, plan: ClusterPlan, verdict: Verdict) -> ClusterPlanSection:
    """Returns a cluster plan with what the referee says of its stages."""
    costs: Sequence[MixedStageCost | None] = verdict.costs or [None] * len(plan.stages)
    return ClusterPlanSection(
        micro_batch=plan.micro_batch,
        num_micro_batches=request.job.global_batch // max(plan.micro_batch, 1),
        stages=[_stage_section(stage, cost) for stage, cost in zip(plan.stages, costs, strict=True)],
        predicted_s=plan.predicted_s,
        notes=list(plan.notes),
    )


def _stage_section(stage: ClusterStage, cost: MixedStageCost | None) -> ClusterStageSection:
    again = enumerate(stage.recomputed, stage.start)
    return ClusterStageSection(
        atoms=(stage.start, stage.stop),
        replicas=[_replicas_section(kind, idx, cost) for idx, kind in enumerate(stage.replicas)],
        recomputed_atoms=[atom for atom, recomputed in again if recomputed],
        step_s=None if cost is None else cost.step_s,
    )


def _replicas_section(replicas: Replicas, idx: int, cost: MixedStageCost | None) -> ReplicasSection:
    config, known = replicas.config, None if cost is None else cost.kinds[idx]
    return ReplicasSection(
        gpus=[GpuSlot(node=slot.node.name, gpu_idx=slot.gpu_idx) for slot in replicas.slots],
        gpu=_parts(replicas),
        dp=config.dp,
        tp=config.tp,
        cp=config.cp,
        ep=config.ep,
        expert_tp=config.expert_tp,
        zero=config.zero,
        samples=replicas.samples,
        forward_s=None if known is None else known.time.forward_s,
        backward_s=None if known is None else known.time.backward_s,
        peak_bytes=None if known is None else round(known.together.peak_bytes),
        capacity_bytes=None if known is None else known.together.capacity_bytes,
        atom_degrees=[degrees_text(config) for config in replicas.atom_configs],
    )


def document_summary(doc: PlanDocument) -> str:
    """Returns a plan document in a few words: GPUs, degrees and layers of each stage, in order."""
    return _summary(
        [
            (
                f"{len(stage.ranks)}x {stage.island} {mixed_degrees_text(_configs(stage))}",
                len({layer for entry in stage.recompute for layer in entry.layers}),
            )
            for stage in doc.stages
        ]
    )


def cluster_plan_summary(plan: ClusterPlan, layers: Sequence[int]) -> str:
    """Returns a cluster plan in a few words.

    Args:
        plan: The plan.
        layers: Of each stage.
    """
    return _summary(
        [
            (" & ".join(_kind_text(kind) for kind in stage.replicas), count)
            for stage, count in zip(plan.stages, layers, strict=True)
        ]
    )


def degrees_text(config: StageConfig) -> str:
    """Returns degrees as ``dp2 tp4``: those above 1."""
    degrees = {
        "dp": config.dp,
        "tp": config.tp,
        "cp": config.cp,
        "ep": config.ep,
        "etp": config.expert_tp,
    }
    texts = [f"{name}{degree}" for name, degree in degrees.items() if degree > 1]
    texts += [f"zero{config.zero}"] if config.zero else []
    return " ".join(texts) or "dp1"


def _configs(stage: StageSection) -> list[StageConfig]:
    parts: list[StageSection | LayerConfig] = [*stage.layer_configs] or [stage]
    return [StageConfig(p.dp, p.tp, p.cp, p.ep, p.expert_tp, p.zero) for p in parts]


def mixed_degrees_text(configs: Sequence[StageConfig]) -> str:
    """Returns the degrees of layers that may differ, each once: ``dp8 zero3 + dp4 tp2``."""
    return " + ".join(dict.fromkeys(degrees_text(config) for config in configs))


def _kind_text(replicas: Replicas) -> str:
    degrees = mixed_degrees_text(replicas.atom_configs or [replicas.config])
    return f"{len(replicas.slots)}x {'/'.join(_parts(replicas))} {degrees}"


def _parts(replicas: Replicas) -> list[str]:
    return sorted({slot.node.gpu.name for slot in replicas.slots})


def _summary(stages: Sequence[tuple[str, int]]) -> str:
    """Joins stages; alike ones that follow each other are named once, with the layers of all of them."""
    runs = []
    for text, group in groupby(stages, key=lambda stage: stage[0]):
        layers = [str(count) for _, count in group]
        times = f"{len(layers)} * " if len(layers) > 1 else ""
        runs.append(f"{times}{text}: {'+'.join(layers)}")
    if len(runs) > _MOST_STAGES:
        more = len(runs) - _MOST_STAGES + 1
        runs = [*runs[: _MOST_STAGES - 1], f"and {more} more runs of stages"]
    return " | ".join(runs)
