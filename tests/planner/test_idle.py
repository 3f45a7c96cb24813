"""GPUs left out have a reason in words, and its numbers hold against the cost model."""

from __future__ import annotations

import re
from functools import cache

import pytest
from example_plans import example_plan

from tangram.cluster.islands import build_islands
from tangram.cluster.shorthand import parse_shorthand
from tangram.cluster.spec import Cluster, Island, portions
from tangram.cost.configs import legal_configs
from tangram.cost.stage import stage_cost
from tangram.job import Job, Pins, Precision
from tangram.model.atoms import cut_atoms
from tangram.model.load import load_model, trim_layers
from tangram.model.spec import ModelSpec
from tangram.plan.check import check_plan
from tangram.plan.schema import IdleSection, PlanDocument
from tangram.planner.planner import plan

UNITS = {"s": 1.0, "ms": 1e-3}
FAST = "1x8xH100-80GB-SXM"


@cache
def planned(cluster: str, model: str, num_layers: int, global_batch: int) -> PlanDocument:
    spec = trim_layers(load_model(model), num_layers)
    doc = plan(spec, parse_shorthand(cluster), Job(global_batch, 2048, Precision.FP16))
    assert not check_plan(doc)
    return doc


def only_idle(doc: PlanDocument) -> IdleSection:
    (section,) = doc.idle
    return section


@pytest.mark.parametrize(
    ("slow", "num_layers", "global_batch"),
    [("1x2xT4@10Gbit", 32, 64), ("1x1xT4@100Gbit", 8, 64)],
)
def test_a_slow_island_is_left_out_with_the_pace_it_would_set(
    slow: str, num_layers: int, global_batch: int
) -> None:
    doc = planned(f"{FAST}+{slow}", "gpt3-6.7b", num_layers, global_batch)
    idle = only_idle(doc)
    count = int(slow.split("x")[1])
    assert (idle.island, idle.count) == ("T4", count)
    said = re.match(
        rf"{count}x T4 left out: with one layer they would set a pace at least ([\d.]+)x the present one; "
        r"the best plan found that .* takes ([\d.]+) (s|ms) \(\+([\d.]+) % against this one\)$",
        idle.reason,
    )
    assert said is not None, idle.reason
    cluster, job = doc.cluster.to_cluster(), doc.job.to_job()
    pace_s = max(stage.predicted.forward_s + stage.predicted.backward_s for stage in doc.stages)
    least_s = least_layer_s(doc.model.to_spec(), island_of(cluster, "T4"), doc.pipelines[0].micro_batch, job)
    assert 1.05 < float(said[1]) <= least_s / pace_s + 0.05, "rounded to one digit"
    present_s = doc.prediction.iteration_time_s
    forced_s = float(said[2]) * UNITS[said[3]]
    assert forced_s > present_s
    assert 100 * (forced_s / present_s - 1) == pytest.approx(float(said[4]), rel=0.02)


def island_of(cluster: Cluster, name: str) -> Island:
    return next(island for island in build_islands(cluster, Precision.FP16) if island.name == name)


def least_layer_s(model: ModelSpec, island: Island, micro_batch: int, job: Job) -> float:
    """Tries every configuration of every portion for one layer, whether it fits or not."""
    layer = cut_atoms(model)[1:2]
    num_micro_batches = job.global_batch // micro_batch
    costs = [
        stage_cost(model, layer, portion, config, micro_batch, num_micro_batches, 1, (False,), job)
        for portion in portions(island)
        for config in legal_configs(model, portion, micro_batch, job)
    ]
    return min(cost.time_s for cost in costs)


def test_a_far_island_is_left_out_with_what_it_would_cost() -> None:
    """4x T4 are fast enough for a few layers here; the link of 1 Gbit/s to them is not."""
    doc = planned("1x4xA100-80GB-SXM+1x4xT4@1Gbit", "gpt3-1.3b", 24, 32)
    assert only_idle(doc).reason.endswith("no plan that uses them was found within twice this one's time")


def test_an_island_that_holds_nothing_says_so() -> None:
    """Neither a layer nor an end of Llama 3 70B fits on one T4, whatever else is done."""
    doc = planned(f"{FAST}+1x1xT4@100Gbit", "llama-3-70b", 8, 16)
    idle = only_idle(doc)
    assert (idle.island, idle.count) == ("T4", 1)
    assert idle.reason.startswith("1x T4 left out: ")
    assert "the best plan found" not in idle.reason


def test_gpus_left_over_beside_a_stage_are_counted() -> None:
    """One stage of four GPUs is dictated on two nodes of four."""
    job = Job(16, 1024, Precision.FP16, pins=Pins(pp=1, dp=4, tp=1))
    idle = only_idle(plan(load_model("gpt3-1.3b"), parse_shorthand("2x4xV100-32GB-SXM2@100Gbit"), job))
    assert idle.count == 4
    assert len({slot.node for slot in idle.gpus}) == 1
    assert idle.reason.startswith("4 of 8x V100-32GB-SXM2 left over beside stages of 4 GPUs: ")


def test_nothing_is_idle_where_everything_is_used() -> None:
    doc = example_plan("c3-two-islands", "gpt3-13b")
    assert doc.num_gpus == 12
    assert not doc.idle
