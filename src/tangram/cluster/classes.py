"""Classes of nodes that nothing in the cluster tells apart, and the network between classes.

Islands are built from classes, not from nodes: two thousand equal nodes behind one default network are one
class. Nodes are in one class when part, number of GPUs, links and NICs are equal, the file's links name
them alike, and, for the nodes of a mixed host, their hosts are made up alike.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Hashable, Iterable
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import numpy as np

from tangram.cluster.spec import Cluster, Node
from tangram.cluster.tolerances import BoolArray, FloatArray
from tangram.job import Precision


@dataclass(frozen=True, slots=True)
class NodeClass:
    """Nodes that nothing tells apart.

    Attributes:
        nodes: Sorted by name.
        rate_flop_per_s: Achieved in the job's precision; 0 when the part lacks the precision.
        num_hosts: Hosts that the nodes are on.
        named: Names of the node and of its group, as far as links use them.
        host_make_up: What shares the host, when it is a mixed one: equal for hosts made up alike.
    """

    nodes: tuple[Node, ...]
    rate_flop_per_s: float
    num_hosts: int
    named: tuple[str | None, str | None]
    host_make_up: Hashable

    @property
    def first(self) -> Node:
        """One of the nodes; they are all alike."""
        return self.nodes[0]


@dataclass(frozen=True, slots=True)
class ClassNetwork:
    """Links between nodes on different hosts; all arrays have the shape ``(classes, classes)``.

    Attributes:
        bandwidth_bytes_per_s: Between a node of the one class and a node of the other (or another of the
            same).
        latency_s: Likewise.
        exists: Whether there are two such nodes on different hosts.
    """

    bandwidth_bytes_per_s: FloatArray
    latency_s: FloatArray
    exists: BoolArray


def classify(cluster: Cluster, precision: Precision) -> tuple[tuple[NodeClass, ...], ClassNetwork]:
    """Returns the classes of a cluster in a canonical order, and the network between them.

    The order is by what the classes are (fastest first) and how they are linked; names only break ties.
    """
    classes = _classes(cluster, precision)
    network = _network(cluster, classes)
    order = _order(classes, network)
    by_order = np.ix_(order, order)
    return tuple(classes[idx] for idx in order), ClassNetwork(
        network.bandwidth_bytes_per_s[by_order], network.latency_s[by_order], network.exists[by_order]
    )


def _classes(cluster: Cluster, precision: Precision) -> list[NodeClass]:
    names = {end for link in cluster.links for end in (link.a, link.b)}
    hosts: dict[str, list[Node]] = defaultdict(list)
    for node in cluster.nodes:
        hosts[node.host].append(node)
    members: dict[Hashable, list[Node]] = defaultdict(list)
    for host_nodes in hosts.values():
        kinds = [_kind(node, names) for node in host_nodes]
        mixed = len(host_nodes) > 1
        make_up = tuple(sorted(repr(kind[1:]) for kind in kinds)) if mixed else None
        for kind, node in zip(kinds, host_nodes, strict=True):
            members[kind, make_up].append(node)
    classes = []
    for key, nodes in members.items():
        assert isinstance(key, tuple), "built above"
        part = nodes[0].gpu
        classes.append(
            NodeClass(
                nodes=tuple(sorted(nodes, key=lambda node: node.name)),
                rate_flop_per_s=part.achieved_flop_per_s[precision] if part.supports(precision) else 0.0,
                num_hosts=len({node.host for node in nodes}),
                named=_named(nodes[0], names),
                host_make_up=key[1],
            )
        )
    return sorted(classes, key=lambda c: c.first.name)


def _named(node: Node, names: Iterable[str]) -> tuple[str | None, str | None]:
    return (node.name if node.name in names else None, node.group if node.group in names else None)


def _kind(node: Node, names: Iterable[str]) -> tuple[Hashable, ...]:
    """What tells nodes apart, other than their hosts; the part first."""
    return (
        node.gpu,
        node.gpu.name,
        node.num_gpus,
        node.intra_bandwidth_bytes_per_s,
        node.intra_latency_s,
        node.nic_bandwidth_bytes_per_s,
        bridge_kind(node),
        node.domain,
        node.nic_share_frac,
        _named(node, names),
    )


def bridge_kind(node: Node) -> tuple[int, float, float, str]:
    """What tells bridges apart: size of a group, bandwidth, latency, name; which GPUs they join does not."""
    if node.bridge is None:
        return (1, 0.0, 0.0, "")
    bridge = node.bridge
    return (bridge.size, bridge.bandwidth_bytes_per_s, bridge.latency_s, bridge.kind)


def _network(cluster: Cluster, classes: list[NodeClass]) -> ClassNetwork:
    """The rules of ``Cluster.bandwidth_bytes_per_s``, applied to all pairs of classes at once."""
    shape = (len(classes), len(classes))
    rate = np.full(shape, cluster.default_bandwidth_bytes_per_s)
    latency = np.full(shape, cluster.default_latency_s)
    ends: dict[str, tuple[list[int], list[int]]] = defaultdict(lambda: ([], []))
    for idx, node_class in enumerate(classes):
        name, group = node_class.named
        if name is not None:
            ends[name][1].append(idx)
        if group is not None and group != name:
            ends[group][0].append(idx)
    rules = [
        (
            by_name_a + by_name_b,
            -link.bandwidth_bytes_per_s,
            link.latency_s,
            link.a,
            by_name_a,
            link.b,
            by_name_b,
        )
        for link in cluster.links
        for by_name_a in (0, 1)
        for by_name_b in (0, 1)
    ]
    # The rule that binds tightest comes last and overwrites the others.
    for _, minus_rate, link_latency, a, by_name_a, b, by_name_b in sorted(rules):
        rows, columns = ends[a][by_name_a], ends[b][by_name_b]
        for pairs in (np.ix_(rows, columns), np.ix_(columns, rows)):
            rate[pairs] = -minus_rate
            latency[pairs] = link_latency
    nics = np.array([c.first.nic_bandwidth_bytes_per_s for c in classes])
    rate = np.minimum(rate, np.minimum.outer(nics, nics))
    _join_domains(classes, rate, latency)
    return ClassNetwork(rate, latency, _exists(classes))


def _join_domains(classes: list[NodeClass], rate: FloatArray, latency: FloatArray) -> None:
    """Writes the link that spans a domain between its classes."""
    domains: dict[str, list[int]] = defaultdict(list)
    for idx, node_class in enumerate(classes):
        if node_class.first.domain is not None:
            domains[node_class.first.domain].append(idx)
    for members in domains.values():
        nodes = [classes[idx].first for idx in members]
        together = np.array([node.num_gpus * node.intra_bandwidth_bytes_per_s for node in nodes])
        slow = np.array([node.intra_latency_s for node in nodes])
        rate[np.ix_(members, members)] = np.minimum.outer(together, together)
        latency[np.ix_(members, members)] = np.maximum.outer(slow, slow)


def _exists(classes: list[NodeClass]) -> BoolArray:
    """Two nodes on different hosts exist unless both classes have one and the same single host."""
    exists = np.ones((len(classes), len(classes)), dtype=np.bool_)
    alone: dict[Hashable, list[int]] = defaultdict(list)
    for idx, node_class in enumerate(classes):
        if node_class.num_hosts == 1:
            alone[node_class.first.host].append(idx)
    for same_host in alone.values():
        exists[np.ix_(same_host, same_host)] = False
    return exists


def _order(classes: list[NodeClass], network: ClassNetwork) -> list[int]:
    """Sorts classes by what they are, then by how they are linked, and only at the very last by name.

    Classes that look alike are told apart by what they are linked to, round after round, until no round tells
    more of them apart (colour refinement).
    """
    ranks = _dense_ranks([_looks(node_class) for node_class in classes])
    while True:
        counts = Counter(ranks)
        finer = _dense_ranks(
            [
                (rank, _links_of(idx, ranks, network) if counts[rank] > 1 else ())
                for idx, rank in enumerate(ranks)
            ]
        )
        if finer == ranks:
            break
        ranks = finer
    return sorted(range(len(classes)), key=lambda idx: (ranks[idx], classes[idx].first.name))


def _looks(node_class: NodeClass) -> tuple[object, ...]:
    node = node_class.first
    return (
        -node_class.rate_flop_per_s,
        -node.gpu.usable_memory_bytes,
        node.gpu.name,
        -node.num_gpus,
        -node.intra_bandwidth_bytes_per_s,
        node.intra_latency_s,
        -node.nic_bandwidth_bytes_per_s,
        -len(node_class.nodes),
        bridge_kind(node),
        node.domain is None,
        node.nic_share_frac,
    )


def _links_of(idx: int, ranks: list[int], network: ClassNetwork) -> tuple[tuple[object, ...], ...]:
    rates = (-network.bandwidth_bytes_per_s[idx]).tolist()
    latencies, exists = network.latency_s[idx].tolist(), network.exists[idx].tolist()
    itself = [other == idx for other in range(len(ranks))]
    return tuple(sorted(zip(ranks, itself, exists, rates, latencies, strict=True)))


def _dense_ranks(keys: list[tuple[Any, ...]]) -> list[int]:
    """Replaces keys by their rank among the distinct keys: 0, 1, 2 and so on."""
    rank = {key: at for at, (key, _) in enumerate(groupby(sorted(keys)))} if keys else {}
    return [rank[key] for key in keys]
