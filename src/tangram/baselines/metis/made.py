"""A profile as Metis's profiler would have made it, from Tangram's cost model instead of measurements.

Each kind of GPU is profiled on its own: one tensor-parallel group on one node, every batch size that is a
power of two. So the planner is told as much about layers as Tangram is, and what it then does with it is its
own.

What a profile of Metis says and the cost model does not: the time beyond the layers, which is set to next to
nothing, and the making of batches, which is free. The optimizer's time is that of the slowest kind.
Experts are sharded with the rest of the layer: Metis knows no expert parallelism.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tangram.baselines.metis.profile import LayerProfile, MetisProfile, Point, shares
from tangram.baselines.replica_cost import portion_of
from tangram.cluster.spec import Slot
from tangram.cost.atoms import atom_costs
from tangram.cost.configs import tensor_parallel_degrees
from tangram.cost.setting import state_bytes_per_param
from tangram.cost.types import AtomCosts, StageConfig, StageConfigs
from tangram.model.spec import ModelSpec
from tangram.parallelizers.protocols import ClusterRequest
from tangram.units import MIB

_SYNC_MS = 0.001
"""Not zero: the published program takes a zero for a gap in the profile."""


def made_profile(
    request: ClusterRequest,
    groups: Sequence[Sequence[Slot]],
    max_batch: int,
    *,
    recompute: bool,
) -> MetisProfile:
    """Profiles the model of a request.

    Args:
        request: Model, atoms (the "layers"), and job.
        groups: Per kind of GPU, the GPUs of the node that is profiled.
        max_batch: Largest number of samples per rank.
        recompute: Whether layers are recomputed in full.
    """
    points: dict[Point, LayerProfile] = {}
    optimizer_ms = 0.0
    for kind, slots in enumerate(groups):
        for tp in _powers(len(slots)):
            if tp not in tensor_parallel_degrees(request.model, len(slots)):
                continue
            for batch in _powers(max_batch):
                costs = _costs(request, slots[:tp], batch)
                points[Point(kind, tp, batch)] = _layer_profile(request, costs, recompute=recompute)
                if tp == 1:
                    seconds = float(costs.components["optimizer"].sum())
                    optimizer_ms = max(optimizer_ms, seconds * 1e3)
    gradient_bytes, _ = state_bytes_per_param(request.job)
    return MetisProfile(
        points=points,
        parameter_bytes=tuple(gradient_bytes * count for count in _parameters(request, groups[0])),
        optimizer_ms=optimizer_ms,
        batch_ms=0.0,
        share=shares(points[Point(0, 1, 1)]),
    )


def replica_config(model: ModelSpec, dp: int, tp: int) -> StageConfig:
    """Returns the only kind of configuration that Metis knows: plain data and tensor parallelism."""
    widths = [layer.moe.expert.intermediate_size for layer in model.distinct_layers if layer.moe is not None]
    sharded = bool(widths) and all(width % tp == 0 for width in widths)
    return StageConfig(dp=dp, tp=tp, expert_tp=tp if sharded else 1, zero=0)


def _powers(most: int) -> list[int]:
    return [1 << bit for bit in range(most.bit_length())]


def _costs(request: ClusterRequest, slots: Sequence[Slot], batch: int) -> AtomCosts:
    config = replica_config(request.model, 1, len(slots))
    portion = portion_of(request, slots)
    return atom_costs(request.model, request.atoms, portion, StageConfigs.of([config]), batch, request.job)


def _layer_profile(request: ClusterRequest, costs: AtomCosts, *, recompute: bool) -> LayerProfile:
    again = np.array([recompute and bool(atom.layer_idxs) for atom in request.atoms])
    seconds = costs.forward_s[:, 0] + costs.backward_s[:, 0] + again * costs.recompute_s[:, 0]
    kept = np.where(again, costs.recomputed_stored_bytes[:, 0], costs.stored_bytes[:, 0])
    return LayerProfile(
        time_ms=tuple((seconds * 1e3).tolist()),
        memory_mb=tuple(((costs.state_bytes[:, 0] + kept) / MIB).tolist()),
        sync_ms=_SYNC_MS,
    )


def _parameters(request: ClusterRequest, slots: Sequence[Slot]) -> list[float]:
    """Parameters of every atom: what one GPU holds without any parallelism."""
    weights = _costs(request, slots[:1], 1).weight_bytes[:, 0]
    return [float(size) / request.job.precision.element_bytes for size in weights]
