"""What users bring, case by case: odd numbers of layers, nodes, GPUs and experts, whole plans each."""

from __future__ import annotations

from pathlib import Path

import pytest

from tangram.cluster.readers import cluster_from_yaml, load_cluster
from tangram.cluster.shorthand import parse_shorthand
from tangram.cluster.spec import Cluster
from tangram.errors import InfeasibleError, InputError
from tangram.job import Job, Pins, Precision
from tangram.model.load import load_model
from tangram.plan.check import check_plan
from tangram.plan.schema import PlanDocument, StageSection
from tangram.planner.planner import plan
from tangram.planner.precision import choose_precision
from tangram.planner.recost import cost_violations
from tangram.yaml_reader import parse_yaml

EXAMPLES = Path(__file__).parents[2] / "examples" / "clusters"


def read(text: str) -> Cluster:
    return cluster_from_yaml(parse_yaml(text, "c.yaml"), "c")


def sound(doc: PlanDocument) -> PlanDocument:
    assert not check_plan(doc)
    assert not cost_violations(doc)
    return doc


def pace_s(stage: StageSection) -> float:
    return stage.predicted.forward_s + stage.predicted.backward_s


def test_forty_layers_on_sixteen_equal_gpus_in_sixteen_stages() -> None:
    """NVIDIA/Megatron-LM#1303: 40 layers in 16 stages, of which other planners build 32 or refuse."""
    cluster = parse_shorthand("2x8xA100-80GB-SXM@100Gbit")
    job = Job(128, 2048, Precision.BF16, pins=Pins(pp=16, micro_batch=1))
    doc = sound(plan(load_model("gpt3-13b"), cluster, job))
    layers = [stop - start for start, stop in (stage.layers for stage in doc.stages)]
    assert len(layers) == 16
    assert sum(layers) == 40
    assert set(layers) == {2, 3}
    inner = [pace_s(stage) for stage in doc.stages[1:-1]]
    layer_s = min(pace / count for pace, count in zip(inner, layers[1:-1], strict=True))
    for end in (doc.stages[0], doc.stages[-1]):
        assert pace_s(end) <= max(inner) + layer_s


def check_ranks(doc: PlanDocument) -> None:
    """Every rank has a GPU of its own, every GPU is used or idle, and no stage mixes kinds."""
    slots = [(slot.node, slot.gpu_idx) for stage in doc.stages for slot in stage.ranks]
    ranks = [slot.rank for stage in doc.stages for slot in stage.ranks]
    idle = [(slot.node, slot.gpu_idx) for group in doc.idle for slot in group.gpus]
    every = [(node.name, gpu_idx) for node in doc.cluster.nodes for gpu_idx in range(node.num_gpus)]
    assert ranks == list(range(len(slots)))
    assert sorted(slots + idle) == sorted(every)
    assert all(len({slot.gpu for slot in stage.ranks}) == 1 for stage in doc.stages)


def check_idle(doc: PlanDocument) -> None:
    """What idles is counted by its part, and a reason follows."""
    parts = {island.name: island.gpu for island in doc.islands}
    for group in doc.idle:
        counted, _, reason = group.reason.partition(parts[group.island])
        assert str(group.count) in counted
        assert len(reason) > 20


@pytest.mark.slow
def test_thirteen_billion_parameters_on_ragged_nodes() -> None:
    """Lightning-AI/pytorch-lightning#13506: 2x A100, 4x A40 and twice 8x RTX 3090, whose launcher hung."""
    cluster = load_cluster(str(EXAMPLES / "ragged-lab.yaml"))
    assert sorted(node.num_gpus for node in cluster.nodes) == [2, 4, 8, 8]
    doc = sound(plan(load_model("gpt3-13b"), cluster, Job(64, 2048, Precision.BF16)))
    check_ranks(doc)
    check_idle(doc)
    assert len({slot.gpu for stage in doc.stages for slot in stage.ranks}) > 1


def test_ragged_nodes_with_a_smaller_model() -> None:
    cluster = parse_shorthand("1x1xA100-80GB-SXM+1x2xA40+1x3xRTX-3090@25Gbit")
    doc = sound(plan(load_model("gpt3-1.3b"), cluster, Job(12, 2048, Precision.BF16)))
    check_ranks(doc)
    check_idle(doc)
    assert [island.gpus_per_node for island in doc.islands] == [1, 2, 3]


def test_a_job_in_bf16_leaves_the_v100s_out_and_says_why() -> None:
    cluster = parse_shorthand("1x4xA100-40GB-SXM+1x4xV100-32GB-SXM2@100Gbit")
    precision, why = choose_precision(cluster, Precision.BF16)
    assert precision is Precision.BF16
    assert "V100-32GB-SXM2 cannot take part" in why
    job = Job(64, 2048, precision)
    doc = sound(plan(load_model("llama-3-8b"), cluster, job, precision_reason=why))
    assert {slot.gpu for stage in doc.stages for slot in stage.ranks} == {"A100-40GB-SXM"}
    (left_out,) = doc.idle
    assert left_out.count == 4
    assert "V100-32GB-SXM2 has no bf16 matrix arithmetic" in left_out.reason
    assert "--precision fp16 would let it take part" in left_out.reason


