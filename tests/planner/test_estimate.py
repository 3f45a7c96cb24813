"""Pipelines that the user dictates: refused with the legal values, or predicted as a plan would be."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
from example_plans import example_cluster, example_job, example_model

from tangram.cluster.shorthand import parse_shorthand
from tangram.cluster.tolerances import Tolerances
from tangram.errors import InputError
from tangram.job import Job, Pins, Precision, Recompute
from tangram.model.load import load_model
from tangram.plan.check import check_plan
from tangram.plan.json_io import to_json
from tangram.plan.schema import PlanDocument, StageSection
from tangram.planner.estimate import DictatedStage, estimate
from tangram.planner.planner import plan
from tangram.planner.recost import cost_violations, simulate_plan
from tangram.units import NS_PER_S

NEW, OLD = "A100-40GB-SXM", "V100-32GB-SXM2"
CLUSTER = parse_shorthand(f"1x4x{NEW}+2x4x{OLD}@100Gbit")
NEW_NODE, OLD_NODES = "a100-40gb-sxm", ("v100-32gb-sxm2-0", "v100-32gb-sxm2-1")
MODEL = load_model("gpt3-1.3b")
JOB = Job(16, 1024, Precision.FP16)


def on(place: str | tuple[str, ...], gpus: int, layers: int, **choices: Any) -> DictatedStage:
    """A stage on an island (by its name) or on nodes (a tuple of names)."""
    nodes, island = (place, None) if isinstance(place, tuple) else (None, place)
    return DictatedStage(nodes, island, gpus, layers, **choices)


def dictated(stage: StageSection) -> DictatedStage:
    """The stage of a plan in the words of a user."""
    full = sum(row.mode is Recompute.FULL for row in stage.recompute)
    selective = any(row.mode is Recompute.SELECTIVE for row in stage.recompute)
    assert not (full and selective)
    assert stage.expert_tp == 1
    return DictatedStage(
        nodes=tuple(dict.fromkeys(slot.node for slot in stage.ranks)),
        island=None,
        num_gpus=len(stage.ranks),
        num_layers=stage.layers[1] - stage.layers[0],
        dp=stage.dp,
        tp=stage.tp,
        cp=stage.cp,
        ep=stage.ep,
        zero=stage.zero,
        recompute=Recompute.FULL if full else Recompute.SELECTIVE if selective else Recompute.NONE,
        num_recomputed_layers=full,
    )


def copy_of(doc: PlanDocument) -> PlanDocument:
    """Dictates what a plan decided; plain 1F1B holds as many micro-batches in flight as the plan."""
    windows = doc.pipelines[0].schedule.in_flight
    assert windows == list(range(len(windows), 0, -1))
    job = replace(doc.job.to_job(), pins=Pins(micro_batch=doc.pipelines[0].micro_batch))
    stages = [dictated(stage) for stage in doc.stages]
    return estimate(doc.model.to_spec(), doc.cluster.to_cluster(), job, stages)


def predicts_the_same(doc: PlanDocument, copy: PlanDocument) -> None:
    assert math.isclose(copy.prediction.iteration_time_s, doc.prediction.iteration_time_s, rel_tol=1e-9)
    for stage, again in zip(doc.stages, copy.stages, strict=True):
        assert [slot.node for slot in again.ranks] == [slot.node for slot in stage.ranks]
        assert again.predicted.memory == stage.predicted.memory
    assert not check_plan(copy)
    assert not cost_violations(copy)


@pytest.mark.parametrize(
    ("cluster", "model"),
    [("c3-a100", "gpt3-13b"), ("c2-h100-a100", "gpt3-13b")],
)
def test_a_dictated_copy_of_an_example_predicts_the_same(cluster: str, model: str) -> None:
    job = replace(example_job(cluster, model), free_warmup=False)
    doc = plan(example_model(model), example_cluster(cluster), job)
    predicts_the_same(doc, copy_of(doc))


@pytest.mark.parametrize(
    ("model", "pins"),
    [
        ("gpt3-6.7b", Pins()),
        ("gpt3-6.7b", Pins(recompute=Recompute.FULL)),
        ("gpt3-6.7b", Pins(recompute=Recompute.SELECTIVE)),
        ("llama-3-8b", Pins(pp=4)),
        ("llama-3-8b", Pins(cp=2)),
        ("gshard-moe-7.1b", Pins(tp=1, pp=3, recompute=Recompute.NONE)),
    ],
)
def test_a_dictated_copy_of_a_mixed_plan_predicts_the_same(model: str, pins: Pins) -> None:
    job = Job(32, 1024, Precision.FP16, pins=pins, free_warmup=False)
    doc = plan(load_model(model), CLUSTER, job)
    assert len(doc.stages) > 1
    predicts_the_same(doc, copy_of(doc))


def test_the_micro_batch_is_the_fastest_that_fits() -> None:
    stages = [on(NEW, 4, 16, dp=4, zero=1), on(OLD, 4, 8, tp=2, dp=2)]
    free = estimate(MODEL, CLUSTER, JOB, stages)
    assert free.search.micro_batches_considered == [4, 8, 16]
    pinned = [
        estimate(MODEL, CLUSTER, replace(JOB, pins=Pins(micro_batch=size)), stages) for size in (4, 8, 16)
    ]
    fits = [doc for doc in pinned if all(s.predicted.headroom_bytes >= 0 for s in doc.stages)]
    assert free.prediction.iteration_time_s == min(doc.prediction.iteration_time_s for doc in fits)


def test_a_pipeline_that_does_not_fit_is_predicted_with_negative_headroom() -> None:
    doc = estimate(MODEL, CLUSTER, Job(16, 2048, Precision.FP16), [on(OLD, 1, 24)])
    predicted = doc.stages[0].predicted
    assert predicted.headroom_bytes == predicted.capacity_bytes - predicted.peak_bytes < 0
    assert predicted.peak_bytes == sum(predicted.memory.values())
    assert doc.prediction.iteration_time_s > 0
    assert [violation.code for violation in check_plan(doc)] == ["memory-over-capacity"]


def test_a_dictated_plan_is_a_whole_document() -> None:
    doc = estimate(MODEL, CLUSTER, JOB, [on(NEW, 4, 20, dp=4, zero=1), on(OLD, 4, 4, tp=4)])
    assert not check_plan(doc)
    assert not cost_violations(doc)
    assert doc.search.parallelizers == ["dictated"]
    assert doc.bound.lower_bound_s <= doc.prediction.iteration_time_s
    assert not doc.bound.proven_optimal
    assert [(section.island, section.count) for section in doc.idle] == [(OLD, 4)]
    assert math.isclose(
        simulate_plan(doc).iteration_ns / NS_PER_S, doc.prediction.iteration_time_s, rel_tol=1e-9
    )


def test_ends_without_layers_are_legal() -> None:
    doc = estimate(MODEL, CLUSTER, JOB, [on(OLD, 4, 0, dp=4), on(NEW, 4, 24, dp=4), on(OLD, 4, 0, dp=4)])
    assert [stage.layers for stage in doc.stages] == [(0, 0), (0, 24), (24, 24)]
    assert not check_plan(doc)


def test_named_nodes_are_the_ones_taken() -> None:
    doc = estimate(MODEL, CLUSTER, JOB, [on((OLD_NODES[1],), 4, 12, dp=4), on((OLD_NODES[0],), 4, 12, dp=4)])
    assert [stage.ranks[0].node for stage in doc.stages] == [OLD_NODES[1], OLD_NODES[0]]


def test_two_stages_share_a_named_node() -> None:
    doc = estimate(MODEL, CLUSTER, JOB, [on((NEW_NODE,), 2, 12, dp=2), on((NEW_NODE,), 2, 12, dp=2)])
    assert [[slot.gpu_idx for slot in stage.ranks] for stage in doc.stages] == [[0, 1], [2, 3]]


@pytest.mark.parametrize(("asked", "recomputed"), [(None, 24), (0, 0), (5, 5), (24, 24)])
def test_as_many_layers_are_recomputed_as_dictated(asked: int | None, recomputed: int) -> None:
    stage = on(NEW, 4, 24, dp=4, zero=1, recompute=Recompute.FULL, num_recomputed_layers=asked)
    doc = estimate(MODEL, CLUSTER, JOB, [stage])
    assert sum(row.mode is Recompute.FULL for row in doc.stages[0].recompute) == recomputed


def test_infinite_tolerances_are_null_in_the_document() -> None:
    doc = estimate(MODEL, CLUSTER, JOB, [on(NEW, 4, 24, dp=4)], tolerances=Tolerances(network=math.inf))
    assert doc.tolerances["network"] is None
    assert "Infinity" not in to_json(doc)


@pytest.mark.parametrize(
    ("stages", "message"),
    [
        ([], "no stage is given"),
        ([on(NEW, 4, 16, dp=4), on(OLD, 4, 9, dp=4)], "the stages hold 25 layers, gpt3-1.3b has 24"),
        ([on(NEW, 4, 24, dp=4), on(OLD, 4, 0, dp=4), on(OLD, 4, 0, dp=4)], "stage 1 has 0 layers"),
        ([on(NEW, 4, 24, tp=2)], "dp 1 x cp 1 x tp 2 is 2, the stage has 4 GPUs"),
        ([on(NEW, 3, 24, dp=3)], "stage 0 takes 3 of 4 GPUs"),
        ([on(NEW, 8, 24, dp=8)], f"stage 0 cannot take 8 GPUs of {NEW}"),
        ([on(OLD, 6, 24, dp=6)], "stage 0 takes 3 of 4 GPUs of 2 nodes"),
        ([on(NEW, 4, 12, dp=4), on(NEW, 4, 12, dp=4)], f"the stages take 8 GPUs of {NEW}, which has 4"),
        ([on((NEW_NODE, OLD_NODES[0]), 8, 24, dp=8)], "stage 0 takes nodes of 2 islands"),
        (
            [on((NEW_NODE,), 4, 12, dp=4), on((NEW_NODE,), 2, 12, dp=2)],
            f"stage 1 takes 2 GPUs of {NEW_NODE}, 0 are left",
        ),
    ],
)
def test_stages_that_are_not_there_are_refused(stages: list[DictatedStage], message: str) -> None:
    with pytest.raises(InputError) as caught:
        estimate(MODEL, CLUSTER, JOB, stages)
    assert message in caught.value.message
    assert caught.value.where is not None
    assert caught.value.where.startswith("--stages")


@pytest.mark.parametrize(
    ("stage", "message", "hint"),
    [
        (on(OLD, 8, 24, tp=8), "tp 8 is not legal here", "legal: 1, 2, 4"),
        (on(NEW, 4, 24, dp=4, ep=2), "ep 2 is not legal here", "legal: 1"),
        (on(NEW, 4, 24, dp=4, zero=4), "zero 4", "legal: 0 to 3"),
    ],
)
def test_illegal_degrees_are_refused_with_the_legal_ones(
    stage: DictatedStage, message: str, hint: str
) -> None:
    with pytest.raises(InputError) as caught:
        estimate(MODEL, CLUSTER, JOB, [stage])
    assert caught.value.where == "--stages, stage 0"
    assert caught.value.message == message
    assert caught.value.hint == hint


def test_degrees_have_to_divide_sequence_and_batch() -> None:
    with pytest.raises(InputError, match="cp 4 x tp 1 does not divide the sequence of 1022 tokens"):
        estimate(MODEL, CLUSTER, replace(JOB, seq_len=1022), [on(NEW, 4, 24, cp=4)])
    with pytest.raises(InputError, match=r"no micro-batch divides by every dp \(4\)"):
        estimate(MODEL, CLUSTER, replace(JOB, global_batch=6), [on(NEW, 4, 24, dp=4)])
    with pytest.raises(InputError, match=f"{OLD} has no bf16"):
        estimate(MODEL, CLUSTER, replace(JOB, precision=Precision.BF16), [on(OLD, 4, 24, dp=4)])
