"""One small plan by a parallelizer of the tests, wherever it runs."""

from __future__ import annotations

from typing import Any

import pytest
from small_jobs import small_cluster, small_model, small_node

import tangram
from tangram.executors.choice import ExecutorChoice
from tangram.job import Job, Pins, Precision
from tangram.planner import tables
from tangram.planner.options import PlanOptions


def plan_with(monkeypatch: pytest.MonkeyPatch, planner: Any, executor: ExecutorChoice) -> tangram.Plan:
    """Plans with a parallelizer that is registered for the occasion."""
    real = tables.get_parallelizer
    monkeypatch.setattr(
        tables, "get_parallelizer", lambda name: planner if name == planner.name else real(name)
    )
    cluster = small_cluster([small_node("a", "T4", 2), small_node("b", "V100-16GB-SXM2", 2)])
    job = Job(8, 512, Precision.FP16, pins=Pins(micro_batch=2))
    return tangram.plan(
        small_model(4), cluster, job, PlanOptions(parallelizers=(planner.name,), executor=executor)
    )
