"""The rule of thumb: its order of layouts, its even split, and that it takes the first layout that fits."""

from __future__ import annotations

from dataclasses import replace

import pytest
from cluster_cases import JOB, PARTS, cluster_of, clusters, gpu_of, request_for, shape
from hypothesis import given, settings
from hypothesis import strategies as st

from tangram.advise.referee import judge
from tangram.baselines.megatron import MegatronPlanner, NodeOrder, split_layers
from tangram.cluster.spec import Cluster
from tangram.cost.types import StageConfig
from tangram.job import Job, Precision
from tangram.parallelizers.cluster_plans import cluster_plan_faults
from tangram.parallelizers.protocols import ClusterPlan, ClusterRequest
from tangram.parallelizers.registry import get_parallelizer
from tangram.testing import check_parallelizer
from tangram.testing.cases import llama_like, moe_like
from tangram.units import GIB, MIB

EVEN = replace(JOB, global_batch=240)  # Any number of GPUs up to six pairs divides it.
LONG = Job(global_batch=64, seq_len=16384, precision=Precision.BF16)


def planned(request: ClusterRequest, order: NodeOrder = NodeOrder.FASTEST_FIRST) -> ClusterPlan:
    plan = MegatronPlanner(order).plan_cluster(request)
    assert plan is not None
    return plan


def on_two_nodes(memory_mib: int, job: Job = LONG, num_layers: int = 16) -> ClusterPlan | None:
    """The tiny model on two nodes of four GPUs of that size."""
    gpu = gpu_of("part", memory_bytes=memory_mib * MIB)
    return MegatronPlanner().plan_cluster(
        request_for(cluster_of((gpu, 4), (gpu, 4)), llama_like(num_layers), job)
    )


def config_of(plan: ClusterPlan) -> StageConfig:
    configs = {kind.config for stage in plan.stages for kind in stage.replicas}
    assert len(configs) == 1
    return configs.pop()


@pytest.mark.parametrize("name", ["megatron", "megatron-slowest-first"])
def test_it_keeps_its_promises(name: str) -> None:
    planner = get_parallelizer(name)
    assert planner.name == name
    check_parallelizer(planner)


