"""A long chain of unequal layers: 160 of three kinds, by turns dense, windowed and with experts.

It has 12,880 slices, thousands of them different. Counts stand for seconds, which are records of one machine
(docs/benchmarks.md).
"""

from __future__ import annotations

from pathlib import Path

import pytest
from example_plans import example_cluster

from tangram.job import Job, Pins, Precision
from tangram.model.load import load_model, trim_layers
from tangram.plan.check import check_plan
from tangram.planner.options import PlanOptions
from tangram.planner.planner import plan
from tangram.planner.recost import cost_violations

MODEL = Path(__file__).parents[2] / "examples" / "models" / "three-kinds-10b.json"


def test_the_example_is_what_it_says() -> None:
    model = load_model(MODEL)
    assert model.num_layers == 160
    assert len(set(model.layers)) == 3
    slices = {model.layers[i:j] for i in range(160) for j in range(i + 1, 161)}
    assert len(slices) > 2_500


@pytest.mark.slow
def test_a_plan_with_a_proven_gap() -> None:
    job = Job(128, 2048, Precision.FP16)
    doc = plan(load_model(MODEL), example_cluster("c3-two-islands"), job, PlanOptions(workers=1))
    assert check_plan(doc) == []
    assert cost_violations(doc) == []
    assert 0 < doc.bound.gap_frac <= 0.01
    assert doc.search.counts["labels"] < 1_000_000
    assert doc.search.counts["options"] < 5_000_000


def test_the_same_of_40_layers_and_one_micro_batch_size() -> None:
    """Fast enough for every change; three kinds of layers all the same."""
    model, job = trim_layers(load_model(MODEL), 40), Job(32, 2048, Precision.FP16, pins=Pins(micro_batch=4))
    doc = plan(model, example_cluster("c3-two-islands"), job, PlanOptions(workers=1))
    assert check_plan(doc) == []
    assert cost_violations(doc) == []
    assert doc.bound.gap_frac <= 0.01
