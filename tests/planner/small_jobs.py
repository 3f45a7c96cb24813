"""Small models on small clusters, planned without the words of a plan document.

``outcome`` is the search behind :func:`tangram.plan` alone, without comparisons, reasons for idle GPUs and
repairs, which take more time than the search itself.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache

from tangram.cluster.catalog import gpu
from tangram.cluster.islands import build_islands
from tangram.cluster.spec import Cluster, GpuSpec, Link, Node
from tangram.job import Job, Pins, Precision
from tangram.model.atoms import cut_atoms
from tangram.model.spec import (
    AttentionSpec,
    FeedForwardSpec,
    LayerSpec,
    ModelSpec,
    MoeSpec,
    NormKind,
    PositionKind,
)
from tangram.planner.answer import SecondOpinion, best_answer
from tangram.planner.bounds import bound_section
from tangram.planner.options import PlanOptions
from tangram.planner.referee import Found
from tangram.planner.search import Search
from tangram.planner.space import search_space
from tangram.simulate.fast import iteration_ns
from tangram.units import GB

PARTS = ("H100-80GB-SXM", "A100-40GB-SXM", "V100-16GB-SXM2", "T4")
MEMORIES = (3 * GB, 6 * GB, 16 * GB)


def small_model(
    num_layers: int = 6, *, tied: bool = False, moe: bool = False, vocab_size: int = 32_000
) -> ModelSpec:
    """A model of width 1024 that trains on a few GB."""
    dense = FeedForwardSpec(intermediate_size=2816, gated=True)
    experts = MoeSpec(8, 2, FeedForwardSpec(intermediate_size=1024, gated=True))
    layer = LayerSpec(AttentionSpec(16, 8, 64), experts if moe else dense, NormKind.RMSNORM)
    return ModelSpec(
        name="small",
        family="mixtral" if moe else "llama",
        hidden_size=1024,
        vocab_size=vocab_size,
        layers=(layer,) * num_layers,
        norm=NormKind.RMSNORM,
        position=PositionKind.ROTARY,
        max_positions=4096,
        tied_embeddings=tied,
    )


@cache
def part(name: str, memory_bytes: float) -> GpuSpec:
    """A part of the catalogue with another memory, under a name of its own."""
    return replace(gpu(name), name=f"{name}-{memory_bytes / GB:g}G", usable_memory_bytes=int(memory_bytes))


def small_node(
    name: str,
    gpu_name: str,
    num_gpus: int,
    memory_bytes: float = 16 * GB,
    *,
    intra: float = 100 * GB,
    nic: float = 12.5 * GB,
) -> Node:
    """A node by itself: host and group are its own."""
    spec = part(gpu_name, memory_bytes)
    return Node(name, spec, num_gpus, intra, 5e-6, "nvlink", nic, name, name)


def small_cluster(nodes: Sequence[Node], network: float = 12.5 * GB, links: Sequence[Link] = ()) -> Cluster:
    return Cluster("small", tuple(nodes), network, 10e-6, tuple(links))


@dataclass(frozen=True)
class Outcome:
    """What a search says; None where nothing fits."""

    time_s: float
    bound_s: float
    proven: bool
    search: Search
    found: Found
    second: SecondOpinion | None = None


def outcome(
    model: ModelSpec,
    cluster: Cluster,
    job: Job,
    options: PlanOptions = PlanOptions(),
    *,
    share_nics: bool = True,
) -> Outcome | None:
    """Searches; the candidates of the composition are judged without shared NICs where that is asked for."""
    islands = build_islands(cluster, job.precision, options.tolerances)
    space = search_space(islands, job.precision)
    search = Search(model, cut_atoms(model, options.granularity), cluster, job, space, options)
    if not share_nics:
        search.composer.referee = lambda problem, chain: iteration_ns(
            search.referee.pipeline(problem, chain)[0]
        )
        search.composer.exactly = None
    found = search.run()
    if found is None:
        return None
    bound = bound_section(search, found)
    return Outcome(found.iteration_ns / 1e9, bound.lower_bound_s, bound.proven_optimal, search, found)


def answered(
    model: ModelSpec, cluster: Cluster, job: Job, options: PlanOptions = PlanOptions()
) -> Outcome | None:
    """Searches like :func:`tangram.plan`: with plans for parts of the cluster, and a second opinion."""
    islands = build_islands(cluster, job.precision, options.tolerances)
    space = search_space(islands, job.precision)
    search = Search(model, cut_atoms(model, options.granularity), cluster, job, space, options)
    answer = best_answer(search)
    if answer is None:
        return None
    bound = bound_section(search, answer.found)
    time_s = answer.found.iteration_ns / 1e9
    return Outcome(time_s, bound.lower_bound_s, bound.proven_optimal, search, answer.found, answer.second)


@dataclass(frozen=True)
class World:
    """One random question."""

    model: ModelSpec
    cluster: Cluster
    job: Job


def random_world(seed: int, *, max_nodes: int = 3, tied: bool | None = None) -> World:
    """A model and two or more nodes of one to four GPUs, with links from slow to fast."""
    rng = random.Random(seed)
    model = small_model(
        rng.choice([4, 6, 8]), tied=rng.random() < 0.3 if tied is None else tied, moe=rng.random() < 0.3
    )
    nodes = [
        small_node(
            f"n{i}",
            rng.choice(PARTS),
            rng.choice([1, 2, 4]),
            rng.choice(MEMORIES),
            intra=rng.choice([10, 50, 200]) * GB,
            nic=rng.choice([0.125, 1.25, 12.5]) * GB,
        )
        for i in range(rng.randint(2, max_nodes))
    ]
    pins = Pins(micro_batch=rng.choice([1, 2]))
    job = Job(rng.choice([4, 8, 16]), rng.choice([512, 2048]), Precision.FP16, pins=pins)
    return World(model, small_cluster(nodes, rng.choice([0.125, 1.25, 12.5]) * GB), job)
