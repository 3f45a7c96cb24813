"""A plan file against the cost model and the simulator: what we write holds, what is tampered with shows."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from example_plans import example_cluster, example_job, example_model, example_plan

from tangram.job import Pins
from tangram.model.load import trim_layers
from tangram.parallelizers import registry
from tangram.plan.check import check_plan
from tangram.plan.json_io import read_plan, to_json
from tangram.plan.schema import PlanDocument
from tangram.planner.options import PlanOptions
from tangram.planner.planner import plan
from tangram.planner.recost import cost_violations, recost_plan, simulate_plan
from tangram.units import NS_PER_S

PLANS = [
    ("a100-v100-mixed", "gpt3-13b"),
    ("c1-t4-v100-8-8", "gshard-moe-10b"),
    ("c3-four-islands", "qwen3-30b-a3b"),
    ("c2-h100-a100", "mixtral-8x7b"),
]


def tampered(doc: PlanDocument, path: str, change: Callable[[Any], Any]) -> PlanDocument:
    """Returns the document with the field at a dotted path changed."""
    data = doc.model_dump(mode="json")
    *steps, last = [int(step) if step.isdigit() else step for step in path.split(".")]
    target: Any = data
    for step in steps:
        target = target[step]
    target[last] = change(target[last])
    return PlanDocument.model_validate(data)


def found_in(doc: PlanDocument) -> list[tuple[str, str]]:
    return [(violation.code, violation.where) for violation in cost_violations(doc)]


@pytest.mark.parametrize(("cluster", "model"), PLANS)
def test_what_the_planner_writes_is_what_the_cost_model_says(
    cluster: str, model: str, tmp_path: Path
) -> None:
    doc = example_plan(cluster, model)
    assert not cost_violations(doc)
    file = tmp_path / "plan.json"
    file.write_text(to_json(doc), encoding="utf-8")
    read = read_plan(file)
    assert not check_plan(read)
    assert not cost_violations(read)


@pytest.mark.parametrize(("cluster", "model"), PLANS)
def test_simulating_a_plan_gives_its_prediction(cluster: str, model: str) -> None:
    doc = example_plan(cluster, model)
    timeline = simulate_plan(doc)
    assert math.isclose(timeline.iteration_ns / NS_PER_S, doc.prediction.iteration_time_s, rel_tol=1e-9)
    assert math.isclose(sum(doc.prediction.breakdown.values()), doc.prediction.iteration_time_s, rel_tol=1e-8)


@pytest.mark.parametrize(("cluster", "model"), PLANS)
def test_recosting_finds_the_same_stages(cluster: str, model: str) -> None:
    doc = example_plan(cluster, model)
    placed = recost_plan(doc)
    assert placed.micro_batch == doc.pipelines[0].micro_batch
    assert [choice.start for choice in placed.stages] == [stage.atoms[0] for stage in doc.stages]
    for idx, stage in enumerate(doc.stages):
        assert round(placed.cost(idx).peak_bytes) == pytest.approx(stage.predicted.peak_bytes, rel=1e-9)
        assert placed.pipeline.stages[idx].forward_ns == pytest.approx(stage.predicted.forward_s * NS_PER_S)


STAGE = "pipelines.0.stages.1.predicted"


@pytest.mark.parametrize("name", ["forward_s", "backward_s", "step_s", "send_forward_s"])
@pytest.mark.parametrize("factor", [0.9, 1.0001])
def test_a_changed_stage_time_is_reported(name: str, factor: float) -> None:
    doc = tampered(example_plan("a100-v100-mixed", "gpt3-13b"), f"{STAGE}.{name}", lambda s: s * factor)
    assert found_in(doc) == [("stage-cost-differs", f"pipelines[0].stages[1].predicted.{name}")]


def test_a_changed_peak_is_reported() -> None:
    doc = example_plan("a100-v100-mixed", "gpt3-13b")
    smaller = tampered(doc, f"{STAGE}.peak_bytes", lambda size: size - 2**30)
    assert ("stage-cost-differs", "pipelines[0].stages[1].predicted.peak_bytes") in found_in(smaller)


def test_a_peak_that_is_changed_consistently_is_reported_all_the_same() -> None:
    """Item, peak and headroom agree, so the structural check has nothing to say."""
    doc = example_plan("a100-v100-mixed", "gpt3-13b")
    for name in ("memory.workspace", "peak_bytes"):
        doc = tampered(doc, f"{STAGE}.{name}", lambda size: size - 2**20)
    doc = tampered(doc, f"{STAGE}.headroom_bytes", lambda size: size + 2**20)
    assert not check_plan(doc)
    assert found_in(doc) == [("stage-cost-differs", "pipelines[0].stages[1].predicted.peak_bytes")]


@pytest.mark.parametrize("factor", [0.99, 1.01])
def test_a_changed_iteration_time_is_reported(factor: float) -> None:
    doc = example_plan("a100-v100-mixed", "gpt3-13b")
    changed = tampered(doc, "prediction.iteration_time_s", lambda s: s * factor)
    assert found_in(changed) == [("iteration-time-differs", "prediction.iteration_time_s")]


def test_a_changed_choice_shows_in_the_costs() -> None:
    doc = example_plan("c3-four-islands", "qwen3-30b-a3b")
    stage, row = next(
        (stage.index, row)
        for stage in doc.stages
        for row, entry in enumerate(stage.recompute)
        if entry.mode == "full"
    )
    changed = tampered(doc, f"pipelines.0.stages.{stage}.recompute.{row}.mode", lambda _: "none")
    where = {where for _, where in found_in(changed)}
    assert {
        f"pipelines[0].stages[{stage}].predicted.backward_s",
        f"pipelines[0].stages[{stage}].predicted.peak_bytes",
    } <= where


def test_a_changed_window_shows_in_memory_and_time() -> None:
    doc = example_plan("c3-four-islands", "qwen3-30b-a3b")
    changed = tampered(doc, "pipelines.0.schedule.in_flight.0", lambda window: window + 1)
    codes = {code for code, _ in found_in(changed)}
    assert "stage-cost-differs" in codes


def test_a_changed_island_is_reported_first() -> None:
    doc = example_plan("a100-v100-mixed", "gpt3-13b")
    changed = tampered(doc, "islands.0.intra_bandwidth_bytes_per_s", lambda rate: rate * 2)
    assert found_in(changed) == [("island-differs", "islands[0]")]


def test_plans_that_rest_on_measurements_are_not_compared() -> None:
    doc = tampered(
        example_plan("a100-v100-mixed", "gpt3-13b"), "prediction.iteration_time_s", lambda s: s * 2
    )
    assert cost_violations(doc)
    assert not cost_violations(tampered(doc, "prediction.basis", lambda _: "measured"))


@pytest.mark.parametrize(
    ("cluster", "name"), [("a100-v100-mixed", "gpt3-1.3b"), ("c2-h100-a100", "mixtral-8x7b")]
)
def test_plans_with_layers_that_differ_are_what_the_cost_model_says(
    cluster: str, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(registry._BUILT_IN, "mixed", ("mixed_planner", "MixedPlanner"))
    model = trim_layers(example_model(name), 6)
    job = replace(example_job(cluster, name), pins=Pins(micro_batch=16))
    doc = plan(model, example_cluster(cluster), job, PlanOptions(parallelizers=("mixed",), workers=1))
    mixed = [idx for idx, stage in enumerate(doc.stages) if stage.layer_configs]
    assert mixed
    file = tmp_path / "plan.json"
    file.write_text(to_json(doc), encoding="utf-8")
    read = read_plan(file)
    assert read == doc.model_validate_json(to_json(doc))
    assert not check_plan(read)
    assert not cost_violations(read)
    timeline = simulate_plan(read)
    assert math.isclose(timeline.iteration_ns / NS_PER_S, doc.prediction.iteration_time_s, rel_tol=1e-9)
    for idx, stage in enumerate(recost_plan(doc).stages):
        assert bool(stage.atom_configs) is (idx in mixed)
    reshard = doc.stages[mixed[0]].predicted.components["reshard"]
    assert reshard > 0
    other = tampered(doc, f"pipelines.0.stages.{mixed[0]}.layer_configs.1.zero", lambda old: 3 - old)
    assert "stage-cost-differs" in [code for code, _ in found_in(other)]
