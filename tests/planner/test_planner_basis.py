"""Plans that rest on constants of a user's own: every part of the planner has to use them."""

from __future__ import annotations

from dataclasses import replace

import pytest
from example_plans import example_cluster, example_job, example_model, example_plan
from small_jobs import small_cluster, small_model, small_node

import tangram
from tangram.basis import CostBasis, Override
from tangram.cluster.spec import Cluster
from tangram.cost.constants import cluster_constants
from tangram.errors import InputError
from tangram.job import Job, Pins, Precision
from tangram.plan.check import check_plan
from tangram.plan.json_io import parse_plan, to_json
from tangram.plan.schema import PlanDocument
from tangram.planner.options import PlanOptions
from tangram.planner.recost import cost_violations, recost_plan, simulate_plan

CASES = [
    ("a100-v100-mixed", "gpt3-13b"),
    ("c1-t4-v100-8-8", "gshard-moe-10b"),
    ("c2-h100-a100", "mixtral-8x7b"),
]


def basis(*overrides: tuple[str, str, str, float]) -> CostBasis:
    return CostBasis("mine", "rack", tuple(Override(*override) for override in overrides))


def halved_networks(cluster: Cluster) -> Cluster:
    nodes = tuple(
        replace(n, nic_bandwidth_bytes_per_s=n.nic_bandwidth_bytes_per_s / 2) for n in cluster.nodes
    )
    links = tuple(replace(x, bandwidth_bytes_per_s=x.bandwidth_bytes_per_s / 2) for x in cluster.links)
    return replace(
        cluster,
        nodes=nodes,
        links=links,
        default_bandwidth_bytes_per_s=cluster.default_bandwidth_bytes_per_s / 2,
    )


def said(doc: PlanDocument) -> object:
    """All that a plan predicts and decides."""
    return (
        doc.prediction.iteration_time_s,
        doc.bound.lower_bound_s,
        [(c.name, c.iteration_time_s) for c in doc.comparisons],
        [stage.model_dump() for stage in doc.stages],
        doc.search.counts,
    )


@pytest.mark.parametrize(("cluster", "model"), CASES)
def test_half_the_efficiency_of_networks_is_half_their_bandwidth(cluster: str, model: str) -> None:
    """Two ways to say the same: no part of the planner may keep to the shipped constants."""
    job, spec, loaded = example_job(cluster, model), example_model(model), example_cluster(cluster)
    half = cluster_constants().nic_efficiency / 2
    found = tangram.plan(spec, loaded, replace(job, basis=basis(("cluster", "rack", "nic_efficiency", half))))
    expected = tangram.plan(spec, halved_networks(loaded), job)
    assert said(found) == said(expected)
    assert found.prediction.iteration_time_s > example_plan(cluster, model).prediction.iteration_time_s


@pytest.mark.parametrize(("cluster", "model"), CASES)
def test_a_plan_is_checked_and_costed_again_from_itself(cluster: str, model: str) -> None:
    own = basis(
        ("cluster", "rack", "nvlink_efficiency", 0.4),
        ("cluster", "rack", "nic_efficiency", 0.5),
        ("stack", "mine", "launch_s", 3e-4),
        ("stack", "mine", "exposed_floor_frac", 0.7),
        ("gpu_family", "ampere", "gemm_efficiency", 0.7),
    )
    job = replace(example_job(cluster, model), basis=own)
    doc = tangram.plan(example_model(model), example_cluster(cluster), job)
    read = parse_plan(to_json(doc), where="plan.json")
    assert read.job.to_job() == job
    assert not check_plan(read)
    assert not cost_violations(read)
    assert simulate_plan(read).iteration_ns == pytest.approx(doc.prediction.iteration_time_s * 1e9)
    assert "stack mine, cluster rack" in doc.prediction.basis_note
    assert doc.prediction.basis == "formula"
    assert doc.pipelines[0].schedule.assumed_overlaps["data_parallel"] == pytest.approx(0.3)
    without = read.model_copy(update={"job": read.job.model_copy(update={"basis": None})})
    assert {v.code for v in cost_violations(without)} >= {"stage-cost-differs"}


def test_a_basis_that_cannot_be_is_refused() -> None:
    doc = example_plan("a100-v100-mixed", "gpt3-13b")
    job = replace(doc.job.to_job(), basis=basis(("cluster", "rack", "nic_eficiency", 0.5)))
    broken = doc.model_copy(update={"job": type(doc.job).of(job)})
    found = cost_violations(broken)
    assert [(v.code, v.where) for v in found] == [("basis-invalid", "job.basis (cluster.rack.nic_eficiency)")]
    assert "did you mean 'nic_efficiency'" in found[0].message
    assert simulate_plan(broken) == simulate_plan(doc)  # with the times that it states
    with pytest.raises(InputError, match="did you mean 'nic_efficiency'"):
        recost_plan(broken)


def test_exposed_transfers_of_a_stack_are_named() -> None:
    job = replace(
        example_job("a100-v100-mixed", "gpt3-13b"), basis=basis(("stack", "mine", "p2p_exposed_frac", 0.25))
    )
    doc = tangram.plan(example_model("gpt3-13b"), example_cluster("a100-v100-mixed"), job)
    notes = [a for a in doc.assumptions if "mine waits for 25% of each" in a.why]
    assert len(notes) == 1
    blocking = tangram.plan(
        example_model("gpt3-13b"), example_cluster("a100-v100-mixed"), replace(job, overlap_p2p=False)
    )
    assert not [a for a in blocking.assumptions if "waits for" in a.why]


@pytest.mark.slow
def test_worker_processes_use_the_same_basis() -> None:
    own = basis(("stack", "mine", "launch_s", 5e-4), ("cluster", "rack", "nic_efficiency", 0.3))
    job = Job(8, 512, Precision.FP16, pins=Pins(micro_batch=4), basis=own)
    cluster = small_cluster([small_node("a", "V100-16GB-SXM2", 2), small_node("b", "T4", 2)])
    texts = {
        to_json(
            tangram.plan(
                small_model(),
                cluster,
                job,
                PlanOptions(parallelizers=("uniform",), workers=workers),
            )
        )
        for workers in (1, 2)
    }
    assert len(texts) == 1
    assert '"stack": "mine"' in texts.pop()


def test_the_default_plan_has_no_basis() -> None:
    text = to_json(example_plan("a100-v100-mixed", "gpt3-13b"))
    assert '"basis": {' not in text
