"""The referee: Tangram's own plans cost what they cost, stages of several kinds what their slowest does."""

from __future__ import annotations

from dataclasses import replace

import pytest
from example_plans import example_cluster, example_job, example_model
from referee_cases import as_cluster_plan

from tangram.advise.referee import judge
from tangram.cluster.spec import Cluster, Node, Slot
from tangram.cost.types import StageConfig
from tangram.job import Job, Precision
from tangram.model.atoms import cut_atoms
from tangram.parallelizers.protocols import ClusterPlan, ClusterRequest, ClusterStage, Replicas
from tangram.planner.planner import plan
from tangram.testing.cases import llama_like, small_cluster, small_gpu

MODEL = llama_like()
ATOMS = cut_atoms(MODEL)
JOB = Job(64, 256, Precision.BF16)


def request_on(*nodes: Node) -> ClusterRequest:
    """The small job on some nodes."""
    return ClusterRequest(MODEL, ATOMS, replace(small_cluster(), nodes=nodes), JOB)


def node(name: str, speed: float = 1.0, memory: float = 1.0) -> Node:
    """Four GPUs; ``speed`` and ``memory`` are factors."""
    gpu = small_gpu()
    part = replace(
        gpu,
        name=f"{gpu.name}-{speed}-{memory}",
        usable_memory_bytes=round(memory * gpu.usable_memory_bytes),
        achieved_flop_per_s={p: speed * rate for p, rate in gpu.achieved_flop_per_s.items()},
        memory_bandwidth_bytes_per_s=speed * gpu.memory_bandwidth_bytes_per_s,
    )
    like = small_cluster().nodes[0]
    return replace(like, name=name, host=name, gpu=part)


def replicas(on: Node, gpus: range, samples: int, config: StageConfig | None = None) -> Replicas:
    """Data-parallel replicas on some GPUs of a node."""
    return Replicas(tuple(Slot(on, idx) for idx in gpus), config or StageConfig(len(gpus), 1), samples)


def one_stage(*kinds: Replicas) -> ClusterPlan:
    """The whole model on one stage."""
    stage = ClusterStage(0, len(ATOMS), kinds, (False,) * len(ATOMS))
    return ClusterPlan(sum(kind.samples for kind in kinds), (stage,))


@pytest.mark.parametrize(
    ("cluster", "model"), [("c3-four-islands", "gpt3-13b"), ("c2-h100-a100", "gpt3-13b")]
)
def test_a_plan_of_tangrams_own_costs_what_its_document_says(cluster: str, model: str) -> None:
    job = replace(example_job(cluster, model), free_warmup=False)
    doc = plan(example_model(model), example_cluster(cluster), job)
    request, answer = as_cluster_plan(doc)
    verdict = judge(request, answer)
    assert verdict.faults == ()
    assert verdict.iteration_time_s == pytest.approx(doc.prediction.iteration_time_s, rel=1e-6)


def test_equal_replicas_are_one_kind_whatever_they_are_called() -> None:
    a, b = node("a"), node("b")
    request = request_on(a, b)
    together = Replicas(
        tuple(Slot(n, idx) for n in (a, b) for idx in range(4)), StageConfig(8, 1, zero=1), 16
    )
    apart = [replicas(n, range(4), 8, StageConfig(4, 1, zero=1)) for n in (a, b)]
    one, two = judge(request, one_stage(together)), judge(request, one_stage(*apart))
    assert one.faults == two.faults == ()
    assert two.iteration_time_s == pytest.approx(one.iteration_time_s, rel=1e-9)
    peaks = [kind.together.peak_bytes for cost in (*one.costs, *two.costs) for kind in cost.kinds]
    assert peaks == pytest.approx([peaks[0]] * 3, rel=1e-9)


def test_the_slowest_replica_sets_the_pace() -> None:
    fast, slow = node("fast"), node("slow", speed=0.25)
    request = request_on(fast, slow)
    mixed = judge(request, one_stage(replicas(fast, range(4), 8), replicas(slow, range(4), 8)))
    blind = judge(
        request_on(node("a", 0.25), node("b", 0.25)),
        one_stage(replicas(node("a", 0.25), range(4), 8), replicas(node("b", 0.25), range(4), 8)),
    )
    assert mixed.costs[0].forward_s == blind.costs[0].forward_s
    shared = judge(request, one_stage(replicas(fast, range(4), 12), replicas(slow, range(4), 4)))
    assert shared.iteration_time_s is not None
    assert mixed.iteration_time_s is not None
    assert shared.iteration_time_s < mixed.iteration_time_s


def test_a_plan_that_does_not_fit_has_a_time_and_a_reason() -> None:
    tight = node("tight", memory=0.002)
    verdict = judge(request_on(tight), one_stage(replicas(tight, range(4), 8)))
    assert verdict.iteration_time_s is not None
    assert not verdict.is_executable
    assert "stage 0" in verdict.faults[0]
    assert "more than a" in verdict.faults[0]


def test_a_plan_that_loses_layers_has_a_time_and_a_reason() -> None:
    a, b = node("a"), node("b")
    halves = tuple(
        ClusterStage(start, stop, (replicas(n, range(4), 8),), (False,) * (stop - start))
        for n, start, stop in ((a, 0, 2), (b, 3, len(ATOMS)))
    )
    verdict = judge(request_on(a, b), ClusterPlan(8, halves))
    assert verdict.iteration_time_s is not None
    assert verdict.faults == ("atoms 2 to 2 are on no stage",)


def test_a_plan_that_does_not_add_up_has_no_time() -> None:
    a = node("a")
    verdict = judge(request_on(a), one_stage(replicas(a, range(3), 8)))
    assert verdict.iteration_time_s is None
    assert verdict.pipeline is None
    assert "8 samples cannot be shared evenly by 3 replicas" in verdict.faults[0]


def test_tensor_parallel_degrees_may_differ_between_kinds() -> None:
    a, b = node("a"), node("b", speed=0.5)
    kinds = replicas(a, range(4), 4, StageConfig(2, 2)), replicas(b, range(4), 4, StageConfig(4, 1))
    verdict = judge(request_on(a, b), one_stage(*kinds))
    assert verdict.faults == ()
    assert verdict.iteration_time_s is not None


def test_unequal_numbers_on_nodes_share_the_nics() -> None:
    a, b = node("a"), node("b")
    slots = tuple(Slot(a, idx) for idx in range(4)) + tuple(Slot(b, idx) for idx in range(2))
    plan_ = one_stage(Replicas(slots, StageConfig(6, 1), 6))
    job = replace(JOB, global_batch=60)
    cluster = Cluster("two", (a, b), 12.5e9, 1e-5)
    verdict = judge(ClusterRequest(MODEL, ATOMS, cluster, job), plan_)
    assert verdict.faults == ()
