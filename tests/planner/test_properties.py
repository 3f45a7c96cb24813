"""A better cluster never hurts, and names are only names.

What can be promised, and what is tested here:

* *Always*: the lower bound on the better cluster is below every plan of the worse one. All of its plans can
  be made on the better cluster too, and take no longer there. So where the search does not close its gap,
  the answer may be slower, but never by more than the gap that is printed: ``new <= old * (1 + gap)``.
* *Where the search is proven optimal*: the new plan is no slower.
* *With the effort to list everything*: the optimum itself is no slower. It is compared without sharing of
  NICs: which of two transfers goes first depends on when they are ready, so with sharing a faster stage may
  delay a transfer that matters more, and no search order can promise anything.

And what is not promised:

* A faster link is compared with fixed warm-up. With free warm-up the search tries more micro-batches in
  flight only where a link is slow enough to need them, and unequal ratios of backward to forward can use
  them for other ends.
* GPUs are added as whole nodes, or by doubling the node of an island of one node. A node that loses the shape
  of its island leaves it, and 5 GPUs have fewer divisors than 4.
* A node that joins an island is a copy of one of its nodes: an island counts on the slowest of its parts.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace

import pytest
from efforts import listing
from hypothesis import given, settings
from hypothesis import strategies as st
from small_jobs import (
    MEMORIES,
    PARTS,
    Outcome,
    World,
    outcome,
    random_world,
    small_cluster,
    small_model,
    small_node,
)

import tangram
from tangram.cluster.islands import build_islands
from tangram.cluster.spec import Cluster, Link, Node
from tangram.errors import InfeasibleError
from tangram.job import Job, Pins, Precision
from tangram.plan.check import check_plan
from tangram.planner.options import PlanOptions
from tangram.planner.recost import cost_violations
from tangram.units import GB

ROUNDING = 1 + 1e-9
EVERYTHING = PlanOptions(effort=listing(400_000, 50_000))

seeds = st.integers(0, 2**32 - 1)
few = settings(max_examples=30, deadline=None, derandomize=True)

Change = Callable[[Cluster, random.Random], Cluster]


def each_node(cluster: Cluster, change: Callable[[Node], Node]) -> Cluster:
    return replace(cluster, nodes=tuple(change(node) for node in cluster.nodes))


def more_memory(cluster: Cluster, rng: random.Random) -> Cluster:
    """Of all GPUs of one part."""
    part, factor = rng.choice(cluster.nodes).gpu, rng.choice([1.1, 1.5, 4])
    memory_bytes = int(part.usable_memory_bytes * factor)
    larger = replace(part, name=f"{part.name}+", usable_memory_bytes=memory_bytes)
    return each_node(cluster, lambda node: replace(node, gpu=larger) if node.gpu == part else node)


def faster_network(cluster: Cluster, rng: random.Random) -> Cluster:
    """Links and NICs of all nodes, by one factor: no island changes."""
    factor = rng.choice([1.5, 4, 100])
    faster = each_node(
        cluster,
        lambda node: replace(node, nic_bandwidth_bytes_per_s=node.nic_bandwidth_bytes_per_s * factor),
    )
    return replace(
        faster,
        default_bandwidth_bytes_per_s=cluster.default_bandwidth_bytes_per_s * factor,
        default_latency_s=cluster.default_latency_s / factor,
    )


def faster_inside(cluster: Cluster, rng: random.Random) -> Cluster:
    """Links inside all nodes."""
    factor = rng.choice([1.5, 4, 20])
    return each_node(
        cluster,
        lambda node: replace(node, intra_bandwidth_bytes_per_s=node.intra_bandwidth_bytes_per_s * factor),
    )


def one_more_node(cluster: Cluster, rng: random.Random) -> Cluster:
    """A copy of a node joins its island."""
    copy = replace(rng.choice(cluster.nodes), name="z", host="z", group="z")
    return replace(cluster, nodes=(*cluster.nodes, copy))


def one_more_island(cluster: Cluster, rng: random.Random) -> Cluster:
    """A node unlike all others, fast or slow."""
    node = small_node("z", rng.choice(PARTS), rng.choice([1, 2, 4]), 7 * GB, nic=rng.choice([0.1, 10]) * GB)
    return replace(cluster, nodes=(*cluster.nodes, node))


def twice_the_gpus(cluster: Cluster, rng: random.Random) -> Cluster:
    """Of one island of one node."""
    islands = build_islands(cluster, Precision.FP16)
    single = [island.nodes[0].name for island in islands if island.num_nodes == 1]
    if not single:
        return cluster
    chosen = rng.choice(single)
    return each_node(
        cluster, lambda node: replace(node, num_gpus=2 * node.num_gpus) if node.name == chosen else node
    )


CHANGES: dict[str, Change] = {
    change.__name__: change
    for change in (
        more_memory,
        faster_network,
        faster_inside,
        one_more_node,
        one_more_island,
        twice_the_gpus,
    )
}
LINKS = ("faster_network", "faster_inside")


def same_islands(before: Cluster, after: Cluster) -> bool:
    """Whether all islands are still there, perhaps larger."""
    old, new = (
        [{node.name for node in island.nodes} for island in build_islands(cluster, Precision.FP16)]
        for cluster in (before, after)
    )
    return all(any(nodes <= more for more in new) for nodes in old)


def better_world(name: str, seed: int, world: World) -> tuple[World, World] | None:
    changed = CHANGES[name](world.cluster, random.Random(seed))
    if not same_islands(world.cluster, changed):
        return None
    job = replace(world.job, free_warmup=False) if name in LINKS else world.job
    return World(world.model, world.cluster, job), World(world.model, changed, job)


@pytest.mark.parametrize("name", CHANGES)
@few
@given(seed=seeds)
def test_a_better_cluster_never_hurts(name: str, seed: int) -> None:
    pair = better_world(name, seed, random_world(seed))
    if pair is None:
        return
    before, after = (outcome(world.model, world.cluster, world.job) for world in pair)
    if before is None:
        return
    assert after is not None
    assert after.bound_s <= before.time_s * ROUNDING
    if after.proven:
        assert after.time_s <= before.time_s * ROUNDING


def tiny_world(seed: int) -> World:
    """Small enough to list every plan whose bound is below the best: 3 layers, up to 4 GPUs."""
    rng = random.Random(seed)
    nodes = [
        small_node(
            f"n{i}",
            rng.choice(PARTS),
            rng.choice([1, 2]),
            rng.choice(MEMORIES),
            intra=rng.choice([10, 100]) * GB,
            nic=rng.choice([1.25, 12.5]) * GB,
        )
        for i in range(2)
    ]
    job = Job(8, rng.choice([512, 2048]), Precision.FP16, pins=Pins(micro_batch=2))
    return World(small_model(3), small_cluster(nodes, rng.choice([1.25, 12.5]) * GB), job)


def optimum_ns(done: Outcome) -> int:
    """The best simulated time without sharing of NICs; everything below it was tried."""
    composer = done.search.composer
    assert all(composer.proven.values())
    assert composer.best is not None
    return composer.best.time_ns


@pytest.mark.parametrize("name", CHANGES)
@few
@given(seed=seeds)
def test_the_optimum_on_a_better_cluster_is_no_slower(name: str, seed: int) -> None:
    pair = better_world(name, seed, tiny_world(seed))
    if pair is None:
        return
    before, after = (
        outcome(world.model, world.cluster, world.job, EVERYTHING, share_nics=False) for world in pair
    )
    if before is None:
        return
    assert after is not None
    assert optimum_ns(after) <= optimum_ns(before)


def test_a_slow_node_beside_a_fast_one_is_left_out_rather_than_used() -> None:
    """Adding what does not help changes neither the plan nor its time."""
    fast = small_node("a", "H100-80GB-SXM", 4)
    slow = small_node("b", "T4", 1, 3 * GB, nic=0.01 * GB)
    job = Job(8, 512, Precision.FP16, pins=Pins(micro_batch=2))
    alone, beside = (
        tangram.plan(small_model(), small_cluster(nodes), job) for nodes in ([fast], [fast, slow])
    )
    assert alone.prediction.iteration_time_s == beside.prediction.iteration_time_s
    assert [stage.ranks for stage in alone.pipelines[0].stages] == [
        stage.ranks for stage in beside.pipelines[0].stages
    ]
    assert [idle.island for idle in beside.idle] == [slow.gpu.name]


def renamed(cluster: Cluster, rng: random.Random) -> tuple[Cluster, dict[str, str]]:
    """Other names in another order, and the way back."""
    order = list(cluster.nodes)
    rng.shuffle(order)
    names = {node.name: f"x{i}" for i, node in enumerate(order)}
    nodes = [
        replace(node, name=names[node.name], host=names[node.name], group=names[node.name]) for node in order
    ]
    rng.shuffle(nodes)
    links = tuple(replace(link, a=names[link.a], b=names[link.b]) for link in cluster.links)
    return replace(cluster, nodes=tuple(nodes), links=links), {new: old for old, new in names.items()}


def linked_world(seed: int) -> World:
    """A random world in which some links differ, between nodes that differ themselves.

    Among equal nodes of one island the names decide who takes part, and with links of their own they would
    not be equal.
    """
    world = random_world(seed)
    rng = random.Random(seed)
    counts = {node.gpu.name: 0 for node in world.cluster.nodes}
    for node in world.cluster.nodes:
        counts[node.gpu.name] += 1
    single = [node.name for node in world.cluster.nodes if counts[node.gpu.name] == 1]
    links = [
        Link(a, b, rng.choice([0.5, 5]) * GB, 2e-5)
        for i, a in enumerate(single)
        for b in single[:i]
        if rng.random() < 0.5
    ]
    return World(world.model, replace(world.cluster, links=tuple(links)), world.job)


@few
@given(seed=seeds)
def test_renaming_and_shuffling_nodes_changes_only_names(seed: int) -> None:
    world = linked_world(seed)
    other, back = renamed(world.cluster, random.Random(seed))
    before, after = (outcome(world.model, cluster, world.job) for cluster in (world.cluster, other))
    if before is None:
        assert after is None
        return
    assert after is not None
    assert (after.time_s, after.bound_s, after.proven) == (before.time_s, before.bound_s, before.proven)
    assert after.search.counts == before.search.counts
    assert after.found.pipeline.windows == before.found.pipeline.windows
    for ours, theirs in zip(before.found.stages, after.found.stages, strict=True):
        assert (ours.start, ours.stop, ours.config) == (theirs.start, theirs.stop, theirs.config)
        assert ours.recomputed == theirs.recomputed
        assert ours.portion.num_gpus == theirs.portion.num_gpus
        assert ours.portion.island.gpu == theirs.portion.island.gpu
    kinds = {node.name: (node.gpu, node.num_gpus) for node in world.cluster.nodes}
    for ours_at, theirs_at in zip(before.found.placements, after.found.placements, strict=True):
        there = [kinds[back[node.name]] for node in theirs_at.nodes]
        assert there == [kinds[node.name] for node in ours_at.nodes]


@few
@given(seed=seeds)
def test_plans_of_random_worlds_are_sound(seed: int) -> None:
    """The document obeys every rule and costs what it says. The plan starts from the best single island, so
    it may be better than what the search finds by itself, and both bounds hold for both.
    """
    world = random_world(seed)
    done = outcome(world.model, world.cluster, world.job)
    if done is None:
        with pytest.raises(InfeasibleError):
            tangram.plan(world.model, world.cluster, world.job)
        return
    plan = tangram.plan(world.model, world.cluster, world.job)
    assert check_plan(plan) == []
    assert cost_violations(plan) == []
    time_s, bound_s = plan.prediction.iteration_time_s, plan.bound.lower_bound_s
    assert bound_s <= time_s <= done.time_s * ROUNDING
    assert bound_s <= done.time_s * ROUNDING
    assert done.bound_s <= time_s * ROUNDING
    times = [step.time_s for step in plan.bound.staircase]
    assert times == sorted(times)
    assert times[-1] == pytest.approx(time_s, rel=1e-8)
    others = {c.name: c.iteration_time_s for c in plan.comparisons if c.iteration_time_s is not None}
    assert others["tangram"] <= others.get("single-island", time_s) * ROUNDING


@few
@given(seed=seeds)
def test_blocking_transfers_and_fixed_warm_up_never_help(seed: int) -> None:
    """What the engine cannot do makes no plan faster, and its bounds hold as well."""
    world = random_world(seed)
    free = outcome(world.model, world.cluster, world.job)
    fixed = outcome(world.model, world.cluster, replace(world.job, free_warmup=False))
    blocking = outcome(world.model, world.cluster, replace(world.job, overlap_p2p=False))
    if free is None or fixed is None or blocking is None:
        assert free is fixed is blocking is None
        return
    for less in (fixed, blocking):
        assert free.bound_s <= less.time_s * ROUNDING
        assert less.bound_s <= less.time_s * ROUNDING
        if free.proven:
            assert free.time_s <= less.time_s * ROUNDING
    if fixed.proven:
        assert fixed.time_s <= blocking.time_s * ROUNDING
