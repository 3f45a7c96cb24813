"""Which arithmetic a job runs in, why, and which GPUs that leaves out."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tangram.cluster.catalog import gpu
from tangram.cluster.shorthand import parse_shorthand
from tangram.cluster.spec import Cluster, GpuSpec
from tangram.errors import InfeasibleError, InputError
from tangram.job import Job, Precision
from tangram.model.load import load_model
from tangram.plan.check import check_plan
from tangram.planner.planner import plan
from tangram.planner.precision import choose_precision

AMPERE = "1x4xA100-40GB-SXM"
MIXED = f"{AMPERE}+1x4xV100-32GB-SXM2@100Gbit"
OLD = "1x4xV100-32GB-SXM2+1x4xT4@100Gbit"


def without(part: GpuSpec, *precisions: Precision) -> GpuSpec:
    kept = {p: rate for p, rate in part.peak_flop_per_s.items() if p not in precisions}
    achieved = {p: rate for p, rate in part.achieved_flop_per_s.items() if p not in precisions}
    return replace(part, peak_flop_per_s=kept, achieved_flop_per_s=achieved)


def cluster_of(*parts: GpuSpec) -> Cluster:
    template = parse_shorthand("1x2xT4").nodes[0]
    nodes = [replace(template, name=f"n{i}", host=f"n{i}", group=f"n{i}", gpu=p) for i, p in enumerate(parts)]
    return Cluster("mixed", tuple(nodes), 1e10, 1e-5)


@pytest.mark.parametrize(
    ("cluster", "precision", "reason"),
    [
        (AMPERE, Precision.BF16, "every GPU has bf16"),
        (MIXED, Precision.FP16, "V100-32GB-SXM2 has no bf16"),
        (OLD, Precision.FP16, "T4 and V100-32GB-SXM2 have no bf16"),
    ],
)
def test_the_best_common_precision_is_taken(cluster: str, precision: Precision, reason: str) -> None:
    assert choose_precision(parse_shorthand(cluster), None) == (precision, reason)


def test_fp32_where_no_16_bit_format_is_common() -> None:
    halves = cluster_of(without(gpu("A100-40GB-SXM"), Precision.FP16), gpu("V100-32GB-SXM2"))
    assert choose_precision(halves, None) == (Precision.FP32, "no 16-bit format is common to all GPUs")


@pytest.mark.parametrize("precision", [Precision.BF16, Precision.FP16, Precision.TF32, Precision.FP32])
def test_what_was_asked_for_stands(precision: Precision) -> None:
    assert choose_precision(parse_shorthand(AMPERE), precision) == (precision, "as asked")


def test_what_one_part_has_stands_and_the_others_are_named() -> None:
    precision, reason = choose_precision(parse_shorthand(f"1x4xT4+{MIXED}"), Precision.BF16)
    assert precision is Precision.BF16
    assert reason == "as asked; T4 and V100-32GB-SXM2 cannot take part"


@pytest.mark.parametrize(
    ("cluster", "asked", "message"),
    [
        (OLD, Precision.BF16, "T4 and V100-32GB-SXM2 have no bf16 matrix arithmetic"),
        ("2x8xV100-16GB-SXM2", Precision.TF32, "V100-16GB-SXM2 has no tf32 matrix arithmetic"),
    ],
)
def test_what_no_gpu_has_is_refused(cluster: str, asked: Precision, message: str) -> None:
    with pytest.raises(InputError) as caught:
        choose_precision(parse_shorthand(cluster), asked)
    assert caught.value.message == message
    assert caught.value.where == "--precision"
    assert caught.value.hint == "legal on this cluster: fp32, fp16"


def test_parts_without_the_precision_are_left_out_with_the_reason() -> None:
    cluster = parse_shorthand(MIXED)
    doc = plan(load_model("gpt3-1.3b"), cluster, Job(16, 1024, Precision.BF16))
    assert not check_plan(doc)
    assert {stage.island for stage in doc.stages} == {"A100-40GB-SXM"}
    (idle,) = (section for section in doc.idle if section.island == "V100-32GB-SXM2")
    assert idle.count == 4
    assert idle.reason == (
        "V100-32GB-SXM2 has no bf16 matrix arithmetic; --precision fp16 would let it take part"
    )
    assert doc.comparisons[0].iteration_time_s == doc.prediction.iteration_time_s


def test_a_refusal_names_the_parts_that_do_not_count() -> None:
    cluster = parse_shorthand("1x1xA100-40GB-SXM+1x4xV100-32GB-SXM2@100Gbit")
    with pytest.raises(InfeasibleError) as caught:
        plan(load_model("gpt3-6.7b"), cluster, Job(8, 512, Precision.BF16))
    reason = (
        "V100-32GB-SXM2 is not counted: V100-32GB-SXM2 has no bf16 matrix arithmetic; "
        "--precision fp16 would let it take part"
    )
    assert reason in caught.value.details
