"""One GPU alone: no way to spread an atom over GPUs is cheaper, so bounds made of it are bounds."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from small_jobs import outcome, random_world, small_cluster, small_model, small_node

from tangram.cluster.islands import build_islands
from tangram.cluster.readers import load_cluster
from tangram.cluster.spec import Cluster, Portion
from tangram.cost.atoms import atom_costs
from tangram.cost.configs import legal_configs
from tangram.cost.constants import upper_memory_ratio
from tangram.cost.stage import stage_cost
from tangram.cost.types import StageConfig, StageConfigs
from tangram.job import Job, Pins, Precision
from tangram.model.atoms import Atom, cut_atoms, parse_granularity
from tangram.model.load import load_model
from tangram.model.spec import ModelSpec, PositionKind
from tangram.planner.options import PlanOptions, Pruning
from tangram.planner.reference import Reference, reference
from tangram.planner.space import search_space
from tangram.units import GB

CLUSTERS = sorted((Path(__file__).parents[2] / "examples" / "clusters").glob("*.yaml"))
MODELS = ("gpt3-13b", "gshard-moe-10b", "qwen3-30b-a3b", "mixtral-8x7b", "llama-3-70b")
ROUNDING = 1 - 1e-9


def jobs(model: ModelSpec, cluster: Cluster) -> Iterator[Job]:
    """Jobs that reach every choice of a configuration: each precision that a part has, long sequences
    (context parallelism), offloading, tensor parallelism across nodes.
    """
    wide = Pins(allow_cross_node_tp=True)
    for precision in (Precision.FP16, Precision.BF16, Precision.FP32):
        if any(node.gpu.supports(precision) for node in cluster.nodes):
            yield Job(64, 1024, precision, pins=wide)
    yield Job(64, 2048, Precision.FP16, pins=Pins(offload="auto"))
    yield Job(64, 2048, Precision.FP16, pins=Pins(offload="both"))
    if model.position is PositionKind.ROTARY:
        yield Job(64, 65_536, Precision.FP16)


def distinct(atoms: tuple[Atom, ...]) -> list[int]:
    """Positions of the first atom of each content."""
    return list({atom.fingerprint: i for i, atom in reversed(list(enumerate(atoms)))}.values())


@pytest.mark.parametrize("path", CLUSTERS, ids=lambda path: path.stem)
@pytest.mark.parametrize("name", MODELS)
def test_no_configuration_is_cheaper_than_one_gpu_alone(path: Path, name: str) -> None:
    """GPU-seconds of every atom, and bytes of its states over all GPUs, for every legal configuration of
    every portion.
    """
    model, cluster = load_model(name), load_cluster(str(path))
    tried = 0
    for job in jobs(model, cluster):
        islands = search_space(build_islands(cluster, job.precision), job.precision)
        for granularity in ("layer", "operator"):
            atoms = cut_atoms(model, parse_granularity(granularity))
            first = distinct(atoms)
            for micro_batch in (1, 8, 64):
                alone = reference(model, atoms, islands.islands, micro_batch, job)
                for portion, island in zip(islands.portions, islands.portion_islands, strict=True):
                    configs = legal_configs(model, portion, micro_batch, job)
                    if not configs:
                        continue
                    tried += len(configs)
                    table = StageConfigs.of(configs)
                    costs = atom_costs(model, [atoms[i] for i in first], portion, table, micro_batch, job)
                    spent = (costs.forward_s + costs.backward_s) * portion.num_gpus
                    assert (spent >= alone.gpu_seconds[island, first][:, None] * ROUNDING).all()
                    held = costs.state_bytes * portion.num_gpus
                    assert (held >= alone.state_bytes[first][:, None] * ROUNDING).all()
                    lost = upper_memory_ratio(job.basis) * costs.reserve_bytes
                    usable = portion.island.gpu.usable_memory_bytes - lost
                    assert (usable <= alone.usable_bytes[island] + 1).all()
    assert tried > 20


def test_slices_are_bounded_by_their_atoms() -> None:
    """Times and bytes of slices are sums over atoms, divided by the GPUs, and never more."""
    model = small_model(4)
    atoms = cut_atoms(model)
    cluster = small_cluster([small_node("a", "T4", 4), small_node("b", "V100-16GB-SXM2", 2)])
    job = Job(8, 512, Precision.FP16)
    islands = build_islands(cluster, job.precision)
    alone = reference(model, atoms, islands, 2, job)
    for island in range(2):
        for gpus in (1, 2, 4):
            times, states = alone.slice_times_s(island, gpus), alone.slice_state_bytes(gpus)
            for start in range(len(atoms)):
                for stop in range(start + 1, len(atoms) + 1):
                    seconds = alone.gpu_seconds[island, start:stop].sum() / gpus
                    assert times[start, stop] <= seconds
                    assert times[start, stop] == pytest.approx(seconds, rel=1e-8)
                    assert states[start, stop] <= alone.state_bytes[start:stop].sum() / gpus


def random_reference(rng: random.Random) -> Reference:
    islands, atoms = rng.randint(1, 4), rng.randint(2, 8)
    seconds = np.array([[rng.uniform(0.5, 5.0) for _ in range(atoms)] for _ in range(islands)])
    gpus = np.array([float(rng.randint(1, 8)) for _ in range(islands)])
    return Reference(seconds, np.ones(atoms), 0.0, gpus, np.ones(islands))


def random_stages(rng: random.Random, of: Reference) -> list[tuple[int, int, float]]:
    """A random pipeline at one-GPU efficiency, without communication: island, GPUs, time per micro-batch.

    Layers are split at will: each stage takes a part of any atoms.
    """
    islands, atoms = of.gpu_seconds.shape
    stages = []
    for island in range(islands):
        left = int(of.num_gpus[island])
        while left and rng.random() < 0.8:
            gpus = rng.randint(1, left)
            left -= gpus
            stages.append((island, gpus))
    stages = stages or [(0, 1)]
    rng.shuffle(stages)
    shares = np.array([[rng.expovariate(1.0) * gpus for _ in range(atoms)] for _, gpus in stages])
    shares /= shares.sum(axis=0)
    return [
        (island, gpus, float((shares[i] * of.gpu_seconds[island]).sum() / gpus))
        for i, (island, gpus) in enumerate(stages)
    ]


def test_no_pipeline_beats_the_least_period_and_the_least_iteration() -> None:
    """Weak duality and the decay argument, on random pipelines that spend nothing on communication."""
    tight = 0
    for seed in range(3000):
        rng = random.Random(seed)
        of = random_reference(rng)
        times = [time for _, _, time in random_stages(rng, of)]
        assert of.least_period_s() <= max(times)
        for m in (1, 2, 5, 50):
            iteration = max(sum(times[:b]) + m * times[b] for b in range(len(times)))
            assert of.least_iteration_s(m) <= iteration * (1 + 1e-12)
            assert of.least_iteration_s(m) >= m * of.least_period_s() * ROUNDING
        tight += max(times) < 1.2 * of.least_period_s()
    assert tight > 20


def test_one_island_needs_all_its_gpus_all_the_time() -> None:
    of = Reference(np.array([[1.0, 2.0, 3.0]]), np.ones(3), 0.0, np.array([4.0]), np.ones(1))
    assert of.least_period_s() == pytest.approx(1.5, rel=1e-8)
    assert of.least_iteration_s(10) == pytest.approx(15.0, rel=1e-8)


def test_slices_that_are_too_small_are_in_no_pipeline_of_that_period() -> None:
    """``leaves_enough`` keeps every stage of every pipeline that keeps the period."""
    for seed in range(300):
        rng = random.Random(seed)
        of = random_reference(rng)
        atoms = of.gpu_seconds.shape[1]
        cuts = sorted(rng.sample(range(1, atoms), min(atoms - 1, rng.randint(0, 2))))
        bounds = [0, *cuts, atoms]
        free = of.num_gpus.astype(int).tolist()
        stages = []
        for start, stop in pairwise(bounds):
            island = rng.randrange(len(free))
            if not free[island]:
                break
            gpus = rng.randint(1, free[island])
            free[island] -= gpus
            stages.append((island, gpus, start, stop))
        if len(stages) < len(bounds) - 1:
            continue
        period = max(of.gpu_seconds[k, a:b].sum() / n for k, n, a, b in stages)
        for island, gpus, start, stop in stages:
            assert of.leaves_enough(island, gpus, period)[start, stop]
            assert of.leaves_enough(island, gpus, float("inf"))[start, stop]


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("vocab_size", [32_000, 250_000])
def test_no_slice_holds_fewer_bytes_than_its_bound(tied: bool, vocab_size: int) -> None:
    """A stage with both ends of a tied model holds the matrix once."""
    model, job = small_model(2, tied=tied, vocab_size=vocab_size), Job(8, 512, Precision.FP16)
    atoms = cut_atoms(model)
    (island,) = build_islands(small_cluster([small_node("a", "T4", 4)]), job.precision)
    alone = reference(model, atoms, (island,), 4, job)
    for gpus in (1, 2, 4):
        portion = Portion(island, 1, gpus)
        least = alone.slice_state_bytes(gpus)
        for config in legal_configs(model, portion, 4, job):
            for start in range(len(atoms)):
                for stop in range(start + 1, len(atoms) + 1):
                    part = atoms[start:stop]
                    cost = stage_cost(model, part, portion, config, 4, 2, 1, [False] * len(part), job)
                    held = sum(cost.memory[name] for name in ("weights", "gradients", "optimizer"))
                    assert least[start, stop] <= held
    whole = stage_cost(
        model, atoms, Portion(island, 1, 1), StageConfig(dp=1, tp=1), 4, 2, 1, [False] * len(atoms), job
    )
    held = sum(whole.memory[name] for name in ("weights", "gradients", "optimizer"))
    assert alone.total_state_bytes == pytest.approx(held)


def test_a_tied_matrix_is_not_counted_twice_when_pairs_are_removed() -> None:
    """What fits only because both ends share their matrix is planned, pruned or not."""
    model = small_model(2, tied=True, vocab_size=250_000)
    cluster = small_cluster([small_node("a", "V100-16GB-SXM2", 1, 8.8 * GB)])
    done = [
        outcome(model, cluster, Job(4, 128, Precision.FP16), PlanOptions(pruning=pruning))
        for pruning in (Pruning.NONE, Pruning.SAFE)
    ]
    assert done[0] is not None
    assert done[1] is not None
    assert done[0].found.pipeline == done[1].found.pipeline


@pytest.mark.parametrize("seed", range(12))
def test_every_plan_is_slower_than_what_one_gpu_alone_promises(seed: int) -> None:
    world = random_world(seed)
    done = outcome(world.model, world.cluster, world.job, PlanOptions(pruning=Pruning.NONE))
    if done is None:
        return
    size = done.found.micro_batch
    slowest = max(s.forward_ns + s.backward_ns for s in done.found.pipeline.stages) / 1e9
    assert size.reference.least_period_s() <= slowest
    assert size.reference.least_iteration_s(size.num_micro_batches) <= done.time_s
    assert size.bound_ns <= done.found.iteration_ns


def test_a_faster_or_larger_cluster_promises_no_longer_period() -> None:
    model, job = small_model(), Job(8, 512, Precision.FP16)
    atoms = cut_atoms(model)
    nodes = [small_node("a", "T4", 2), small_node("b", "V100-16GB-SXM2", 4)]

    def promised(cluster: Cluster) -> float:
        islands = build_islands(cluster, job.precision)
        return reference(model, atoms, islands, 2, job).least_period_s()

    base = promised(small_cluster(nodes))
    assert promised(small_cluster([*nodes, small_node("c", "H100-80GB-SXM", 1)])) < base
    assert promised(small_cluster([nodes[0], replace(nodes[1], num_gpus=8)])) < base
    assert promised(small_cluster(nodes, network=1 * GB)) == base


def test_one_gpu_alone_is_the_first_portion() -> None:
    """The reference is the cost model's own answer for one GPU."""
    model, job = small_model(), Job(8, 512, Precision.FP16)
    atoms = cut_atoms(model)
    (island,) = build_islands(small_cluster([small_node("a", "T4", 2)]), job.precision)
    portion = Portion(island, 1, 1)
    configs = legal_configs(model, portion, 2, job)
    costs = atom_costs(model, atoms, portion, StageConfigs.of(configs), 2, job)
    alone = reference(model, atoms, (island,), 2, job)
    plain = next(i for i, c in enumerate(configs) if not c.selective)
    assert alone.gpu_seconds[0] == pytest.approx((costs.forward_s + costs.backward_s)[:, plain])
    assert alone.state_bytes == pytest.approx(costs.state_bytes[:, plain])
