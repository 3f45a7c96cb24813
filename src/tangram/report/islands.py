"""The islands of a cluster: what they are made of, and why each ends where it ends."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from tangram.job import Precision
from tangram.plan.schema import ClusterSection, IslandSection, NodeSection
from tangram.report.grid import Grid
from tangram.report.page import Page
from tangram.report.words import counted, percent, sentence
from tangram.units import GB, GIB, format_bandwidth

_TOLERANCES = {
    "compute": "compute",
    "memory": "memory",
    "intra": "links inside nodes",
    "network": "links between nodes",
}


def add_islands(
    page: Page,
    islands: Sequence[IslandSection],
    cluster: ClusterSection,
    tolerances: Mapping[str, float | None],
    precision: Precision,
) -> None:
    """Adds the islands, the reasons for their boundaries and the tolerances behind them."""
    page.heading("Islands", "equal nodes that are near each other; a stage never leaves its island")
    grid = _grid(islands, cluster, precision, short=False)
    if grid.width > page.width:
        grid = _grid(islands, cluster, precision, short=True)
    page.grid(grid)
    page.items(_boundaries(islands))
    page.wrapped(_tolerance_sentence(tolerances), style="dim")


def add_cluster(
    page: Page,
    cluster: ClusterSection,
    islands: Sequence[IslandSection],
    tolerances: Mapping[str, float | None],
    precision: Precision,
    precision_reason: str,
) -> None:
    """Adds a cluster by itself: what it has, its islands, and what its description left open."""
    page.heading(cluster.name)
    page.facts([("cluster", cluster_sentence(cluster)), ("precision", f"{precision}: {precision_reason}")])
    add_islands(page, islands, cluster, tolerances, precision)
    if cluster.assumptions:
        page.heading("Assumed", "state what you know better")
        page.items([f"{entry.what}: {sentence(entry.why)}" for entry in cluster.assumptions])


def _grid(
    islands: Sequence[IslandSection], cluster: ClusterSection, precision: Precision, *, short: bool
) -> Grid:
    rate_header = precision.value if short else f"{precision} rate"
    grid = Grid(["name", "nodes x GPUs", "usable", rate_header, "inside a node", "a node's NICs"], "llrrll")
    parts = {gpu.name: gpu for gpu in cluster.gpus}
    nodes = {node.name: node for node in cluster.nodes}
    for island in islands:
        gpu = parts.get(island.gpu)  # a plan file may name what it does not define; tangram check says so
        rate = gpu.achieved_flop_per_s.get(precision) if gpu else None
        inside = _inside(island, [nodes[name] for name in island.nodes if name in nodes])
        outside = format_bandwidth(island.nic_bandwidth_bytes_per_s)
        grid.add(
            island.name,
            f"{len(island.nodes)} x {island.gpus_per_node}",
            f"{gpu.usable_memory_bytes / GIB:.1f} GiB" if gpu else "?",
            "none" if rate is None else f"{rate / 1e12:.0f}" + ("" if short else " TFLOP/s"),
            inside if island.gpus_per_node > 1 else "-",
            outside,
        )
    return grid


def _inside(island: IslandSection, nodes: Sequence[NodeSection]) -> str:
    """The link inside a node; bridges, and what a domain spans, where there are any."""
    kinds = {node.intra_kind: None for node in nodes}
    text = f"{format_bandwidth(island.intra_bandwidth_bytes_per_s)} {'/'.join(kinds)}".rstrip()
    bridges = [node.bridge for node in nodes if node.bridge is not None]
    if bridges and len(bridges) == len(nodes):
        slowest = min(bridges, key=lambda bridge: bridge.bandwidth_bytes_per_s)
        size = len(slowest.groups[0])
        joined = "pairs" if size == 2 else f"groups of {size}"
        text += f"; {joined} {format_bandwidth(slowest.bandwidth_bytes_per_s)} {slowest.kind}"
    if len({node.domain for node in nodes}) == 1 and nodes[0].domain is not None:
        text += f", over all {counted(len(nodes), 'node')}"
    return text


def _boundaries(islands: Sequence[IslandSection]) -> list[str]:
    """Each boundary once: what an island says of one listed before it is left out."""
    texts = []
    for idx, island in enumerate(islands):
        own = re.compile(_word(island.name))
        before = [re.compile(_word(other.name)) for other in islands[:idx]]
        for reason in island.reasons:
            others = own.sub("", reason)
            if not any(name.search(others) for name in before):
                prefix = "" if own.match(reason) else f"{island.name}: "
                texts.append(prefix + sentence(reason))
    return texts


def _word(name: str) -> str:
    """A pattern for the name of an island, and not for a longer name that begins or ends with it."""
    return rf"(?<![\w#-]){re.escape(name)}(?![\w#-])"


def _tolerance_sentence(tolerances: Mapping[str, float | None]) -> str:
    parts = [
        f"{_TOLERANCES.get(name, name)} {'unlimited' if value is None else percent(value)}"
        for name, value in tolerances.items()
    ]
    return f"Tolerances within an island: {', '.join(parts)}." if parts else "Tolerances: not stated."


def cluster_sentence(cluster: ClusterSection) -> str:
    """Returns how many of which GPUs on how many hosts, and the network between them."""
    counts: dict[str, int] = {}
    for node in cluster.nodes:
        counts[node.gpu] = counts.get(node.gpu, 0) + node.num_gpus
    total = sum(counts.values())
    listed_parts = " + ".join(f"{count}x {name}" for name, count in counts.items())
    hosts = len({node.host for node in cluster.nodes})
    gbit = cluster.default_bandwidth_bytes_per_s * 8 / GB
    exceptions = f", {counted(len(cluster.links), 'link')} of their own" if cluster.links else ""
    what = f" = {total} GPUs" if len(counts) > 1 else ""
    return f"{listed_parts}{what} on {counted(hosts, 'node')}; network {gbit:g} Gbit/s{exceptions}"
