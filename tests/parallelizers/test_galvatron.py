"""The parallelizer ``galvatron``: its promises, beside ``uniform``, and inside Tangram."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from tangram.advise.alone import AlonePlanner
from tangram.advise.referee import judge
from tangram.advise.sections import cluster_plan_section, cluster_plan_summary
from tangram.cluster.islands import build_islands
from tangram.cluster.shorthand import parse_shorthand
from tangram.cluster.spec import Portion, Slot
from tangram.cost.types import StageConfig
from tangram.job import Job, Pins, Precision, Recompute
from tangram.model.atoms import cut_atoms, parse_granularity
from tangram.model.load import load_model, trim_layers
from tangram.parallelizers.galvatron.planner import GalvatronPlanner
from tangram.parallelizers.invariants import plan_faults, recost
from tangram.parallelizers.protocols import (
    Capabilities,
    ClusterPlan,
    ClusterRequest,
    ClusterStage,
    Replicas,
    SlicePlan,
    SliceRequest,
)
from tangram.parallelizers.uniform import UniformPlanner
from tangram.plan.check import check_plan
from tangram.planner.options import PlanOptions
from tangram.planner.planner import plan
from tangram.planner.recost import cost_violations
from tangram.testing import check_parallelizer
from tangram.testing.cases import llama_like, slice_cases, small_gpu, small_island
from tangram.units import GIB

REQUESTS = [case.request for case in slice_cases(Capabilities())]


def judged(request: SliceRequest, plan: SlicePlan) -> float:
    """Sum of times, the slowest per further micro-batch, the longest step end."""
    costs = [recost(request, stage, 1) for stage in plan.stages]
    slowest = max(c.time_s for c in costs)
    further = (request.num_micro_batches - 1) * slowest
    return sum(c.time_s for c in costs) + further + max(c.step_s for c in costs)


def test_it_keeps_its_promises() -> None:
    check_parallelizer(GalvatronPlanner())


@cache
def v100_request(model: str, num_layers: int, micro_batch: int) -> SliceRequest:
    """GPUs that fill up soon: 8 V100 of 16 GB, 2 nodes."""
    spec = trim_layers(load_model(model), num_layers)
    job = Job(64, 2048, Precision.FP16)
    (island,) = build_islands(parse_shorthand("2x4xV100-16GB-SXM2@100Gbit"), job.precision)
    return SliceRequest(
        model=spec,
        atoms=cut_atoms(spec),
        start=0,
        stop=num_layers + 2,
        portion=Portion(island, 2, 4),
        micro_batch=micro_batch,
        num_micro_batches=64 // micro_batch,
        in_flight=1,
        link_in_bytes_per_s=None,
        link_out_bytes_per_s=None,
        job=job,
    )


QUESTIONS = [
    replace(v100_request(model, layers, micro_batch), start=start, stop=stop, in_flight=in_flight)
    for model, layers in (("gpt3-2.6b", 12), ("mixtral-8x7b", 3), ("gpt3-1.3b", 24))
    for micro_batch in (4, 8)
    for start, stop in ((0, layers + 2), (1, layers), (0, layers // 2))
    for in_flight in ((1,) if stop == layers + 2 else (2, 9))
]


@pytest.mark.parametrize("idx", range(len(QUESTIONS)))
def test_never_worse_than_uniform(idx: int) -> None:
    request = QUESTIONS[idx]
    plans = GalvatronPlanner().plan(request)
    even = UniformPlanner().plan(request)
    assert plans or not even
    for one in plans:
        assert plan_faults(request, one) == []
    values = [judged(request, one) for one in plans]
    assert values == sorted(values)
    if even:
        assert values[0] <= judged(request, even[0]) * (1 + 1e-9)


def test_it_is_better_than_uniform_where_memory_is_short() -> None:
    gains, mixed = [], 0
    for request in QUESTIONS:
        plans, even = GalvatronPlanner().plan(request), UniformPlanner().plan(request)
        if plans:
            mixed += any(stage.atom_configs for one in plans for stage in one.stages)
            gains.append(judged(request, even[0]) / judged(request, plans[0]) if even else np.inf)
    assert mixed >= 3
    assert max(g for g in gains if g < np.inf) > 1.05


@pytest.mark.parametrize("idx", range(0, len(REQUESTS), 5))
def test_the_same_where_there_is_room(idx: int) -> None:
    request = REQUESTS[idx]
    found = judged(request, GalvatronPlanner().plan(request)[0])
    assert found <= judged(request, UniformPlanner().plan(request)[0]) * (1 + 1e-9)


def whole(num_layers: int, granularity: str = "layer", pins: Pins = Pins()) -> SliceRequest:
    model = llama_like(num_layers)
    atoms = cut_atoms(model, parse_granularity(granularity))
    return replace(
        REQUESTS[0],
        model=model,
        atoms=atoms,
        start=0,
        stop=len(atoms),
        portion=Portion(small_island(), 2, 4),
        job=replace(REQUESTS[0].job, pins=pins),
    )


@pytest.mark.parametrize(
    "pins",
    [
        Pins(tp=2),
        Pins(zero=3),
        Pins(pp=2),
        Pins(dp=2, tp=2),
        Pins(recompute=Recompute.FULL),
        Pins(recompute=Recompute.NONE),
        Pins(recompute=Recompute.SELECTIVE),
        Pins(layers_per_stage=(1, 3)),
        Pins(offload="both"),
    ],
)
def test_pins_are_obeyed(pins: Pins) -> None:
    request = whole(4, pins=pins)
    plans = GalvatronPlanner().plan(request)
    assert plans
    for one in plans:
        assert plan_faults(request, one) == []
        if pins.pp is not None:
            assert len(one.stages) == pins.pp
        if pins.layers_per_stage is not None:
            assert [(s.start, s.stop) for s in one.stages] == [(0, 2), (2, 6)]


def test_nothing_legal_and_nothing_that_fits() -> None:
    assert GalvatronPlanner().plan(whole(4, pins=Pins(tp=8))) == []
    tiny = whole(4)
    island = small_island(small_gpu(GIB))
    assert GalvatronPlanner().plan(replace(tiny, portion=Portion(island, 2, 4))) == []


def test_models_of_many_atoms_are_cut_evenly() -> None:
    request = replace(whole(60, "operator"), num_micro_batches=2)
    assert len(request.atoms) > 200
    plans = GalvatronPlanner().plan(request)
    assert plans
    assert all(plan_faults(request, one) == [] for one in plans)
    assert judged(request, plans[0]) <= judged(request, UniformPlanner().plan(request)[0]) * (1 + 1e-9)


ISLANDS = ["2x4xV100-16GB-SXM2@25Gbit", "1x4xA100-40GB-SXM"]


@pytest.mark.parametrize("text", ISLANDS)
def test_inside_tangram_it_is_no_worse_than_alone(text: str) -> None:
    model = trim_layers(load_model("gpt3-2.6b"), 8)
    cluster, job = parse_shorthand(text), Job(32, 2048, Precision.FP16, pins=Pins(micro_batch=4))
    doc = plan(model, cluster, job, PlanOptions(parallelizers=("galvatron",), workers=1))
    assert check_plan(doc) == []
    assert cost_violations(doc) == []
    alone = AlonePlanner(GalvatronPlanner()).plan_cluster(
        ClusterRequest(model, cut_atoms(model), cluster, job)
    )
    assert alone is not None
    assert alone.predicted_s is not None
    assert doc.prediction.iteration_time_s <= alone.predicted_s * (1 + 1e-9)


@pytest.mark.parametrize("micro_batch", [2, 4])
def test_inside_tangram_it_is_equal_where_only_the_whole_portion_may_be_used(micro_batch: int) -> None:
    """One stage of two replicas: nothing is left to choose but what ``galvatron`` chooses."""
    model = trim_layers(load_model("gpt3-2.6b"), 8)
    cluster = parse_shorthand("1x2xV100-16GB-SXM2")
    job = Job(16, 2048, Precision.FP16, pins=Pins(micro_batch=micro_batch, pp=1, dp=2))
    doc = plan(model, cluster, job, PlanOptions(parallelizers=("galvatron",), workers=1))
    alone = AlonePlanner(GalvatronPlanner()).plan_cluster(
        ClusterRequest(model, cut_atoms(model), cluster, job)
    )
    assert alone is not None
    assert alone.predicted_s is not None
    assert doc.prediction.iteration_time_s == pytest.approx(alone.predicted_s, rel=1e-9)


def test_a_comparison_names_the_degrees_of_layers_that_differ() -> None:
    num, recomputed = len(QUESTIONS[0].atoms), tuple(bool(a.layer_idxs) for a in QUESTIONS[0].atoms)
    first, other = StageConfig(8, 1, zero=3), StageConfig(4, 2, zero=1)
    nodes = parse_shorthand("2x4xV100-16GB-SXM2@100Gbit")
    request = ClusterRequest(QUESTIONS[0].model, QUESTIONS[0].atoms, nodes, QUESTIONS[0].job)
    slots = tuple(Slot(node, idx) for node in nodes.nodes for idx in range(4))
    configs = (first,) + (other,) * (num - 2) + (first,)
    replicas = Replicas(slots, first, 8, configs)
    answer = ClusterPlan(8, (ClusterStage(0, num, (replicas,), recomputed),))
    verdict = judge(request, answer)
    assert verdict.iteration_time_s is not None
    (section,) = cluster_plan_section(request, answer, verdict).stages
    degrees = section.replicas[0].atom_degrees
    assert degrees == ["dp8 zero3", *["dp4 tp2 zero1"] * (num - 2), "dp8 zero3"]
    assert "8x V100-16GB-SXM2 dp8 zero3 + dp4 tp2 zero1" in cluster_plan_summary(answer, [num - 2])
