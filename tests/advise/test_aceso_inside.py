"""Tangram with ``aceso`` inside, on a single island, beside ``aceso`` alone on the same GPUs.

Alone it plans the whole model on the whole island, for every micro-batch. That is one of the pieces which the
composition may use, so Tangram is never slower; where it may use nothing else, both are the same, but for the
placement of stages on nodes: Tangram looks for the best one, and with little memory there is a better one.
"""

from __future__ import annotations

from importlib.metadata import EntryPoint

import pytest

import tangram
from tangram.advise.alone import AlonePlanner
from tangram.cluster.spec import Cluster
from tangram.job import Job, Precision
from tangram.model.atoms import cut_atoms
from tangram.model.spec import ModelSpec
from tangram.parallelizers import registry
from tangram.parallelizers.aceso.planner import AcesoPlanner
from tangram.parallelizers.protocols import Capabilities, ClusterRequest
from tangram.planner.options import PlanOptions
from tangram.testing.cases import llama_like, moe_like, small_cluster, small_gpu

ROUNDING = 1e-9
NUM_GPUS = 8


class AcesoOnAll(AcesoPlanner):
    """Asked about the whole model on all GPUs only."""

    name = "aceso-on-all"
    capabilities = Capabilities(
        gpu_counts=frozenset({NUM_GPUS}), partial_slices=False, seconds_per_query=0.01
    )


CASES = {
    "dense": (llama_like(8), 40.0, 16),
    "few micro-batches": (llama_like(8), 40.0, 4),
    "little memory": (llama_like(8), 1.5, 16),
    "experts": (moe_like(6), 40.0, 16),
}


def question(name: str) -> tuple[ModelSpec, Cluster, Job]:
    model, memory_gib, batch = CASES[name]
    job = Job(global_batch=batch, seq_len=256, precision=Precision.BF16)
    return model, small_cluster(small_gpu(round(memory_gib * 2**30))), job


def alone_s(model: ModelSpec, cluster: Cluster, job: Job) -> float:
    request = ClusterRequest(model, cut_atoms(model), cluster, job)
    plan = AlonePlanner(AcesoPlanner()).plan_cluster(request)
    assert plan is not None
    assert plan.predicted_s is not None
    return plan.predicted_s


def inside_s(model: ModelSpec, cluster: Cluster, job: Job, parallelizer: str) -> float:
    document = tangram.plan(model, cluster, job, PlanOptions(parallelizers=(parallelizer,), workers=1))
    return document.prediction.iteration_time_s


@pytest.mark.parametrize("name", CASES)
def test_never_slower_than_alone(name: str) -> None:
    asked = question(name)
    assert inside_s(*asked, "aceso") <= alone_s(*asked) * (1 + ROUNDING)


@pytest.mark.parametrize("name", [name for name in CASES if name != "little memory"])
def test_equal_where_it_may_only_use_the_whole(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    entry = EntryPoint(AcesoOnAll.name, f"{__name__}:AcesoOnAll", registry.GROUP)
    monkeypatch.setattr(
        "importlib.metadata.entry_points", lambda group: [entry] if group == registry.GROUP else []
    )
    asked = question(name)
    assert inside_s(*asked, AcesoOnAll.name) == pytest.approx(alone_s(*asked), rel=ROUNDING)
