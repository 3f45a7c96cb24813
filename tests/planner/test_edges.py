"""Edges between link classes: what no placement can undercut, and what is expected of one."""

from __future__ import annotations

import random
from itertools import pairwise

import pytest
from small_jobs import small_cluster, small_model, small_node

from tangram.basis import SHIPPED_BASIS
from tangram.cluster.islands import build_islands
from tangram.cluster.spec import Cluster
from tangram.cost.transfer import tied_sync_s
from tangram.job import Job, Precision
from tangram.model.atoms import cut_atoms
from tangram.planner.edges import Boundaries, boundaries, placed_edge
from tangram.planner.links import ClassLinks, least_tied_ns
from tangram.planner.placement import Placement, place
from tangram.planner.space import SearchSpace, search_space
from tangram.units import GB

JOB = Job(8, 512, Precision.FP16)
MODEL = small_model()
CUTS = boundaries(MODEL, cut_atoms(MODEL), 2, JOB)


def random_cluster(rng: random.Random) -> Cluster:
    """Up to five nodes of two kinds; the links inside a node are no slower than its NICs."""
    nodes = []
    for kind, part in (("a", "T4"), ("b", "V100-16GB-SXM2")):
        gpus, nic = rng.choice([1, 2, 4]), rng.choice([1, 12.5, 50]) * GB
        nodes += [
            small_node(f"{kind}{i}", part, gpus, intra=rng.choice([1.5, 4]) * nic, nic=nic)
            for i in range(rng.randint(1, 3))
        ]
    return small_cluster(nodes, rng.choice([1, 12.5, 50]) * GB)


def random_placements(rng: random.Random, space: SearchSpace) -> list[tuple[int, Placement]]:
    """Link class and GPUs of the stages of a random pipeline."""
    left, chosen = list(space.capacity), []
    for _ in range(rng.randint(2, 7)):
        portion = rng.randrange(len(space.portions))
        island, units = space.portion_islands[portion], space.portion_units(portion)
        if units <= left[island]:
            left[island] -= units
            chosen.append(portion)
    placements = place([space.portions[portion] for portion in chosen])
    return [(space.portion_classes[portion], at) for portion, at in zip(chosen, placements, strict=True)]


def space_of(cluster: Cluster) -> SearchSpace:
    return search_space(build_islands(cluster, JOB.precision), JOB.precision)


@pytest.mark.parametrize("block", range(4))
def test_no_placement_undercuts_the_best_edges(block: int) -> None:
    tried = together = 0
    for seed in range(block, 80, 4):
        rng = random.Random(seed)
        cluster = random_cluster(rng)
        space = space_of(cluster)
        links = ClassLinks.of(cluster, space, 0, SHIPPED_BASIS)
        _, apart = links.edges(CUTS)
        same_node = links.same_node(CUTS)
        for _ in range(15):
            for (a, front), (b, behind) in pairwise(random_placements(rng, space)):
                tried += 1
                edge = placed_edge(cluster, front, behind, CUTS.bytes_at[3], SHIPPED_BASIS)
                best = apart
                if front.nodes == behind.nodes and front.portion.island.num_nodes > 1:
                    assert same_node is not None
                    best = same_node.edges_at_best
                    together += 1
                assert best.nic_ns[a, b] <= (edge.forward_occupancy_ns if edge.forward_resources else 0)
                assert best.one_way_ns[a, b] <= edge.forward_ns
                assert best.round_trip_ns[a, b] <= edge.round_trip_ns
                assert best.occupancy_ns[a, b] <= edge.forward_occupancy_ns
    assert tried > 200
    assert together > 10


def test_no_pair_of_ends_undercuts_the_least_tied_step() -> None:
    for seed in range(60):
        rng = random.Random(seed)
        cluster = random_cluster(rng)
        space = space_of(cluster)
        least = least_tied_ns(cluster, space, 1e8, SHIPPED_BASIS)
        for _ in range(10):
            stages = random_placements(rng, space)
            if len(stages) < 2:
                continue
            (a, first), (b, last) = stages[0], stages[-1]
            assert least[a, b] <= round(tied_sync_s(cluster, first.nodes, last.nodes, 1e8) * 1e9)


def test_best_edges_are_no_slower_than_expected_ones() -> None:
    for seed in range(60):
        cluster = random_cluster(random.Random(seed))
        expected, best = ClassLinks.of(cluster, space_of(cluster), 0, SHIPPED_BASIS).edges(CUTS)
        for name in ("one_way_ns", "round_trip_ns", "occupancy_ns"):
            assert (getattr(best, name) <= getattr(expected, name)).all()


def test_boundaries_are_the_inner_cuts() -> None:
    """Nothing crosses the ends of the model; in between it is the residual stream of a micro-batch."""
    stream = 2 * 512 * 1024 * 2
    assert CUTS.bytes_at == (0, *[stream] * (MODEL.num_layers + 1), 0)
    assert CUTS.smallest == CUTS.largest == stream
    assert Boundaries((0, 0)).largest == 0