def test_a_job_in_bf16_that_needs_the_v100s_is_proposed_fp16() -> None:
    cluster = parse_shorthand("1x4xA100-40GB-SXM+1x8xV100-32GB-SXM2@100Gbit")
    with pytest.raises(InfeasibleError) as caught:
        plan(load_model("gpt3-13b"), cluster, Job(64, 2048, Precision.BF16))
    told = "\n".join([str(caught.value), *caught.value.details, *caught.value.repairs])
    assert "V100-32GB-SXM2 has no bf16 matrix arithmetic" in told
    assert "with --precision fp16, which V100-32GB-SXM2 can take part in" in told


def test_a_job_without_a_precision_is_proposed_fp16_on_v100s() -> None:
    cluster = parse_shorthand("1x4xA100-40GB-SXM+1x4xV100-32GB-SXM2@100Gbit")
    assert choose_precision(cluster, None) == (Precision.FP16, "V100-32GB-SXM2 has no bf16")


def test_experts_share_the_ranks_of_tensor_parallelism() -> None:
    """ep re-slices the ranks of a stage: tp 4 with ep 8 needs 8 of them, not 32."""
    model, cluster = load_model("qwen3-30b-a3b"), parse_shorthand("1x8xH100-80GB-SXM")
    pins = Pins(tp=4, ep=8, offload="optimizer")
    doc = sound(plan(model, cluster, Job(16, 2048, Precision.BF16, pins=pins)))
    (stage,) = doc.stages
    assert (stage.tp, stage.dp, stage.ep, len(stage.ranks)) == (4, 2, 8, 8)
    with pytest.raises(InputError, match="ep 3 does not divide 128 experts") as caught:
        plan(model, cluster, Job(16, 2048, Precision.BF16, pins=Pins(tp=4, ep=3)))
    assert caught.value.where == "--ep"
    assert "legal: 1, 2, 4, 8" in str(caught.value)


def test_tensor_parallel_pairs_lie_on_bridges() -> None:
    intra = "{link: pcie, bridge: nvlink, groups: [[0, 2], [1, 3]]}"
    cluster = read(f"nodes: [{{name: a, gpus: 'RTX-3090:4', intra: {intra}}}]")
    doc = sound(plan(load_model("gpt3-1.3b"), cluster, Job(16, 2048, Precision.BF16, pins=Pins(tp=2))))
    for stage in doc.stages:
        gpus = [slot.gpu_idx for slot in stage.ranks]
        assert all({a, b} in ({0, 2}, {1, 3}) for a, b in zip(gpus[::2], gpus[1::2], strict=True))


def test_tensor_parallelism_spans_the_trays_of_a_rack() -> None:
    """A rack is one island; without a domain its trays are nodes, and tp 8 needs the user's leave."""
    model, job = load_model("gpt3-6.7b"), Job(32, 2048, Precision.BF16, pins=Pins(tp=8))
    doc = sound(plan(model, parse_shorthand("4x4xGB200@400Gbit"), job))
    assert all(len({slot.node for slot in stage.ranks[:8]}) == 2 for stage in doc.stages)
    apart = read("nodes: [{name: a, count: 4, gpus: 'GB200:4', domain: none}]")
    with pytest.raises(InputError, match="tp 8 divides no node"):
        plan(model, apart, job)


def test_a_line_between_sites_keeps_a_plan_at_home() -> None:
    """A micro-batch takes as long over 1 Gbit/s as many layers: the other site waits, with a reason."""
    cluster = read((EXAMPLES / "two-sites.yaml").read_text().replace("count: 2, ", ""))
    doc = sound(plan(load_model("gpt3-1.3b"), cluster, Job(16, 2048, Precision.FP16)))
    check_ranks(doc)
    check_idle(doc)
    assert {slot.node for stage in doc.stages for slot in stage.ranks} == {"east"}
    assert {group.island for group in doc.idle} == {"V100-32GB-SXM2", "V100-32GB-SXM2#2"}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "model", "micro_batch"),
    [
        ("consumer-10gbe", "llama-3-8b", 1),
        ("measured-links", "gpt3-2.6b", 4),
        ("nvl72-racks", "gpt3-13b", 64),
        ("two-sites", "gpt3-13b", 16),
    ],
)
def test_examples_are_planned(name: str, model: str, micro_batch: int) -> None:
    cluster = load_cluster(str(EXAMPLES / f"{name}.yaml"))
    precision, _ = choose_precision(cluster, None)
    job = Job(64, 2048, precision, pins=Pins(micro_batch=micro_batch))
    doc = sound(plan(load_model(model), cluster, job))
    check_ranks(doc)
    check_idle(doc)
    assert doc.bound.lower_bound_s <= doc.prediction.iteration_time_s
