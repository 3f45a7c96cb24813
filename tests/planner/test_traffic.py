"""What a placement costs, and that placing by it is as good as trying every placement."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator, Sequence

import pytest
from small_islands import make_island

from tangram.basis import SHIPPED_BASIS
from tangram.cluster.spec import Cluster, Node, Portion
from tangram.planner.edges import placed_edge
from tangram.planner.placement import Homes, packed_homes, place
from tangram.planner.traffic import EdgeBook, Traffic

ISLAND = make_island("only", 4, 3)
CLUSTER = Cluster("test", ISLAND.nodes, 1.25e9, 1e-5, ())


def traffic(
    sizes: Sequence[int], *, pace_ns: int = 0, tied_bytes: int = 0, num_micro_batches: int = 9
) -> Traffic:
    portions = tuple(Portion(ISLAND, max(1, size // 4), min(size, 4)) for size in sizes)
    behind = (1_000_000,) * (len(sizes) - 1)
    return Traffic(EdgeBook(CLUSTER, SHIPPED_BASIS), portions, behind, tied_bytes, num_micro_batches, pace_ns)


def every_packing(sizes: Sequence[int]) -> Iterator[Homes]:
    """All homes of stages of at most one node."""
    for nodes in itertools.product(ISLAND.nodes, repeat=len(sizes)):
        taken = {node.name: 0 for node in ISLAND.nodes}
        for node, size in zip(nodes, sizes, strict=True):
            taken[node.name] += size
        if max(taken.values()) <= 4:
            yield tuple((node,) for node in nodes)


def homes_of(asked: Traffic) -> Homes:
    return tuple(placement.nodes for placement in place(asked.portions, asked.best_homes()))


def names(homes: Homes) -> list[str]:
    return ["+".join(node.name[-1] for node in nodes) for nodes in homes]


@pytest.mark.parametrize("seed", range(60))
def test_placing_by_traffic_is_as_good_as_trying_everything(seed: int) -> None:
    rng = random.Random(seed)
    sizes: list[int] = []
    while sum(sizes) < 9 and len(sizes) < 5:
        sizes.append(rng.choice([1, 2, 2, 4]))
    while sum(sizes) > 12:
        sizes.pop()
    asked = traffic(sizes, pace_ns=rng.choice([0, 1_000_000]), tied_bytes=rng.choice([0, 20_000_000]))
    best = min(asked.cost_ns(homes) for homes in every_packing(sizes))
    assert asked.cost_ns(homes_of(asked)) == best


def test_cost_is_the_round_trip_the_busiest_nic_and_the_tied_step() -> None:
    """Two stages of two GPUs around one of four: its NICs carry two tensors each way, and so do those of the
    node that the outer two share.
    """
    asked = traffic([2, 4, 2], tied_bytes=10_000_000, num_micro_batches=5)
    a, b, c = ISLAND.nodes
    edge = placed_edge(CLUSTER, *place(asked.portions[:2]), 1_000_000, SHIPPED_BASIS)
    occupied, trip = edge.forward_occupancy_ns, edge.round_trip_ns
    together, apart = ((a,), (b,), (a,)), ((a,), (b,), (c,))
    assert asked.cost_ns(together) == 2 * trip + asked.tied_ns(together) + 4 * 2 * occupied
    assert asked.cost_ns(apart) == 2 * trip + asked.tied_ns(apart) + 4 * 2 * occupied
    assert asked.tied_ns(together) < asked.tied_ns(apart)
    assert names(homes_of(asked))[0] == names(homes_of(asked))[2]
    hidden = traffic([2, 4, 2], pace_ns=10 * occupied, num_micro_batches=5)
    assert hidden.cost_ns(apart) == 2 * trip + 4 * 10 * occupied


def test_neighbours_share_a_node_rather_than_strangers() -> None:
    assert names(homes_of(traffic([2, 2, 2, 2, 4]))) in (["1", "1", "2", "2", "0"], ["2", "2", "1", "1", "0"])


def test_one_stage_costs_no_traffic() -> None:
    one: tuple[tuple[Node, ...], ...] = ((ISLAND.nodes[0],),)
    assert traffic([4], pace_ns=7, tied_bytes=9_000).cost_ns(one) == 8 * 7


def test_too_many_ways_to_pack_are_improved_step_by_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """Never worse than the first way, and usually the best one."""
    optimal = 0
    for seed in range(30):
        rng = random.Random(seed)
        sizes = [rng.choice([1, 2, 2]) for _ in range(5)]
        tied = rng.choice([0, 20_000_000])
        every = traffic(sizes, tied_bytes=tied)
        best = every.cost_ns(every.best_homes())
        with monkeypatch.context() as patch:
            patch.setattr("tangram.planner.traffic._MOST_WAYS", 1)
            few = traffic(sizes, tied_bytes=tied)
            found = few.cost_ns(few.best_homes())
        assert best <= found <= few.cost_ns(packed_homes(few.portions))
        optimal += found == best
    assert optimal > 20
