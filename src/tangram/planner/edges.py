"""Transfers between stages: by link class while searching, by node once stages are placed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tangram.cluster.spec import Cluster, Island, Node
from tangram.cost.transfer import Transfer, boundary_bytes, tied_sync_s, transfer
from tangram.cost.types import IntArray
from tangram.job import Job
from tangram.model.atoms import Atom
from tangram.model.spec import ModelSpec
from tangram.planner.placement import Placement
from tangram.planner.problem import Edges
from tangram.planner.space import SearchSpace
from tangram.simulate.pipeline import SimEdge
from tangram.units import NS_PER_S

_MAX_REPRESENTATIVES = 8


@dataclass(frozen=True, slots=True)
class Boundaries:
    """Bytes that one micro-batch sends over each cut; ``bytes_at[j]`` is the cut behind atom ``j - 1``."""

    bytes_at: tuple[int, ...]

    @property
    def largest(self) -> int:
        """Over all inner cuts."""
        return max(self.bytes_at[1:-1], default=0)

    @property
    def smallest(self) -> int:
        """Over all inner cuts."""
        return min(self.bytes_at[1:-1], default=0)


def boundaries(model: ModelSpec, atoms: Sequence[Atom], micro_batch: int, job: Job) -> Boundaries:
    """Returns the bytes of every cut."""
    inner = [round(boundary_bytes(model, atom, micro_batch, job)) for atom in atoms[:-1]]
    return Boundaries((0, *inner, 0))


def class_edges(cluster: Cluster, space: SearchSpace, cuts: Boundaries) -> tuple[Edges, Edges]:
    """Returns transfer times between link classes: as to be expected, and as no placement can undercut.

    Two stages of one island with several nodes are expected on different nodes; at best they share one.
    Where links between two islands differ, the slowest is expected.
    """
    expected, best = (
        np.zeros((3, len(space.link_classes), len(space.link_classes)), dtype=np.int64) for _ in range(2)
    )
    pairs: dict[tuple[int, int], tuple[_Pair, _Pair]] = {}
    for row, (a, nodes_a) in enumerate(space.link_classes):
        for column, (b, nodes_b) in enumerate(space.link_classes):
            if (a, b) not in pairs:
                pairs[a, b] = _pair_ranges(cluster, space.islands[a], space.islands[b], cuts)
            slow, fast = pairs[a, b]
            width = min(nodes_a, nodes_b)
            if a == b and (space.islands[a].num_nodes == 1 or width > 1):
                slow = slow if width > 1 else fast
            expected[:, row, column] = slow.columns(width)
            best[:, row, column] = fast.columns(width)
    return Edges(*expected), Edges(*best)


def least_tied_ns(cluster: Cluster, space: SearchSpace, num_bytes: float) -> IntArray:
    """Returns, per link class of an end stage, the least time in which it can keep a tied embedding equal
    to the other end's: over all classes that the other end may have, at the best link.
    """
    classes = space.link_classes
    least = np.zeros(len(classes), dtype=np.int64)
    for row, (a, nodes_a) in enumerate(classes):
        times = []
        for b, nodes_b in classes:
            first, second = space.islands[a], space.islands[b]
            lanes = min(first.gpus_per_node, second.gpus_per_node)
            singles = [
                tied_sync_s(cluster, (x,), (y,), num_bytes, lanes=lanes)
                for x in representatives(cluster, first)
                for y in representatives(cluster, second)
            ]
            times.append(min(singles) / min(nodes_a, nodes_b))
        least[row] = int(min(times) * NS_PER_S)
    return least


@dataclass(frozen=True, slots=True)
class _Pair:
    latency_s: float
    occupancy_s: float

    def columns(self, width: int) -> tuple[int, int, int]:
        occupancy = round(self.occupancy_s / width * NS_PER_S)
        one_way = round(self.latency_s * NS_PER_S) + occupancy
        return one_way, 2 * one_way, occupancy


def _pair_ranges(cluster: Cluster, a: Island, b: Island, cuts: Boundaries) -> tuple[_Pair, _Pair]:
    """The slowest and the fastest link between single nodes of two islands (or inside one node)."""
    slow: list[Transfer] = []
    fast: list[Transfer] = []
    for x in representatives(cluster, a):
        for y in representatives(cluster, b):
            lanes = min(a.gpus_per_node, b.gpus_per_node)
            fast.append(transfer(cluster, (x,), (y,), cuts.smallest, lanes=lanes))
            if x.name != y.name or a.num_nodes == 1:
                slow.append(transfer(cluster, (x,), (y,), cuts.largest))
    return (
        _Pair(max(t.latency_s for t in slow), max(t.occupancy_s for t in slow)),
        _Pair(min(t.latency_s for t in fast), min(t.occupancy_s for t in fast)),
    )


def representatives(cluster: Cluster, island: Island) -> list[Node]:
    """Returns nodes that stand for all of an island as far as links go: two of each group, more where
    links name nodes.
    """
    named = {name for link in cluster.links for name in (link.a, link.b)}
    chosen: list[Node] = []
    per_group: dict[tuple[str, float], int] = {}
    for node in island.nodes:
        key = (node.group, node.nic_bandwidth_bytes_per_s)
        per_group[key] = per_group.get(key, 0) + 1
        if per_group[key] <= 2 or (node.name in named and node.name != node.group):
            chosen.append(node)
    return chosen[: max(_MAX_REPRESENTATIVES, 2 * len(per_group))]


def placed_edge(cluster: Cluster, front: Placement, behind: Placement, num_bytes: int) -> SimEdge:
    """Returns the edge between two placed stages; transfers between hosts hold their NICs."""
    lanes = min(front.portion.gpus_per_node, behind.portion.gpus_per_node)
    moved = transfer(cluster, front.nodes, behind.nodes, num_bytes, lanes=lanes)
    occupancy = round(moved.occupancy_s * NS_PER_S)
    latency = round(moved.latency_s * NS_PER_S)
    hosts_front = {n.host for n in front.nodes}
    hosts_behind = {n.host for n in behind.nodes}
    out, into = hosts_front - hosts_behind, hosts_behind - hosts_front

    def held(senders: set[str], receivers: set[str]) -> tuple[str, ...]:
        if not (senders or receivers):
            return ()
        return (*(f"{h}:out" for h in sorted(senders)), *(f"{h}:in" for h in sorted(receivers)))

    return SimEdge(latency, occupancy, occupancy, held(out, into), held(into, out))
