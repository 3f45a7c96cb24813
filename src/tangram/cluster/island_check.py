"""Checks islands against their definition, node by node and independently of how they were built."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from tangram.cluster.spec import Cluster, Island, Node
from tangram.cluster.tolerances import Tolerances, alike
from tangram.job import Precision


def violations(
    islands: Sequence[Island], cluster: Cluster, precision: Precision, tolerances: Tolerances
) -> list[str]:
    """Returns what is wrong with the islands of a cluster, one sentence each; nothing when they are sound.

    Checked are: every node is in exactly one island; names are unique; conditions (1) to (3) of
    :mod:`tangram.cluster.islands` and the evenness of links; and that an island's own figures are the worst
    of its nodes. The time is quadratic in the number of nodes.
    """
    homes = Counter(node.name for island in islands for node in island.nodes)
    known = {node.name for node in cluster.nodes}
    names = Counter(island.name for island in islands)
    found = [f"node {name} is in {homes[name]} islands" for name in sorted(known) if homes[name] != 1]
    found += [f"node {name} is not in the cluster" for name in sorted(homes.keys() - known)]
    found += [f"{count} islands are called {name}" for name, count in names.items() if count > 1]
    for island in islands:
        broken = _node_violations(island, precision, tolerances)
        broken += _link_violations(island, cluster, tolerances)
        broken += _figure_violations(island, cluster)
        found += [f"island {island.name}: {text}" for text in broken]
    return found


def _node_violations(island: Island, precision: Precision, tolerances: Tolerances) -> list[str]:
    """Conditions (1) and (2)."""
    found = []
    if any(node.num_gpus != island.gpus_per_node for node in island.nodes):
        found.append("nodes have different numbers of GPUs")
    if len({1 if node.bridge is None else node.bridge.size for node in island.nodes}) > 1:
        found.append("bridges join different numbers of GPUs")
    if len({node.gpu.vendor for node in island.nodes}) > 1:
        found.append("GPUs of different vendors")
    for what, values, limit in (
        (
            "compute",
            [node.gpu.achieved_flop_per_s.get(precision, 0.0) for node in island.nodes],
            tolerances.compute,
        ),
        ("memory", [node.gpu.usable_memory_bytes for node in island.nodes], tolerances.memory),
        (
            "intra-node bandwidth",
            [node.intra_bandwidth_bytes_per_s for node in island.nodes],
            tolerances.intra,
        ),
        (
            "bridge bandwidth",
            [0.0 if n.bridge is None else n.bridge.bandwidth_bytes_per_s for n in island.nodes],
            tolerances.intra,
        ),
    ):
        if not alike(min(values), max(values), limit):
            found.append(f"{what} between {min(values):g} and {max(values):g} is beyond 1 + {limit:g}")
    return found


def _link_violations(island: Island, cluster: Cluster, tolerances: Tolerances) -> list[str]:
    """Condition (3), and the evenness of links."""
    found = []
    inside_names = {node.name for node in island.nodes}
    links: list[float] = []
    for node in island.nodes:
        inside = _bandwidths(cluster, node, [n for n in island.nodes if n.name != node.name])
        outside = _bandwidths(cluster, node, [n for n in cluster.nodes if n.name not in inside_names])
        links += inside
        if inside and outside and min(inside) < max(outside):
            found.append(
                f"node {node.name} is linked at {min(inside):g} B/s inside, {max(outside):g} B/s outside"
            )
    if links and not alike(min(links), max(links), tolerances.network):
        found.append(
            f"links between {min(links):g} and {max(links):g} B/s are beyond 1 + {tolerances.network:g}"
        )
    return found


def _bandwidths(cluster: Cluster, node: Node, others: Sequence[Node]) -> list[float]:
    return [cluster.bandwidth_bytes_per_s(node, other) for other in others if other.host != node.host]


def _figure_violations(island: Island, cluster: Cluster) -> list[str]:
    """The island's own figures are those of its worst node or link."""
    nodes = island.nodes
    pairs = [(a, b) for at, a in enumerate(nodes) for b in nodes[at + 1 :]]
    nic = min(node.nic_bandwidth_bytes_per_s for node in nodes)
    expected = {
        "gpu memory": min(node.gpu.usable_memory_bytes for node in nodes),
        "intra bandwidth": min(node.intra_bandwidth_bytes_per_s for node in nodes),
        "intra latency": max(node.intra_latency_s for node in nodes),
        "NIC": nic,
        "inter bandwidth": min((cluster.bandwidth_bytes_per_s(a, b) for a, b in pairs), default=nic),
        "inter latency": max((cluster.latency_s(a, b) for a, b in pairs), default=cluster.default_latency_s),
    }
    stated = {
        "gpu memory": island.gpu.usable_memory_bytes,
        "intra bandwidth": island.intra_bandwidth_bytes_per_s,
        "intra latency": island.intra_latency_s,
        "NIC": island.nic_bandwidth_bytes_per_s,
        "inter bandwidth": island.inter_bandwidth_bytes_per_s,
        "inter latency": island.inter_latency_s,
    }
    return [
        f"{what} is {stated[what]:g}, not {expected[what]:g}"
        for what in expected
        if stated[what] != expected[what]
    ]
