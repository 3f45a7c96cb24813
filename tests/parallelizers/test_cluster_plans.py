"""Structural faults of a whole-cluster plan: each lost or doubled thing is named."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tangram.cluster.spec import Node, Slot
from tangram.cost.types import StageConfig
from tangram.job import Job, Precision
from tangram.model.atoms import cut_atoms
from tangram.parallelizers.cluster_plans import cluster_plan_faults
from tangram.parallelizers.protocols import (
    Capabilities,
    ClusterPlan,
    ClusterRequest,
    ClusterStage,
    Replicas,
)
from tangram.testing import check_parallelizer
from tangram.testing.cases import llama_like, small_cluster

CLUSTER = small_cluster()
MODEL = llama_like()
REQUEST = ClusterRequest(MODEL, cut_atoms(MODEL), CLUSTER, Job(64, 256, Precision.BF16))
NUM_ATOMS = len(REQUEST.atoms)


def on_node(start: int, stop: int, node: Node) -> ClusterStage:
    """A stage on all GPUs of a node, dp 4, for micro-batches of 8 samples."""
    slots = tuple(Slot(node, idx) for idx in range(4))
    return ClusterStage(start, stop, (Replicas(slots, StageConfig(4, 1), 8),), (False,) * (stop - start))


GOOD = ClusterPlan(8, (on_node(0, 3, CLUSTER.nodes[0]), on_node(3, NUM_ATOMS, CLUSTER.nodes[1])))


def changed(stage: int, **fields: object) -> ClusterPlan:
    """The good plan with some fields of one stage replaced."""
    stages = list(GOOD.stages)
    stages[stage] = replace(stages[stage], **fields)  # type: ignore[arg-type]
    return replace(GOOD, stages=tuple(stages))


def one_replica(**fields: object) -> ClusterPlan:
    """The good plan with some fields of the first stage's replicas replaced."""
    return changed(0, replicas=(replace(GOOD.stages[0].replicas[0], **fields),))  # type: ignore[arg-type]


def test_a_whole_plan_has_no_fault() -> None:
    assert cluster_plan_faults(REQUEST, GOOD) == []


@pytest.mark.parametrize(
    ("plan", "fault"),
    [
        (replace(GOOD, stages=()), "there is no stage"),
        (replace(GOOD, micro_batch=7), "the micro-batch of 7 does not divide the batch of 64"),
        (replace(GOOD, stages=GOOD.stages[1:]), "atoms 0 to 2 are on no stage"),
        (replace(GOOD, stages=GOOD.stages[:1]), f"the last stage ends at atom 3 of {NUM_ATOMS}"),
        (changed(0, stop=2, recomputed=(False,) * 2), "atoms 2 to 2 are on no stage"),
        (changed(0, stop=4, recomputed=(False,) * 4), "stages 0 and 1 both hold atom 3"),
        (changed(0, recomputed=()), "stage 0: 0 recompute flags for 3 atoms"),
        (changed(1, replicas=()), "stage 1: it has no GPU"),
        (changed(1, replicas=GOOD.stages[0].replicas), "GPU 0 of node-0 is used 2 times"),
        (one_replica(samples=4), "stage 0: its replicas take 4 samples of a micro-batch of 8"),
        (one_replica(samples=6), "stage 0: 6 samples cannot be shared evenly by 4 replicas"),
        (one_replica(config=StageConfig(2, 1)), "stage 0: dp 2 x cp 1 x tp 1 is 2, there are 4 GPUs"),
        (
            one_replica(slots=tuple(Slot(CLUSTER.nodes[0], idx) for idx in (0, 1, 2, 4))),
            "there is no GPU 4 of node node-0",
        ),
    ],
)
def test_a_fault_is_named(plan: ClusterPlan, fault: str) -> None:
    assert fault in cluster_plan_faults(REQUEST, plan)


class FixedAnswer:
    """A cluster planner that answers every question with one stage on the first node."""

    name = "fixed"
    capabilities = Capabilities()

    def plan_cluster(self, request: ClusterRequest) -> ClusterPlan:
        return ClusterPlan(8, (on_node(0, len(request.atoms), request.cluster.nodes[0]),))


class LosesTheHead(FixedAnswer):
    def plan_cluster(self, request: ClusterRequest) -> ClusterPlan:
        return ClusterPlan(8, (on_node(0, len(request.atoms) - 1, request.cluster.nodes[0]),))


def test_conformance_of_a_cluster_planner() -> None:
    check_parallelizer(FixedAnswer())
    with pytest.raises(AssertionError, match="the last stage ends at atom"):
        check_parallelizer(LosesTheHead())


DP, TP = StageConfig(4, 1), StageConfig(2, 2)


def test_atoms_may_differ_in_configuration() -> None:
    assert cluster_plan_faults(REQUEST, one_replica(atom_configs=(DP, TP, TP))) == []
    two = tuple(replace(GOOD.stages[0].replicas[0], samples=4, atom_configs=(DP, TP, TP)) for _ in range(2))
    cases = [
        (one_replica(atom_configs=(DP, TP)), "2 configurations for 3 atoms"),
        (one_replica(atom_configs=(TP, TP, DP)), "the first StageConfig(dp=2"),
        (one_replica(atom_configs=(DP, TP, StageConfig(1, 2))), "dp 1 x cp 1 x tp 2 is 2, there are 4 GPUs"),
        (changed(0, replicas=two), "and so do its replicas"),
    ]
    for plan, fault in cases:
        assert any(fault in found for found in cluster_plan_faults(REQUEST, plan)), fault
