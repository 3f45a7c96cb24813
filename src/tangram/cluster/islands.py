"""Islands: sets of whole nodes that are homogeneous within tolerances (section 4 of the paper).

For the GPUs g of a set of nodes I with achieved rate c (in the job's precision), usable memory m and
intra-node bandwidth b, and the network bandwidth e(g, g') between GPUs of different hosts:

1. all nodes have the same number of GPUs, and max/min of c and of m over I are at most 1 + tolerance;
2. likewise for b;
3. for g, g' in I on different hosts and any g'' outside of I on another host: e(g, g') >= e(g, g'').

Two things the paper leaves open are settled so. Condition 3 compares links between different hosts only:
the parts of one mixed host are not each other's outside. And, since condition 3 says nothing when nobody is
outside (two equal racks joined by a slow link), no link inside may be slower than 1 / (1 + tolerance) of
the fastest link inside.

One rule is ours: vendors do not mix, because their collective libraries do not speak to one another.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from tangram.cluster.classes import NodeClass, classify
from tangram.cluster.grouping import Block, Grouping
from tangram.cluster.island_check import violations
from tangram.cluster.island_reasons import reasons
from tangram.cluster.spec import Cluster, GpuSpec, Island, Node
from tangram.cluster.tolerances import Tolerances
from tangram.errors import InputError
from tangram.job import Precision

__all__ = ["Tolerances", "build_islands", "violations"]


def build_islands(
    cluster: Cluster, precision: Precision, tolerances: Tolerances | None = None
) -> tuple[Island, ...]:
    """Returns the islands of a cluster: every node is in one, and no two islands can be joined.

    Nodes that nothing tells apart are treated alike, all in one island or each alone; "no two can be
    joined" is meant within that rule. GPUs without the precision have rate 0 and form islands of their own.

    Args:
        cluster: The cluster.
        precision: The job's; it decides what "compute" is.
        tolerances: How unequal an island may be; the defaults when None.

    Returns:
        The islands, fastest GPU first, then largest memory, nodes and number of nodes. The result does not
        depend on the order of nodes and links in the cluster.

    Raises:
        InputError: The cluster has no nodes, or two of one name.
    """
    _check_names(cluster)
    classes, network = classify(cluster, precision)
    grouping = Grouping(classes, network, tolerances or Tolerances())
    blocks = grouping.blocks()
    found = [(at, nodes) for at, block in enumerate(blocks) for nodes in _nodes_of(block, classes)]
    islands = [(at, _island(cluster, grouping, blocks[at], nodes)) for at, nodes in found]
    islands.sort(key=lambda item: _order(item[1], precision))
    names = _names([island for _, island in islands])
    labels = [
        next(name for (at, _), name in zip(islands, names, strict=True) if at == wanted)
        for wanted in range(len(blocks))
    ]
    why = [reasons(grouping, blocks, at, labels, precision) for at in range(len(blocks))]
    return tuple(_named(island, name, why[at]) for (at, island), name in zip(islands, names, strict=True))


def _check_names(cluster: Cluster) -> None:
    if not cluster.nodes:
        raise InputError("the cluster has no nodes", where=cluster.name)
    name, count = Counter(node.name for node in cluster.nodes).most_common(1)[0]
    if count > 1:
        raise InputError(f"{count} nodes are called {name!r}", where=cluster.name)


def _nodes_of(block: Block, classes: Sequence[NodeClass]) -> list[list[Node]]:
    nodes = [node for idx in block.members for node in classes[idx].nodes]
    return [sorted(nodes, key=lambda node: node.name)] if block.whole else [[node] for node in nodes]


def _island(cluster: Cluster, grouping: Grouping, block: Block, nodes: list[Node]) -> Island:
    """Builds the island of these nodes, without name and reasons; every figure is the worst of its nodes."""
    nic = min(node.nic_bandwidth_bytes_per_s for node in nodes)
    inter, inter_latency_s = nic, cluster.default_latency_s
    if len(nodes) > 1:
        inter, inter_latency_s = _worst_link(grouping, block, nodes)
    return Island(
        name="",
        nodes=tuple(nodes),
        gpu=_worst_part(grouping, block),
        gpus_per_node=nodes[0].num_gpus,
        intra_bandwidth_bytes_per_s=min(node.intra_bandwidth_bytes_per_s for node in nodes),
        intra_latency_s=max(node.intra_latency_s for node in nodes),
        inter_bandwidth_bytes_per_s=inter,
        inter_latency_s=inter_latency_s,
        nic_bandwidth_bytes_per_s=nic,
    )


def _worst_link(grouping: Grouping, block: Block, nodes: list[Node]) -> tuple[float, float]:
    """Returns the smallest bandwidth and the largest latency between two nodes of the island."""
    rates = grouping.inner_links(block.members).tolist()
    latencies = grouping.inner_latencies(block.members).tolist()
    hosts = Counter(node.host for node in nodes)
    shared = [node for node in nodes if hosts[node.host] > 1]
    rates += [node.intra_bandwidth_bytes_per_s for node in shared]
    latencies += [node.intra_latency_s for node in shared]
    return min(rates), max(latencies)


def _worst_part(grouping: Grouping, block: Block) -> GpuSpec:
    """The part with the least memory, then the slowest: what fits there fits everywhere on the island."""
    worst = min(
        (grouping.classes[idx] for idx in block.members),
        key=lambda c: (c.first.gpu.usable_memory_bytes, c.rate_flop_per_s, c.first.gpu.name),
    )
    return worst.first.gpu


def _order(island: Island, precision: Precision) -> tuple[object, ...]:
    rate = island.gpu.achieved_flop_per_s[precision] if island.gpu.supports(precision) else 0.0
    return (
        -rate,
        -island.gpu.usable_memory_bytes,
        island.gpu.name,
        -island.gpus_per_node,
        -island.num_nodes,
        -island.intra_bandwidth_bytes_per_s,
        -island.inter_bandwidth_bytes_per_s,
        -island.nic_bandwidth_bytes_per_s,
        island.intra_latency_s,
        island.inter_latency_s,
        sorted(Counter(node.gpu.name for node in island.nodes).items()),
        [node.name for node in island.nodes],
    )


def _names(islands: Sequence[Island]) -> list[str]:
    """Names islands after their part; the second of a part gets ``#2``, and so on."""
    seen: Counter[str] = Counter()
    names = []
    for island in islands:
        part = island.gpu.name
        seen[part] += 1
        names.append(part if seen[part] == 1 else f"{part}#{seen[part]}")
    return names


def _named(island: Island, name: str, why: tuple[str, ...]) -> Island:
    values = {field: getattr(island, field) for field in Island.__slots__}
    return Island(**{**values, "name": name, "reasons": why})
