"""Plans of Tangram's own in the words of a cluster planner."""

from __future__ import annotations

from tangram.cluster.spec import Slot
from tangram.model.atoms import cut_atoms
from tangram.parallelizers.protocols import ClusterPlan, ClusterRequest, ClusterStage, Replicas
from tangram.plan.schema import PlanDocument, StageSection
from tangram.planner.recost import recost_plan


def as_cluster_plan(doc: PlanDocument) -> tuple[ClusterRequest, ClusterPlan]:
    """Returns the question and the answer of a plan document, which has plain windows."""
    placed = recost_plan(doc)
    cluster = doc.cluster.to_cluster()
    request = ClusterRequest(placed.model, cut_atoms(placed.model), cluster, placed.job)

    def slots(section: StageSection) -> tuple[Slot, ...]:
        return tuple(Slot(cluster.node(rank.node), rank.gpu_idx) for rank in section.ranks)

    stages = [
        ClusterStage(
            choice.start,
            choice.stop,
            (Replicas(slots(section), choice.config, placed.micro_batch),),
            choice.recomputed,
        )
        for choice, section in zip(placed.stages, doc.pipelines[0].stages, strict=True)
    ]
    return request, ClusterPlan(placed.micro_batch, tuple(stages))
