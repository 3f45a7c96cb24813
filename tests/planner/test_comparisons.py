"""Is mixing worth it? The two lines beside the plan's own are honest: planned with the same means."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import product

import pytest
from byte_count import excess, state_bytes, usable_bytes
from example_plans import example_cluster, example_job, example_model, example_plan

from tangram.cluster.shorthand import parse_shorthand
from tangram.cluster.spec import Cluster
from tangram.job import Job, Pins, Precision
from tangram.model.load import load_model, trim_layers
from tangram.plan.schema import Comparison, PlanDocument
from tangram.planner.estimate import DictatedStage, estimate
from tangram.planner.options import PlanOptions
from tangram.planner.planner import plan
from tangram.units import GB

QUICK_SEARCH_FRAC = 0.04
"""A comparison is searched in a hurry: it may be this much slower than the best plan of its island."""

MIXED = "1x4xA100-40GB-SXM+1x4xV100-32GB-SXM2@100Gbit"


def lines(doc: PlanDocument) -> dict[str, Comparison]:
    assert [line.name for line in doc.comparisons] == ["single-island", "even-split", "tangram"]
    return {line.name: line for line in doc.comparisons}


def alone(cluster: Cluster, part: str) -> Cluster:
    return replace(cluster, nodes=tuple(node for node in cluster.nodes if node.gpu.name == part))


@pytest.mark.parametrize(
    ("cluster", "model", "part"),
    [
        ("c3-three-islands", "gpt3-13b", "A100-80GB-SXM"),
        ("c3-two-islands", "gshard-moe-10b", "A100-80GB-SXM"),
        ("c2-h100-a100", "gpt3-13b", "H100-80GB-SXM"),
        ("c2-h100-a100", "qwen3-30b-a3b", "H100-80GB-SXM"),
    ],
)
def test_the_single_island_is_as_fast_as_its_own_plan(cluster: str, model: str, part: str) -> None:
    line = lines(example_plan(cluster, model))["single-island"]
    parts = {node.gpu.name for node in example_cluster(cluster).nodes}
    job, spec = example_job(cluster, model), example_model(model)
    times = {}
    for name in sorted(parts):
        island = alone(example_cluster(cluster), name)
        if excess(spec, island, job) is None:
            times[name] = plan(spec, island, job).prediction.iteration_time_s
    fastest_s = min(times.values())
    assert times[part] == fastest_s
    assert line.iteration_time_s is not None
    assert fastest_s * (1 - 1e-9) <= line.iteration_time_s <= fastest_s * (1 + QUICK_SEARCH_FRAC)
    count = sum(node.num_gpus for node in alone(example_cluster(cluster), part).nodes)
    assert line.summary.startswith(f"{count}x {part} alone, ")


def test_a_cluster_of_one_island_is_its_own_comparison() -> None:
    doc = example_plan("c3-a100", "gpt3-13b")
    line = lines(doc)["single-island"]
    assert line.iteration_time_s == doc.prediction.iteration_time_s
    assert line.summary == "4x A100-80GB-SXM is all there is"


def test_a_plan_on_one_island_is_no_faster_than_that_island_alone() -> None:
    job = Job(64, 2048, Precision.FP16)
    doc = plan(load_model("gpt3-6.7b"), parse_shorthand("1x8xH100-80GB-SXM+1x2xT4@10Gbit"), job)
    assert {stage.island for stage in doc.stages} == {"H100-80GB-SXM"}
    assert lines(doc)["single-island"].iteration_time_s == doc.prediction.iteration_time_s


def test_what_no_island_holds_alone_has_no_time_but_a_reason() -> None:
    line = lines(example_plan("c2-h100-a100", "mixtral-8x7b"))["single-island"]
    assert line.iteration_time_s is None
    assert line.reason == "no island holds the model by itself"


def test_an_even_split_that_does_not_fit_has_no_time_but_a_reason() -> None:
    """A third of the model is too much for 4x V100-16GB, also by hand."""
    line = lines(example_plan("c3-three-islands", "gpt3-13b"))["even-split"]
    job, smallest = example_job("c3-three-islands", "gpt3-13b"), example_cluster("c3-three-islands")
    third = trim_layers(example_model("gpt3-13b"), 13)
    assert state_bytes(third, job) > usable_bytes(alone(smallest, "V100-16GB-SXM2"), job)
    assert line.iteration_time_s is None
    assert line.reason is not None
    assert line.reason.startswith("does not fit at any micro-batch size")
    assert line.summary.startswith("3 nodes, 14/13/13 ")


def test_the_even_split_has_the_best_degrees_of_each_stage() -> None:
    """Every pair of degrees is dictated: the line is one of them, and next to the fastest that fits."""
    model, cluster, job = load_model("gpt3-1.3b"), parse_shorthand(MIXED), Job(32, 1024, Precision.FP16)
    line = lines(plan(model, cluster, job))["even-split"]
    times = [
        doc.prediction.iteration_time_s
        for micro_batch in (1, 2, 4, 8, 16, 32)
        for doc in even_splits(micro_batch)
        if all(stage.predicted.headroom_bytes >= 0 for stage in doc.stages)
    ]
    assert line.iteration_time_s is not None
    assert any(math.isclose(line.iteration_time_s, time_s, rel_tol=1e-9) for time_s in times)
    assert line.iteration_time_s <= min(times) * 1.01


def even_splits(micro_batch: int) -> list[PlanDocument]:
    model, cluster = load_model("gpt3-1.3b"), parse_shorthand(MIXED)
    job = Job(32, 1024, Precision.FP16, pins=Pins(micro_batch=micro_batch))
    degrees = [(dp, 4 // dp, zero) for dp in (1, 2, 4) if micro_batch % dp == 0 for zero in zeros(dp)]
    return [
        estimate(model, cluster, job, [stage("A100-40GB-SXM", *front), stage("V100-32GB-SXM2", *behind)])
        for front, behind in product(degrees, degrees)
    ]


def zeros(dp: int) -> tuple[int, ...]:
    return (1, 2, 3) if dp > 1 else (0,)


def stage(island: str, dp: int, tp: int, zero: int) -> DictatedStage:
    return DictatedStage(None, island, 4, 12, dp=dp, tp=tp, zero=zero)


@pytest.mark.parametrize("global_batch", [8, 16, 32])
def test_the_plan_is_never_slower_than_what_it_is_compared_with(global_batch: int) -> None:
    doc = plan(load_model("gpt3-1.3b"), parse_shorthand(MIXED), Job(global_batch, 1024, Precision.FP16))
    by_name = lines(doc)
    own = by_name["tangram"]
    assert own.iteration_time_s == doc.prediction.iteration_time_s
    assert own.summary.startswith(f"{len(doc.stages)} stage")
    for line in (by_name["single-island"], by_name["even-split"]):
        assert line.iteration_time_s is not None
        assert own.iteration_time_s <= line.iteration_time_s * (1 + 1e-9)


@pytest.mark.slow
def test_a_slow_node_that_is_left_out_costs_nothing() -> None:
    """A third node behind 1 Gbit/s makes the search harder, and its plan no worse than without the node."""
    two, three = example_cluster("c3-two-islands"), example_cluster("c3-three-islands")
    slow = tuple(
        replace(node, nic_bandwidth_bytes_per_s=0.125 * GB) if node.name == "v100-16" else node
        for node in three.nodes
    )
    assert slow != three.nodes
    job, options = Job(1024, 2048, Precision.FP16), PlanOptions(parallelizers=("exact",))
    fewer, more = (plan(load_model("gpt3-13b"), c, job, options) for c in (two, replace(three, nodes=slow)))
    assert [idle.island for idle in more.idle] == ["V100-16GB-SXM2"]
    assert more.prediction.iteration_time_s <= fewer.prediction.iteration_time_s
