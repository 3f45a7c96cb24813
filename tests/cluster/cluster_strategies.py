"""Random clusters for property tests: few distinct values, so that ties and near misses are common."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

from hypothesis import strategies as st

from tangram.cluster import catalog, defaults
from tangram.cluster.spec import Bridge, Cluster, GpuSpec, Link, Node
from tangram.cluster.tolerances import Tolerances
from tangram.job import Precision

PARTS = ("A100-80GB-SXM", "A800-80GB-SXM", "V100-32GB-SXM2", "V100-16GB-SXM2", "T4", "MI300X")
RATES = (1.25e9, 6.25e9, 10e9, 12.5e9, 50e9)


def slower(part: GpuSpec, factor: float) -> GpuSpec:
    """Returns a part like another one, with all rates and the memory scaled."""
    return dataclasses.replace(
        part,
        name=f"{part.name}-at-{factor:g}",
        usable_memory_bytes=int(part.usable_memory_bytes * factor),
        achieved_flop_per_s={p: rate * factor for p, rate in part.achieved_flop_per_s.items()},
    )


def node(
    name: str,
    part: GpuSpec | str,
    num_gpus: int = 4,
    nic: float = 12.5e9,
    host: str | None = None,
    group: str | None = None,
    intra: float | None = None,
) -> Node:
    """Returns a node, with the catalogue's link inside."""
    gpu = catalog.gpu(part) if isinstance(part, str) else part
    link = defaults.default_intra(gpu)
    return Node(
        name=name,
        gpu=gpu,
        num_gpus=num_gpus,
        intra_bandwidth_bytes_per_s=intra or link.bandwidth_bytes_per_s,
        intra_latency_s=link.latency_s,
        intra_kind=link.kind,
        nic_bandwidth_bytes_per_s=nic,
        host=host or name,
        group=group or name,
    )


def cluster(nodes: Sequence[Node], links: Sequence[Link] = (), default: float = 12.5e9) -> Cluster:
    """Returns a cluster of these nodes."""
    return Cluster("test", tuple(nodes), default, 10e-6, tuple(links))


def bridged(num_gpus: int, size: int | None, rate: float) -> Bridge | None:
    """Returns a bridge over groups of so many GPUs; None without a size, or where they do not divide."""
    if size is None or num_gpus <= size:
        return None
    groups = tuple(tuple(range(first, first + size)) for first in range(0, num_gpus, size))
    return Bridge(groups, "nvlink", rate, 5e-6)


@st.composite
def clusters(draw: st.DrawFn) -> Cluster:
    """Groups of nodes, some on shared hosts, some with bridges or in domains, with links between groups and
    between single nodes.
    """
    nodes: list[Node] = []
    num_groups = draw(st.integers(1, 4))
    for group_idx in range(num_groups):
        group = f"g{group_idx}"
        part = catalog.gpu(draw(st.sampled_from(PARTS)))
        if draw(st.integers(0, 4)) == 0:
            part = slower(part, draw(st.sampled_from((0.97, 0.93))))
        count = draw(st.integers(1, 4))
        num_gpus = draw(st.sampled_from((4, 4, 8)))
        nic = draw(st.sampled_from((50e9, 50e9, 12.5e9, 6.25e9)))
        unequal = sorted({n.group for n in nodes if n.gpu.name != part.name})
        share_with = draw(st.sampled_from([None, None, *unequal]))
        bridge, domain = (
            draw(st.sampled_from((None, None, 2, 4))),
            draw(st.sampled_from((None, None, "x", "y"))),
        )
        rate = draw(st.sampled_from((400e9, 420e9, 600e9)))
        for idx in range(count):
            name = f"{group}-{idx}"
            host = f"{share_with}-{idx}" if share_with else name
            made = node(name, part, num_gpus, nic, host, group)
            nodes.append(dataclasses.replace(made, bridge=bridged(num_gpus, bridge, rate), domain=domain))
    nics = {n.host: n.nic_bandwidth_bytes_per_s for n in reversed(nodes)}
    nodes = [dataclasses.replace(n, nic_bandwidth_bytes_per_s=nics[n.host]) for n in nodes]
    ends = sorted({n.name for n in nodes} | {n.group for n in nodes})
    pairs = draw(st.lists(st.tuples(st.sampled_from(ends), st.sampled_from(ends)), max_size=5))
    links = [
        Link(a, b, draw(st.sampled_from(RATES)), draw(st.sampled_from((5e-6, 10e-6, 30e-6))))
        for a, b in pairs
    ]
    return cluster(nodes, links, default=draw(st.sampled_from(RATES)))


def renamed(original: Cluster, names: Mapping[str, str]) -> Cluster:
    """Returns the cluster with every node, group and host called by its new name."""
    return dataclasses.replace(
        original,
        nodes=tuple(
            dataclasses.replace(
                n, name=names[n.name], group=names[n.group], host=names.get(n.host, "host-" + n.host)
            )
            for n in original.nodes
        ),
        links=tuple(dataclasses.replace(link, a=names[link.a], b=names[link.b]) for link in original.links),
    )


tolerances = st.builds(
    Tolerances,
    compute=st.sampled_from((0.0, 0.05, 2.0, float("inf"))),
    memory=st.sampled_from((0.0, 0.05, 2.0, float("inf"))),
    intra=st.sampled_from((0.0, 0.1, float("inf"))),
    network=st.sampled_from((0.0, 0.5, 4.0, float("inf"))),
)
precisions = st.sampled_from((Precision.FP16, Precision.BF16))