@given(st.integers(1, 130), st.integers(1, 40))
def test_layers_are_split_evenly(num_layers: int, num_stages: int) -> None:
    split = split_layers(num_layers, num_stages)
    inner = -(-num_layers // num_stages)
    if split is None:
        # The stages between the ends take so many that an end would have none.
        assert num_layers - max(num_stages - 2, 0) * inner < 2
        return
    assert sum(split) == num_layers
    assert set(split[1:-1]) <= {inner}
    assert inner >= split[0] >= split[-1] >= 1
    assert num_layers % num_stages or len(set(split)) == 1


@settings(max_examples=30, deadline=None)
@given(clusters, st.sampled_from(NodeOrder))
def test_all_gpus_train_the_whole_model(cluster: Cluster, order: NodeOrder) -> None:
    request = request_for(cluster, job=EVEN)
    plan = planned(request, order)
    assert cluster_plan_faults(request, plan) == []
    assert judge(request, plan).is_executable
    assert sum(len(kind.slots) for s in plan.stages for kind in s.replicas) == cluster.num_gpus
    config = config_of(plan)
    assert config.zero == (1 if config.dp > 1 else 0)


@settings(max_examples=20, deadline=None)
@given(clusters, st.randoms(use_true_random=False))
def test_neither_names_nor_order_of_nodes_change_a_plan(cluster: Cluster, rng: object) -> None:
    nodes = list(cluster.nodes)
    rng.shuffle(nodes)  # type: ignore[attr-defined]
    renamed = tuple(replace(node, name=f"x{i}", host=f"x{i}") for i, node in enumerate(nodes))
    again = planned(request_for(replace(cluster, nodes=renamed), job=EVEN))
    assert shape(again) == shape(planned(request_for(cluster, job=EVEN)))


def test_model_parallelism_grows_as_memory_shrinks() -> None:
    """Tensor parallelism first, then stages; full recomputation last; then nothing."""
    seen = []
    for memory_mib in range(8_000, 1_000, -100):
        plan = on_two_nodes(memory_mib)
        if plan is None:
            break
        config, full = config_of(plan), any(any(s.recomputed) for s in plan.stages)
        seen.append((full, config.tp, len(plan.stages)))
    else:
        pytest.fail("it fits on the smallest GPU")
    assert seen == sorted(seen)
    assert (False, 1, 1) in seen
    assert (False, 4, 2) in seen
    assert any(full for full, _, _ in seen)
    assert all(tp == 4 for full, tp, pp in seen if pp > 1)


def test_the_first_layout_that_fits_is_taken() -> None:
    """On equal GPUs the referee says the same of memory: no layout with fewer GPUs per replica fits."""
    gpu = gpu_of("part", memory_bytes=3_000 * MIB)
    request = request_for(cluster_of((gpu, 4), (gpu, 4)), llama_like(16), LONG)
    plan = planned(request)
    assert judge(request, plan).is_executable
    config = config_of(plan)
    assert (config.dp, config.tp) == (4, 2)
    (stage,) = plan.stages
    (replicas,) = stage.replicas
    wider = replace(config, dp=8, tp=1)
    for samples in (1, 2, 4, 8):
        other = replace(replicas, config=wider, samples=samples * 8)
        refused = replace(plan, micro_batch=samples * 8, stages=(replace(stage, replicas=(other,)),))
        assert not judge(request, refused).is_executable


def test_the_largest_micro_batch_that_fits_and_fills_the_pipeline() -> None:
    def samples(memory_mib: int, job: Job) -> int:
        plan = on_two_nodes(memory_mib, job)
        assert plan is not None
        return plan.micro_batch // config_of(plan).dp

    assert samples(40_000, JOB) == 4  # 32 samples on 8 GPUs.
    assert samples(1_900, LONG) == 2  # Two stages; 4 do not fit.
    assert samples(1_900, replace(LONG, global_batch=8)) == 1  # 2 would leave 4 micro-batches for two stages.


def test_the_smallest_gpu_decides() -> None:
    """A larger GPU beside small ones changes nothing: all are taken to be like the smallest."""
    small, large = gpu_of("a", memory_bytes=3_000 * MIB), gpu_of("a-large", memory_bytes=40 * GIB)
    even = request_for(cluster_of((small, 4), (small, 4)), llama_like(16), LONG)
    mixed = request_for(cluster_of((large, 4), (small, 4)), llama_like(16), LONG)
    assert planned(even).notes == planned(mixed).notes


def test_fast_nodes_hold_the_first_layers_or_the_last() -> None:
    tight = [replace(part, usable_memory_bytes=2_200 * MIB) for part in (PARTS[2], PARTS[0])]
    request = request_for(cluster_of((tight[0], 4), (tight[1], 4)), llama_like(16), LONG)
    for order, wanted in ((NodeOrder.FASTEST_FIRST, "fast"), (NodeOrder.SLOWEST_FIRST, "slow")):
        plan = planned(request, order)
        assert len(plan.stages) == 2
        assert {slot.node.gpu.name for slot in plan.stages[0].replicas[0].slots} == {wanted}


def test_experts_are_spread_over_the_node() -> None:
    """Eight experts, nodes of four GPUs: four ranks share them, tensor parallelism has none of them."""
    config = config_of(planned(request_for(cluster_of((PARTS[0], 4), (PARTS[0], 4)), moe_like())))
    assert (config.ep, config.expert_tp, config.dp) == (4, 1, 8)
    assert config_of(planned(request_for(cluster_of((PARTS[0], 4))))).ep == 1


def test_nodes_of_unequal_size_are_parts_of_a_common_one() -> None:
    request = request_for(cluster_of((PARTS[0], 4), (PARTS[1], 6)), job=EVEN)
    plan = planned(request)
    assert config_of(plan).tp <= 2
    assert sum(len(kind.slots) for s in plan.stages for kind in s.replicas) == 10


def test_gpus_without_the_precision_are_left_out() -> None:
    old = replace(
        PARTS[2], achieved_flop_per_s={Precision.FP16: 1e14}, peak_flop_per_s={Precision.FP16: 1e14}
    )
    plan = planned(request_for(cluster_of((PARTS[0], 4), (old, 4))))
    assert {slot.node.gpu.name for s in plan.stages for k in s.replicas for slot in k.slots} == {"fast"}
    assert MegatronPlanner().plan_cluster(request_for(cluster_of((old, 4)))) is None
