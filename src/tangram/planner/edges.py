"""Transfers between stages: by link class while searching, by node once stages are placed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
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
from tangram.planner.space import LinkClass, SearchSpace
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

    Two stages of one island with several nodes are expected on different nodes; at best they share one,
    unless one of them takes whole nodes. Where links between two islands differ, the slowest is expected.
    """
    num = len(space.link_classes)
    expected, best = (np.zeros((3, num, num), dtype=np.int64) for _ in range(2))
    for row, a in enumerate(space.link_classes):
        for column, b in enumerate(space.link_classes):
            width = min(a.num_nodes, b.num_nodes)
            slow = [transfer(cluster, x, y, cuts.largest) for x, y in _expected_pairs(cluster, space, a, b)]
            lanes = _lanes(space, a, b)
            fast = [
                transfer(cluster, x, y, cuts.smallest, lanes=lanes)
                for x, y in _best_pairs(cluster, space, a, b)
            ]
            expected[:, row, column] = _columns(slow, max, width)
            best[:, row, column] = _columns(fast, min, width)
    return Edges(*expected), Edges(*best)


def least_tied_ns(cluster: Cluster, space: SearchSpace, num_bytes: float) -> IntArray:
    """Returns the least time in which a first and a last stage can keep a tied embedding equal, by their
    link classes: shape ``(num_classes, num_classes)``, ``[first, last]``.
    """
    num = len(space.link_classes)
    least = np.zeros((num, num), dtype=np.int64)
    for row, a in enumerate(space.link_classes):
        for column, b in enumerate(space.link_classes):
            times = [
                tied_sync_s(cluster, x, y, num_bytes, lanes=_lanes(space, a, b))
                for x, y in _best_pairs(cluster, space, a, b)
            ]
            least[row, column] = int(min(times) / min(a.num_nodes, b.num_nodes) * NS_PER_S)
    return least


def _columns(
    transfers: Sequence[Transfer], pick: Callable[[Iterable[float]], float], width: int
) -> list[int]:
    """One-way time, round trip and occupancy, in ns, of the slowest or fastest link times ``width`` of its
    kind.
    """
    occupancy = round(pick(t.occupancy_s for t in transfers) / width * NS_PER_S)
    one_way = round(pick(t.latency_s for t in transfers) * NS_PER_S) + occupancy
    return [one_way, 2 * one_way, occupancy]


def _lanes(space: SearchSpace, a: LinkClass, b: LinkClass) -> int:
    """The most pairs of GPUs that can talk at once inside a node."""
    return min(space.islands[a.island].gpus_per_node, space.islands[b.island].gpus_per_node)


NodePair = tuple[tuple[Node], tuple[Node]]


def _expected_pairs(cluster: Cluster, space: SearchSpace, a: LinkClass, b: LinkClass) -> list[NodePair]:
    """Pairs of single nodes: different ones where there are any."""
    first, second = space.islands[a.island], space.islands[b.island]
    pairs = [((x,), (y,)) for x in representatives(cluster, first) for y in representatives(cluster, second)]
    return [(x, y) for x, y in pairs if x[0].name != y[0].name] or pairs


def _best_pairs(cluster: Cluster, space: SearchSpace, a: LinkClass, b: LinkClass) -> list[NodePair]:
    """Pairs of single nodes, the same one too for two stages that may share it."""
    apart = _expected_pairs(cluster, space, a, b)
    if a.island != b.island or a.whole or b.whole:
        return apart
    return [*apart, *((x, x) for x, _ in apart)]


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


def tied_bytes(model: ModelSpec, job: Job) -> int:
    """Returns the bytes of the gradient of an embedding that the head shares; 0 when it has its own
    matrix.
    """
    if not model.tied_embeddings:
        return 0
    return model.vocab_size * model.hidden_size * job.optimizer.gradient_bytes


def tied_step_ns(cluster: Cluster, num_bytes: int, placements: Sequence[Placement]) -> int:
    """Returns what first and last stage each add to their step end to keep a tied embedding equal.

    Args:
        cluster: The network.
        num_bytes: As :func:`tied_bytes` has it.
        placements: Of all stages; with one stage, or without bytes, nothing is added.
    """
    if not num_bytes or len(placements) < 2:
        return 0
    return round(tied_sync_s(cluster, placements[0].nodes, placements[-1].nodes, num_bytes) * NS_PER_S)


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
