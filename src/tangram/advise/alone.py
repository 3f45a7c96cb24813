"""A parallelizer for equal GPUs, applied to a mixed cluster as if all its GPUs were equal.

That is how a planner such as Alpa or Aceso is used on such a cluster without Tangram (the bars named after
them in the paper's figures). It is told of one island: nodes of equal size (:mod:`tangram.baselines.nodes`)
of the slowest part, with the smallest memory and the slowest links of all. It plans the whole model on all of
it, for every micro-batch size, and the plan that is fastest there is its answer. The referee then executes
that on the real GPUs, where the slowest of each stage sets its pace.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import combinations

from tangram.advise.referee import judge
from tangram.baselines.nodes import NodePart, equal_parts
from tangram.baselines.replica_cost import slowest_gpu
from tangram.cluster.islands import build_islands
from tangram.cluster.spec import Bridge, Cluster, Island, Node, Portion, Slot
from tangram.cluster.tolerances import Tolerances
from tangram.job import Job, Precision
from tangram.parallelizers.guard import guarded_plan
from tangram.parallelizers.protocols import (
    ClusterPlan,
    ClusterRequest,
    ClusterStage,
    Replicas,
    SlicePlan,
    SlicePlanner,
    SliceRequest,
)
from tangram.planner.placement import Placement, place

ALONE = "-alone"
"""Behind a parallelizer's name: that parallelizer applied so."""

SLOWEST_FIRST = "-alone-slowest-first"
"""The same, with the slow GPUs at the front of the pipeline."""

_ANY = Tolerances(compute=float("inf"), memory=float("inf"), intra=float("inf"), network=float("inf"))


class AlonePlanner:
    """A cluster planner made of a slice planner.

    Args:
        planner: The parallelizer.
        fastest_first: Whether nodes with fast GPUs hold the first layers; the paper tries both.
    """

    def __init__(self, planner: SlicePlanner, fastest_first: bool = True) -> None:
        self.name = planner.name + (ALONE if fastest_first else SLOWEST_FIRST)
        self.capabilities = planner.capabilities
        self._planner = planner
        self._fastest_first = fastest_first

    def plan_cluster(self, request: ClusterRequest) -> ClusterPlan | None:
        """Returns the plan that would be the fastest if all GPUs were like the slowest."""
        parts = _ordered(equal_parts(request.cluster), request.job.precision, self._fastest_first)
        seen = as_if_equal(request.cluster, parts, request.job.precision)
        believed = replace(request, cluster=seen)
        (island,) = build_islands(seen, request.job.precision, _ANY)
        homes = {node.name: part for node, part in zip(seen.nodes, parts, strict=True)}
        best: tuple[float, ClusterPlan] | None = None
        for micro_batch in request.job.micro_batches():
            for plan in _answers(self._planner, believed, island, micro_batch):
                verdict = judge(believed, plan)
                seconds = verdict.iteration_time_s
                if seconds is not None and verdict.is_executable and (best is None or seconds < best[0]):
                    best = seconds, plan
        if best is None:
            return None
        return replace(_on_real_nodes(best[1], homes), predicted_s=best[0])


def as_if_equal(cluster: Cluster, parts: tuple[NodePart, ...], precision: Precision) -> Cluster:
    """Returns a cluster of equal nodes, one for each part, each no better than any of them."""
    nodes = [part.part for part in parts]
    links = [cluster.bandwidth_bytes_per_s(a, b) for a, b in combinations(nodes, 2)]
    latencies = [cluster.latency_s(a, b) for a, b in combinations(nodes, 2)]
    nic = min(p.part.nic_bandwidth_bytes_per_s * p.part.num_gpus / p.whole.num_gpus for p in parts)
    like = replace(
        nodes[0],
        gpu=slowest_gpu([node.gpu for node in nodes], precision),
        intra_bandwidth_bytes_per_s=min(node.intra_bandwidth_bytes_per_s for node in nodes),
        intra_latency_s=max(node.intra_latency_s for node in nodes),
        intra_kind=min(nodes, key=lambda node: node.intra_bandwidth_bytes_per_s).intra_kind,
        nic_bandwidth_bytes_per_s=nic,
        group="all",
        bridge=_common_bridge(nodes),
        domain=nodes[0].domain if len({node.reach for node in nodes}) == 1 else None,
        nic_share_frac=min(node.nic_share_frac for node in nodes),
    )
    made = tuple(replace(like, name=f"node-{idx:05}", host=f"node-{idx:05}") for idx in range(len(nodes)))
    return Cluster(
        name=f"{cluster.name}, as if equal",
        nodes=made,
        default_bandwidth_bytes_per_s=min(links, default=cluster.default_bandwidth_bytes_per_s),
        default_latency_s=max(latencies, default=cluster.default_latency_s),
    )


