"""Pruning: what a bound removes changes nothing, what the paper's rule removes never helps.

An unpruned search asks about all pairs. It works on what the safe rules would have left, so that limits of
effort are reached at the same points, and then searches everything for plans with the rest: should a rule
remove what a better plan needs, it turns up there.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import pytest
from small_jobs import outcome, random_world

import tangram
from tangram.cluster.readers import load_cluster
from tangram.errors import InfeasibleError
from tangram.job import Job, Pins, Precision
from tangram.model.load import load_model, trim_layers
from tangram.plan.check import check_plan
from tangram.planner.options import PlanOptions, Pruning
from tangram.planner.precision import choose_precision
from tangram.planner.recost import cost_violations
from tangram.planner.reference import Reference

CLUSTERS = sorted(path.stem for path in (Path(__file__).parents[2] / "examples" / "clusters").glob("*.yaml"))
LAYERS = {"llama-3-8b": 12, "mixtral-8x7b": 4, "gpt3-2.6b": 16, "gpt3-1.3b": 10}
FEWER_LAYERS = {("mixtral-8x7b", "c1-t4-v100-4-4"): 2}  # One has 27 GiB of states and margin; 123 GiB in all.
REMOVED = ("removed_infeasible", "removed_unbalanced", "removed_redundant", "micro_batches_pruned")


@cache
def planned(
    cluster: str, model: str, pruning: Pruning, parallelizer: str = "exact", micro_batch: int | None = None
) -> tangram.Plan | None:
    """The plan, or None where nothing fits."""
    spec = trim_layers(load_model(model), FEWER_LAYERS.get((model, cluster), LAYERS[model]))
    loaded = load_cluster(str(Path(__file__).parents[2] / "examples" / "clusters" / f"{cluster}.yaml"))
    precision, _ = choose_precision(loaded, None)
    job = Job(64, 1024, precision, pins=Pins(micro_batch=micro_batch))
    options = PlanOptions(parallelizers=(parallelizer,), pruning=pruning)
    try:
        return tangram.plan(spec, loaded, job, options)
    except InfeasibleError:
        return None


def answer(plan: tangram.Plan | None) -> dict[str, Any] | None:
    """All that a plan says of itself but how it was searched for."""
    return None if plan is None else plan.model_dump(mode="json", exclude={"search"})


def check_pruned(
    cluster: str, model: str, parallelizer: str = "exact", micro_batch: int | None = None
) -> None:
    safe, none, paper = (
        planned(cluster, model, pruning, parallelizer, micro_batch)
        for pruning in (Pruning.SAFE, Pruning.NONE, Pruning.PAPER)
    )
    assert safe is not None
    assert none is not None
    assert answer(safe) == answer(none)
    assert not any(none.search.counts.get(name, 0) for name in REMOVED)
    assert any(safe.search.counts.get(name, 0) for name in REMOVED)
    if paper is not None:
        assert check_plan(paper) == []
        assert cost_violations(paper) == []
        assert paper.prediction.iteration_time_s >= safe.prediction.iteration_time_s
        assert paper.prediction.iteration_time_s >= safe.bound.lower_bound_s


@pytest.mark.parametrize("cluster", CLUSTERS)
@pytest.mark.parametrize("model", ["llama-3-8b", "mixtral-8x7b"])
def test_safe_pruning_changes_no_plan(cluster: str, model: str) -> None:
    check_pruned(cluster, model)


@pytest.mark.parametrize("cluster", ["a100-v100-mixed", "c1-t4-16", "c1-t4-v100-4-4", "c3-a100"])
def test_safe_pruning_changes_no_uniform_plan(cluster: str) -> None:
    check_pruned(cluster, "gpt3-1.3b", "uniform", micro_batch=8)


@pytest.mark.slow
@pytest.mark.parametrize("cluster", CLUSTERS)
def test_safe_pruning_changes_no_plan_with_tied_embeddings(cluster: str) -> None:
    check_pruned(cluster, "gpt3-2.6b")


@pytest.mark.parametrize("cluster", ["c1-t4-16", "c1-t4-v100-4-4"])
def test_both_refuse_what_does_not_fit(cluster: str) -> None:
    """Removing the infeasible makes nothing infeasible, and hides nothing that is feasible."""
    loaded = load_cluster(str(Path(__file__).parents[2] / "examples" / "clusters" / f"{cluster}.yaml"))
    precision, _ = choose_precision(loaded, None)
    spec = trim_layers(load_model("mixtral-8x7b"), 12)
    for pruning in Pruning:
        assert outcome(spec, loaded, Job(16, 1024, precision), PlanOptions(pruning=pruning)) is None


@pytest.mark.parametrize("seed", range(30))
def test_safe_pruning_changes_nothing_on_small_random_clusters(seed: int) -> None:
    world = random_world(500 + seed, max_nodes=4)
    safe, none, paper = (
        outcome(world.model, world.cluster, world.job, PlanOptions(pruning=pruning))
        for pruning in (Pruning.SAFE, Pruning.NONE, Pruning.PAPER)
    )
    assert (safe is None) == (none is None)
    if safe is None or none is None:
        assert paper is None
        return
    assert safe.found.pipeline == none.found.pipeline
    assert safe.found.stages == none.found.stages
    assert (safe.time_s, safe.bound_s, safe.proven) == (none.time_s, none.bound_s, none.proven)
    if paper is not None:
        assert paper.time_s >= safe.bound_s
        assert paper.time_s >= safe.time_s or not safe.proven


def test_counts_add_up() -> None:
    """Every pair is removed by at most one rule, and what is left is asked about."""
    for pruning in Pruning:
        world = random_world(507)
        done = outcome(world.model, world.cluster, world.job, PlanOptions(pruning=pruning))
        assert done is not None
        counts = done.search.counts
        rules = ("removed_incompatible", "removed_infeasible", "removed_unbalanced", "removed_redundant")
        removed = sum(counts[name] for name in rules)
        assert 0 <= removed < counts["pairs"]
        assert counts["queries"] > 0
        assert counts["options"] > 0
        assert counts["finalists_simulated"] == len(done.search.composer.candidates)


@pytest.mark.parametrize("rule", ["leaves_enough", "slice_times_s"])
def test_a_rule_that_removes_too_much_is_found_out(rule: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A rule that asks for half the time makes the plan worse, but not where nothing is pruned."""
    right = {pruning: small_job_s(pruning) for pruning in (Pruning.SAFE, Pruning.NONE)}
    assert right[Pruning.SAFE] == right[Pruning.NONE]
    kept, times = Reference.leaves_enough, Reference.slice_times_s
    if rule == "leaves_enough":
        monkeypatch.setattr(Reference, rule, lambda self, k, n, s: kept(self, k, n, s / 2))
    else:
        monkeypatch.setattr(Reference, rule, lambda self, k, n: times(self, k, n) * 2)
    wrong = {pruning: small_job_s(pruning) for pruning in (Pruning.SAFE, Pruning.NONE)}
    assert wrong[Pruning.SAFE] > 1.05 * right[Pruning.SAFE]
    assert wrong[Pruning.NONE] == right[Pruning.NONE]


def small_job_s(pruning: Pruning) -> float:
    spec = trim_layers(load_model("llama-3-8b"), LAYERS["llama-3-8b"])
    examples = Path(__file__).parents[2] / "examples" / "clusters"
    loaded = load_cluster(str(examples / "a100-v100-mixed.yaml"))
    done = outcome(spec, loaded, Job(64, 1024, Precision.FP16), PlanOptions(pruning=pruning))
    assert done is not None
    return done.time_s
