"""What plans make use of, by the names under which planners are told apart."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from tangram.job import Recompute
from tangram.parallelizers.protocols import ClusterPlan, ClusterStage
from tangram.plan.schema import LayerConfig, PlanDocument, StageSection


class Feature(StrEnum):
    """One thing that a plan may make use of."""

    TENSOR = "tp"
    DATA = "dp"
    PIPELINE = "pp"
    CONTEXT = "cp"
    EXPERT = "ep"
    ZERO = "zero"
    SHARDED_WEIGHTS = "zero3"
    RECOMPUTE = "recompute"
    PARTIAL_RECOMPUTE = "recompute of some layers"
    OFFLOAD = "offload"
    UNEVEN_LAYERS = "uneven layers"
    UNEQUAL_DEGREES = "degrees per stage"
    LAYER_DEGREES = "degrees per layer"
    LAYER_SELECTIVE = "selective recompute of some layers"
    MIXED_STAGES = "mixed stages"
    UNEVEN_SAMPLES = "uneven samples"
    WARM_UP = "extra warm-up"
    LEFT_OUT = "leaves GPUs out"


LACKED_BY_EXACT = (
    Feature.LAYER_DEGREES,
    Feature.LAYER_SELECTIVE,
    Feature.MIXED_STAGES,
    Feature.UNEVEN_SAMPLES,
)
"""What no plan of ``exact`` makes use of; all else is in the space that ``exact`` documents."""


@dataclass(frozen=True, slots=True)
class _Stage:
    """What features are read from, of either kind of plan; ``degrees`` are all that occur in the stage."""

    num_layers: int
    num_recomputed: int
    selective: bool
    offload: bool
    degrees: tuple[tuple[int, int, int, int, int], ...]  # dp, tp, cp, ep, zero
    num_parts: int
    num_kinds: int
    samples_per_replica: tuple[float, ...]
    by_layer: bool = False
    selective_by_layer: bool = False


def features_of_document(doc: PlanDocument) -> tuple[Feature, ...]:
    """Returns the features of a plan document, in the order of :class:`Feature`."""
    stages = [_of_section(stage) for stage in doc.stages]
    windows = doc.pipelines[0].schedule.in_flight
    plain = list(range(len(windows), 0, -1))
    used = sum(len(stage.ranks) for stage in doc.stages)
    total = sum(node.num_gpus for node in doc.cluster.nodes)
    return _features(stages, extra_warm_up=windows != plain, leaves_out=used < total)


def features_of_cluster_plan(
    plan: ClusterPlan, num_layers: Sequence[int], num_gpus: int
) -> tuple[Feature, ...]:
    """Returns the features of a cluster plan.

    Args:
        plan: The plan.
        num_layers: Transformer layers of each stage.
        num_gpus: Of the cluster.
    """
    stages = [
        _Stage(
            num_layers=layers,
            num_recomputed=sum(stage.recomputed),
            selective=any(kind.config.selective for kind in stage.replicas),
            offload=any(
                kind.config.offload_optimizer or kind.config.offload_activations for kind in stage.replicas
            ),
            degrees=(own := _degrees(stage)),
            by_layer=len(stage.replicas) == 1 and len(own) > 1,
            selective_by_layer=_selective_by_layer(stage),
            num_kinds=len(stage.replicas),
            num_parts=len({slot.node.gpu.name for kind in stage.replicas for slot in kind.slots}),
            samples_per_replica=tuple(kind.samples / kind.config.dp for kind in stage.replicas),
        )
        for stage, layers in zip(plan.stages, num_layers, strict=True)
    ]
    used = sum(len(kind.slots) for stage in plan.stages for kind in stage.replicas)
    return _features(stages, extra_warm_up=False, leaves_out=used < num_gpus)


def _degrees(stage: ClusterStage) -> tuple[tuple[int, int, int, int, int], ...]:
    """Of every kind of replicas, and of layers that differ."""
    configs = [config for kind in stage.replicas for config in kind.atom_configs or (kind.config,)]
    degrees = [(c.dp, c.tp, c.cp, c.ep, c.zero) for c in configs]
    return tuple(degrees if len(stage.replicas) > 1 else dict.fromkeys(degrees))


def _selective_by_layer(stage: ClusterStage) -> bool:
    kept = {
        config.selective
        for kind in stage.replicas
        for config, again in zip(kind.atom_configs, stage.recomputed, strict=False)
        if not again
    }
    return len(kept) > 1


def _of_section(stage: StageSection) -> _Stage:
    modes = [entry.mode for entry in stage.recompute if entry.layers]
    degrees: list[StageSection | LayerConfig] = [stage, *stage.layer_configs]
    return _Stage(
        num_layers=len(modes),
        num_recomputed=sum(mode is Recompute.FULL for mode in modes),
        selective=any(mode is Recompute.SELECTIVE for mode in modes),
        offload=stage.offload_optimizer or bool(stage.offload_activation_atoms),
        degrees=tuple((d.dp, d.tp, d.cp, d.ep, d.zero) for d in degrees),
        by_layer=bool(stage.layer_configs),
        selective_by_layer={Recompute.SELECTIVE, Recompute.NONE} <= set(modes),
        num_kinds=1,
        num_parts=len({slot.gpu for slot in stage.ranks}),
        samples_per_replica=tuple(float(samples) for samples in set(stage.micro_batch_per_dp_rank)),
    )


def _features(stages: Sequence[_Stage], *, extra_warm_up: bool, leaves_out: bool) -> tuple[Feature, ...]:
    every = [degrees for stage in stages for degrees in stage.degrees]
    inner = [stage.num_layers for stage in stages]
    again = [stage for stage in stages if stage.num_recomputed]
    found = {
        Feature.TENSOR: any(tp > 1 for _, tp, _, _, _ in every),
        Feature.DATA: any(dp > 1 for dp, *_ in every) or any(stage.num_kinds > 1 for stage in stages),
        Feature.PIPELINE: len(stages) > 1,
        Feature.CONTEXT: any(cp > 1 for _, _, cp, _, _ in every),
        Feature.EXPERT: any(ep > 1 for _, _, _, ep, _ in every),
        Feature.ZERO: any(zero in (1, 2) for *_, zero in every),
        Feature.SHARDED_WEIGHTS: any(zero == 3 for *_, zero in every),
        Feature.RECOMPUTE: bool(again) or any(stage.selective for stage in stages),
        Feature.PARTIAL_RECOMPUTE: any(stage.num_recomputed < stage.num_layers for stage in again),
        Feature.OFFLOAD: any(stage.offload for stage in stages),
        Feature.UNEVEN_LAYERS: max(inner, default=0) - min(inner, default=0) > 1,
        Feature.UNEQUAL_DEGREES: len({stage.degrees for stage in stages}) > 1,
        Feature.LAYER_DEGREES: any(stage.by_layer for stage in stages),
        Feature.LAYER_SELECTIVE: any(stage.selective_by_layer for stage in stages),
        Feature.MIXED_STAGES: any(stage.num_parts > 1 for stage in stages),
        Feature.UNEVEN_SAMPLES: any(len(set(stage.samples_per_replica)) > 1 for stage in stages),
        Feature.WARM_UP: extra_warm_up,
        Feature.LEFT_OUT: leaves_out,
    }
    return tuple(feature for feature in Feature if found[feature])