def _common_bridge(nodes: Sequence[Node]) -> Bridge | None:
    """The slowest bridge, where all nodes have bridges of one size."""
    bridges = [node.bridge for node in nodes if node.bridge is not None]
    if len(bridges) < len(nodes) or len({bridge.size for bridge in bridges}) > 1:
        return None
    return min(bridges, key=lambda bridge: (bridge.bandwidth_bytes_per_s, -bridge.latency_s))


def _ordered(parts: tuple[NodePart, ...], precision: Precision, fastest_first: bool) -> tuple[NodePart, ...]:
    sign = -1 if fastest_first else 1
    return tuple(
        sorted(
            parts,
            key=lambda p: (
                sign * p.part.gpu.achieved_flop_per_s.get(precision, 0.0),
                p.whole.name,
                p.first_gpu,
            ),
        )
    )


def _answers(
    planner: SlicePlanner, believed: ClusterRequest, island: Island, micro_batch: int
) -> Iterator[ClusterPlan]:
    job: Job = believed.job
    question = SliceRequest(
        model=believed.model,
        atoms=believed.atoms,
        start=0,
        stop=len(believed.atoms),
        portion=Portion(island, island.num_nodes, island.gpus_per_node),
        micro_batch=micro_batch,
        num_micro_batches=job.global_batch // micro_batch,
        in_flight=1,
        link_in_bytes_per_s=None,
        link_out_bytes_per_s=None,
        job=job,
    )
    for plan in guarded_plan(planner, question).plans:
        yield _as_cluster_plan(plan, micro_batch)


def _as_cluster_plan(plan: SlicePlan, micro_batch: int) -> ClusterPlan:
    portions = [stage.portion for stage in plan.stages]
    placements = _in_order(portions) or place(portions)
    stages = tuple(
        ClusterStage(
            stage.start,
            stage.stop,
            (Replicas(placed.slots, stage.config, micro_batch, stage.atom_configs),),
            stage.recomputed,
        )
        for stage, placed in zip(plan.stages, placements, strict=True)
    )
    return ClusterPlan(micro_batch, stages)


def _in_order(portions: Sequence[Portion]) -> tuple[Placement, ...] | None:
    """Gives stages the next GPUs, node by node, so that a pipeline runs from the first node to the last; None
    where that would cut a node's GPUs between stages.
    """
    placements, taken = [], 0
    for portion in portions:
        size = portion.island.gpus_per_node
        room = size - taken % size
        if taken % size and (portion.num_nodes > 1 or portion.gpus_per_node > room):
            return None
        slots = tuple(
            Slot(portion.island.nodes[idx // size], idx % size)
            for idx in range(taken, taken + portion.num_gpus)
        )
        placements.append(Placement(portion, slots))
        taken += portion.num_gpus
    return tuple(placements)


def _on_real_nodes(plan: ClusterPlan, homes: dict[str, NodePart]) -> ClusterPlan:
    """The same plan with the real GPUs, of which the slowest of a stage counts for all of it."""
    stages = []
    for stage in plan.stages:
        (replicas,) = stage.replicas
        slots = tuple(homes[slot.node.name].slot(slot.gpu_idx) for slot in replicas.slots)
        stages.append(replace(stage, replicas=(replace(replicas, slots=slots),)))
    return replace(plan, stages=tuple(stages))
