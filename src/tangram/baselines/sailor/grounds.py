"""Where Sailor plans: the nodes of a cluster as types of GPUs in zones.

Types are nodes that differ in nothing a profiler measures. Zones are nodes that the network joins at full
width; GPUs of different zones share no stage, as in Sailor's regions. Nodes of unequal size are divided
first.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import product

from tangram.baselines.nodes import NodePart, equal_parts
from tangram.baselines.sailor.profile import Endpoint, Line, Link, Zone
from tangram.basis import CostBasis
from tangram.cluster.spec import Cluster, Node
from tangram.cost.transfer import transfer
from tangram.job import Precision

NARROW = 0.5
"""A link separates zones that carries less of what its NICs could than this part of the best such share."""

MAX_ZONES = 5
"""All sets of regions are searched: those beyond the largest five stay idle."""


@dataclass(frozen=True, slots=True)
class Grounds:
    """The GPUs that can run the job.

    Attributes:
        cluster: As given.
        types: A node (part) of each type, by name.
        parts: By zone, then type: the node parts, by name.
    """

    cluster: Cluster
    types: tuple[Node, ...]
    parts: tuple[tuple[tuple[NodePart, ...], ...], ...]

    @staticmethod
    def of(cluster: Cluster, precision: Precision) -> Grounds:
        """Sorts the nodes whose GPUs have arithmetic in this precision."""
        parts = [part for part in equal_parts(cluster) if part.part.gpu.supports(precision)]
        types: dict[tuple[object, ...], Node] = {}
        for part in sorted(parts, key=lambda part: _measured(part.part)):
            types.setdefault(_measured(part.part), part.part)
        rows = [
            tuple(tuple(part for part in zone if _measured(part.part) == kind) for kind in types)
            for zone in _zones(cluster, parts)
        ]
        rows.sort(key=lambda row: [-len(of_type) for of_type in row])
        return Grounds(cluster, tuple(types.values()), tuple(rows))

    def zones(self) -> tuple[Zone, ...]:
        """Returns how many GPUs there are where; every zone is a region of its own."""
        return tuple(
            Zone(f"zone {idx}", f"{idx:06d}", tuple(sum(p.part.num_gpus for p in of_type) for of_type in row))
            for idx, row in enumerate(self.parts)
        )


@dataclass(slots=True)
class ClusterNetwork:
    """The links between types of GPUs, in any zones: the slowest between two of their nodes.

    Attributes:
        grounds: The nodes.
        basis: Whose constants count.
    """

    grounds: Grounds
    basis: CostBasis
    _links: dict[tuple[Endpoint, Endpoint], Line] = field(default_factory=dict)

    def link(self, sender: Endpoint, receiver: Endpoint) -> Link:
        """Returns the slowest link; inside a node only where there are no two nodes."""
        key = sender, receiver
        if key not in self._links:
            lanes = min(sender.lanes, receiver.lanes)
            found = [
                transfer(self.grounds.cluster, [a], [b], 1.0, lanes=lanes, basis=self.basis)
                for a, b in self._pairs(sender, receiver)
            ]
            self._links[key] = Line(
                max(one.latency_s for one in found), 1 / max(one.occupancy_s for one in found)
            )
        return self._links[key]

    def _pairs(self, sender: Endpoint, receiver: Endpoint) -> list[tuple[Node, Node]]:
        """Pairs of nodes, on different hosts where there are such. Without links of their own all are
        alike.
        """
        parts = self.grounds.parts
        senders = [part.whole for part in parts[sender.zone][sender.gpu]]
        receivers = [part.whole for part in parts[receiver.zone][receiver.gpu]]
        if not senders or not receivers:
            senders = receivers = [*senders, *receivers] or [self.grounds.types[sender.gpu]]
        if not self.grounds.cluster.links:
            senders = senders[:1]
        pairs = list(product(senders, receivers))
        apart = [(a, b) for a, b in pairs if a.host != b.host]
        if not self.grounds.cluster.links:
            apart = apart[:1]
        return apart or pairs[:1]


def _measured(node: Node) -> tuple[str, float, float, float, str, float]:
    """What tells types of GPUs apart; the name of the part comes first."""
    return (
        node.gpu.name,
        node.gpu.usable_memory_bytes,
        node.intra_bandwidth_bytes_per_s,
        node.intra_latency_s,
        node.intra_kind,
        node.nic_bandwidth_bytes_per_s,
    )


def _zones(cluster: Cluster, parts: list[NodePart]) -> list[list[NodePart]]:
    """Nodes that wide links join, directly or over others; the zones with most GPUs, if there are many."""
    if not cluster.links:
        return [parts] if parts else []
    wide = _wide_pairs(cluster, list({part.whole.name: part.whole for part in parts}.values()))
    zones: list[list[NodePart]] = []
    for part in parts:
        near = [z for z in zones if any((other.whole.name, part.whole.name) in wide for other in z)]
        zones = [zone for zone in zones if zone not in near]
        zones.append([*(other for zone in near for other in zone), part])
    zones.sort(key=lambda zone: -sum(part.part.num_gpus for part in zone))
    return [sorted(zone, key=lambda part: (part.whole.name, part.first_gpu)) for zone in zones[:MAX_ZONES]]


def _wide_pairs(cluster: Cluster, nodes: list[Node]) -> set[tuple[str, str]]:
    """Names of nodes whose link carries enough of what the NICs at its ends could."""
    shares = {(a.name, b.name): _share(cluster, a, b) for a in nodes for b in nodes}
    apart = [shares[a.name, b.name] for a in nodes for b in nodes if a.host != b.host]
    least = NARROW * max(apart, default=0.0)
    return {pair for pair, share in shares.items() if share >= least}


def _share(cluster: Cluster, a: Node, b: Node) -> float:
    if a.host == b.host:
        return 1.0
    nics = min(a.nic_bandwidth_bytes_per_s, b.nic_bandwidth_bytes_per_s)
    return cluster.bandwidth_bytes_per_s(a, b) / nics
