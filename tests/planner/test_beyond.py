"""``auto``: exact, and degrees per layer where bounds leave room for them."""

from __future__ import annotations

import pytest
from example_plans import example_cluster, example_model

from tangram.cluster.readers import load_cluster
from tangram.job import Job, Precision
from tangram.model.load import trim_layers
from tangram.plan.check import check_plan
from tangram.plan.schema import PlanDocument
from tangram.planner.options import PlanOptions
from tangram.planner.planner import plan
from tangram.planner.recost import cost_violations

JOB = Job(32, 2048, Precision.FP16)


def planned(cluster: str, num_layers: int, *names: str, workers: int = 1) -> PlanDocument:
    """A plan of a few layers of GPT-3 13B."""
    model = trim_layers(example_model("gpt3-13b"), num_layers)
    return plan(model, example_cluster(cluster), JOB, PlanOptions(parallelizers=names, workers=workers))


@pytest.mark.parametrize(("cluster", "num_layers"), [("c3-two-islands", 36), ("c1-t4-v100-4-4", 8)])
def test_auto_is_never_slower_than_exact_and_its_bound_covers_both(cluster: str, num_layers: int) -> None:
    exact, auto = (planned(cluster, num_layers, name) for name in ("exact", "auto"))
    assert check_plan(auto) == []
    assert cost_violations(auto) == []
    assert auto.prediction.iteration_time_s <= exact.prediction.iteration_time_s
    assert auto.bound.lower_bound_s <= exact.bound.lower_bound_s * (1 + 1e-9)
    assert auto.bound.lower_bound_s <= auto.prediction.iteration_time_s
    assert auto.search.parallelizers == ["auto"]
    assert any("degrees per layer" in a.what or "layers differ" in a.what for a in auto.assumptions)


def test_where_nothing_can_be_gained_nobody_else_is_asked() -> None:
    # One GPU has one configuration, and memory to spare: all stages are what the bounds say.
    model = trim_layers(example_model("gpt3-1.3b"), 4)
    cluster = load_cluster("1x1xA100-80GB-SXM")
    auto = plan(model, cluster, JOB, PlanOptions(parallelizers=("auto",)))
    assert auto.search.counts["layerwise_queries"] == 0
    assert any(a.what == "degrees per layer would not help" for a in auto.assumptions)
    assert auto.bound.gap_frac < 1e-3


def test_the_number_of_workers_changes_nothing() -> None:
    one, two = (planned("c1-t4-v100-4-4", 6, "auto", workers=workers) for workers in (1, 2))
    assert one == two
