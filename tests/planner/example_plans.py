"""The example clusters with five models: one small job each, planned once and shared by the tests."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from tangram.cluster.islands import build_islands
from tangram.cluster.readers import load_cluster
from tangram.cluster.spec import Cluster
from tangram.job import Job
from tangram.model.atoms import cut_atoms
from tangram.model.load import load_model
from tangram.model.spec import ModelSpec
from tangram.plan.schema import PlanDocument
from tangram.planner.options import PlanOptions
from tangram.planner.planner import plan
from tangram.planner.precision import choose_precision
from tangram.planner.search import Search
from tangram.planner.space import search_space

CLUSTERS = Path(__file__).parents[2] / "examples" / "clusters"
MODELS = ("gpt3-13b", "gshard-moe-10b", "qwen3-30b-a3b", "mixtral-8x7b", "llama-3-70b")
GLOBAL_BATCH = 64


@cache
def example_cluster(name: str) -> Cluster:
    return load_cluster(str(CLUSTERS / f"{name}.yaml"))


@cache
def example_model(name: str) -> ModelSpec:
    return load_model(name)


def example_job(cluster: str, model: str) -> Job:
    precision, _ = choose_precision(example_cluster(cluster), None)
    return Job(GLOBAL_BATCH, 1024 if model == "gshard-moe-10b" else 2048, precision)


@cache
def example_plan(cluster: str, model: str) -> PlanDocument:
    """Plans; raises where nothing fits."""
    return plan(example_model(model), example_cluster(cluster), example_job(cluster, model))


def example_search(cluster: str, model: str) -> Search:
    """Returns the search alone: it refuses without looking for repairs."""
    spec, job, options = example_model(model), example_job(cluster, model), PlanOptions()
    islands = build_islands(example_cluster(cluster), job.precision, options.tolerances)
    space = search_space(islands, job.precision)
    return Search(spec, cut_atoms(spec), example_cluster(cluster), job, space, options)
