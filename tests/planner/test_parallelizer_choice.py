"""Which parallelizer is asked: the exact table is never worse than uniform slice plans, and plans of both
kinds are sound.

Everything ``uniform`` answers is a run of stages that ``exact`` has in its table too, so the space of the
one contains that of the other. Hence what is always true: the lower bound of ``exact`` is below every plan
of ``uniform``, and a plan of ``exact`` that is proven optimal is no slower than any. Where the search leaves
a gap, it may end up anywhere in it.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest
from small_jobs import Outcome, outcome, random_world

import tangram
from tangram.cluster.readers import load_cluster
from tangram.job import Job, Pins
from tangram.model.load import load_model, trim_layers
from tangram.plan.check import check_plan
from tangram.planner.options import PlanOptions
from tangram.planner.precision import choose_precision
from tangram.planner.recost import cost_violations

CLUSTERS = Path(__file__).parents[2] / "examples" / "clusters"
LAYERS = {"llama-3-8b": 8, "mixtral-8x7b": 4, "qwen3-30b-a3b": 6, "gpt3-1.3b": 12}
ROUNDING = 1 + 1e-9

# Untied models; islands of one node, or of nodes that one stage spans as a whole.
CASES = [
    (cluster, model)
    for cluster in (
        "a100-v100-mixed",
        "c1-t4-16",
        "c1-t4-v100-4-4",
        "c2-h100-a100",
        "c3-a100",
        "c3-two-islands",
        "c3-three-islands",
        "c3-four-islands",
    )
    for model in ("llama-3-8b", "mixtral-8x7b")
    if (cluster, model) != ("c1-t4-v100-4-4", "mixtral-8x7b")  # Does not fit.
]


@cache
def found(cluster: str, model: str, *parallelizers: str) -> Outcome:
    spec = trim_layers(load_model(model), LAYERS[model])
    loaded = load_cluster(str(CLUSTERS / f"{cluster}.yaml"))
    precision, _ = choose_precision(loaded, None)
    job = Job(64, 1024, precision, pins=Pins(micro_batch=8))
    done = outcome(spec, loaded, job, PlanOptions(parallelizers=parallelizers))
    assert done is not None
    return done


@pytest.mark.parametrize(("cluster", "model"), CASES)
def test_exact_is_never_worse_than_uniform(cluster: str, model: str) -> None:
    exact, uniform = found(cluster, model, "exact"), found(cluster, model, "uniform")
    assert exact.time_s <= uniform.time_s * ROUNDING
    assert exact.bound_s <= uniform.time_s * ROUNDING


@pytest.mark.parametrize(("cluster", "model"), CASES[::3])
def test_both_together_are_never_worse_than_either(cluster: str, model: str) -> None:
    both = found(cluster, model, "exact", "uniform")
    alone = [found(cluster, model, name) for name in ("exact", "uniform")]
    assert both.time_s <= min(a.time_s for a in alone) * ROUNDING
    assert both.bound_s <= min(a.time_s for a in alone) * ROUNDING


@pytest.mark.parametrize("cluster", ["a100-v100-mixed", "c1-t4-v100-8-8", "c1-v100-16", "c2-h100-a100"])
@pytest.mark.parametrize("model", ["gpt3-1.3b", "qwen3-30b-a3b"])
def test_bound_of_exact_is_below_every_uniform_plan(cluster: str, model: str) -> None:
    """Tied embeddings and islands of several nodes included."""
    exact, uniform = found(cluster, model, "exact"), found(cluster, model, "uniform")
    assert exact.bound_s <= uniform.time_s * ROUNDING
    assert exact.bound_s <= exact.time_s * ROUNDING
    if exact.proven:
        assert exact.time_s <= uniform.time_s * ROUNDING


@pytest.mark.parametrize("seed", range(20))
def test_the_same_on_small_random_clusters(seed: int) -> None:
    world = random_world(300 + seed)
    exact = outcome(world.model, world.cluster, world.job)
    uniform = outcome(world.model, world.cluster, world.job, PlanOptions(parallelizers=("uniform",)))
    if uniform is None:
        return
    assert exact is not None
    assert exact.bound_s <= uniform.time_s * ROUNDING
    if exact.proven:
        assert exact.time_s <= uniform.time_s * ROUNDING


@pytest.mark.parametrize(
    ("cluster", "model"),
    [
        ("a100-v100-mixed", "gpt3-1.3b"),
        ("c1-v100-16", "llama-3-8b"),
        ("c2-h100-a100", "mixtral-8x7b"),
        ("c3-four-islands", "qwen3-30b-a3b"),
    ],
)
def test_uniform_plans_are_sound_documents(cluster: str, model: str) -> None:
    """They obey every rule, and cost what they say."""
    spec = trim_layers(load_model(model), LAYERS[model])
    loaded = load_cluster(str(CLUSTERS / f"{cluster}.yaml"))
    precision, _ = choose_precision(loaded, None)
    job = Job(64, 1024, precision, pins=Pins(micro_batch=8))
    plan = tangram.plan(spec, loaded, job, PlanOptions(parallelizers=("uniform",)))
    assert check_plan(plan) == []
    assert cost_violations(plan) == []
    assert plan.search.parallelizers == ["uniform"]
    again = tangram.simulate(plan).iteration_ns / 1e9
    assert again == pytest.approx(plan.prediction.iteration_time_s, rel=1e-6)
    for stage in plan.pipelines[0].stages:
        modes = {row.mode for row in stage.recompute if row.layers}
        assert len(modes) <= 1  # All of a stage's layers are recomputed, or none.


def test_uniform_alone_says_what_its_bound_covers() -> None:
    """A bound over uniform plans is no bound over everything, and the scope says so."""
    world = random_world(301)
    uniform = tangram.plan(world.model, world.cluster, world.job, PlanOptions(parallelizers=("uniform",)))
    assert "uniform" in uniform.bound.scope
    assert "exact" not in uniform.bound.scope
