"""What to train on: GPUs, nodes, the network between nodes, and islands.

Bandwidths are bytes per second per direction. A node has equal GPUs; a host with unequal ones is described as
several nodes that name the same ``host`` and share its NICs. Inside a node a *bridge* may join groups of GPUs
faster than the rest; a *domain* is several nodes whose link inside spans all of them (NVL72).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from tangram.job import Precision


@dataclass(frozen=True, slots=True)
class GpuSpec:
    """One GPU part of the catalogue.

    Attributes:
        name: Full part name, for example ``A100-80GB-SXM``.
        vendor: ``NVIDIA`` or ``AMD``.
        family: Key of the constants shelf, for example ``ampere`` (A100), ``hopper``, ``volta``, ``turing``.
        architecture: For example ``sm80``.
        memory_bytes: Nominal device memory.
        usable_memory_bytes: What a process can allocate (ECC and driver taken off); the plan's capacity.
        memory_bandwidth_bytes_per_s: Device memory bandwidth.
        peak_flop_per_s: Datasheet dense matrix rate by precision; a missing precision is not supported.
        achieved_flop_per_s: Best matrix rate that a large GEMM reaches, by precision.
        achieved_basis: ``measured`` or ``estimated`` (a stated fraction of the peak).
        link_bytes_per_s: NVLink (or xGMI) bandwidth per GPU and direction; 0 without.
        pcie_bytes_per_s: PCIe bandwidth per GPU and direction.
        attention_kernel: ``flash`` where FlashAttention-2 or newer runs in fp16/bf16, else ``unfused``.
        gpus_per_node: The usual number in a node.
        source: Where the numbers come from.
    """

    name: str
    vendor: str
    family: str
    architecture: str
    memory_bytes: int
    usable_memory_bytes: int
    memory_bandwidth_bytes_per_s: float
    peak_flop_per_s: Mapping[Precision, float]
    achieved_flop_per_s: Mapping[Precision, float]
    achieved_basis: str
    link_bytes_per_s: float
    pcie_bytes_per_s: float
    attention_kernel: str
    gpus_per_node: int
    source: str

    def __post_init__(self) -> None:
        object.__setattr__(self, "peak_flop_per_s", MappingProxyType(dict(self.peak_flop_per_s)))
        object.__setattr__(self, "achieved_flop_per_s", MappingProxyType(dict(self.achieved_flop_per_s)))

    def __hash__(self) -> int:
        return hash((self.name, self.usable_memory_bytes))

    def __reduce__(self) -> tuple[object, ...]:
        values = [getattr(self, name) for name in self.__slots__]
        return (GpuSpec, tuple(dict(v) if isinstance(v, MappingProxyType) else v for v in values))

    def supports(self, precision: Precision) -> bool:
        """Whether the part has matrix arithmetic in this precision."""
        return precision in self.peak_flop_per_s


@dataclass(frozen=True, slots=True)
class Bridge:
    """A link that joins the GPUs of a node in groups, faster than any two of them are: NVLink pairs.

    Attributes:
        groups: The GPUs of the node, group by group; all groups are of one size, every GPU is in one.
        kind: ``nvlink`` or as the user calls it.
        bandwidth_bytes_per_s: Between two GPUs of a group, per GPU and direction.
        latency_s: Of one message between them.
    """

    groups: tuple[tuple[int, ...], ...]
    kind: str
    bandwidth_bytes_per_s: float
    latency_s: float

    @property
    def size(self) -> int:
        """GPUs of one group."""
        return len(self.groups[0])


@dataclass(frozen=True, slots=True)
class Node:
    """One host (or the equal part of a mixed host).

    Attributes:
        name: Unique in the cluster.
        gpu: The part; all GPUs of a node are equal.
        num_gpus: How many.
        intra_bandwidth_bytes_per_s: Between two GPUs of the node, per GPU and direction.
        intra_latency_s: Of one message between them.
        intra_kind: ``nvlink``, ``pcie`` or as the user calls it.
        nic_bandwidth_bytes_per_s: All NICs of the host together, per direction.
        host: The physical host; equals ``name`` unless a mixed host was cut into several nodes.
        group: The name under which the file lists the node (``v100`` for ``v100-0``); links are given by it.
        bridge: Joins GPUs of the node in groups; None where all pairs are alike.
        domain: The domain that the node belongs to: its link inside also joins it to the other nodes of that
            name, without NICs. None for a node by itself.
        nic_share_frac: Share of the host's NICs that collectives of this node may count on. Below 1 for the
            parts of a mixed host, whose collectives run at the same time: their share of its GPUs.
    """

    name: str
    gpu: GpuSpec
    num_gpus: int
    intra_bandwidth_bytes_per_s: float
    intra_latency_s: float
    intra_kind: str
    nic_bandwidth_bytes_per_s: float
    host: str
    group: str
    bridge: Bridge | None = None
    domain: str | None = None
    nic_share_frac: float = 1.0

    @property
    def gpu_order(self) -> tuple[int, ...]:
        """The GPUs in the order in which stages take them: bridged ones side by side."""
        if self.bridge is None:
            return tuple(range(self.num_gpus))
        return tuple(gpu_idx for group in self.bridge.groups for gpu_idx in group)

    @property
    def reach(self) -> tuple[str, str]:
        """What the link inside spans: two nodes of one reach talk over it, all others over their NICs."""
        return ("host", self.host) if self.domain is None else ("domain", self.domain)


@dataclass(frozen=True, slots=True)
class Slot:
    """One GPU: a node and the index on it."""

    node: Node
    gpu_idx: int


@dataclass(frozen=True, slots=True)
class Link:
    """A network link between two nodes or groups of nodes that differs from the default.

    Attributes:
        a, b: Names of nodes or groups.
        bandwidth_bytes_per_s: Between any two nodes; of a shared line, for all of them together.
        latency_s: Of one message.
        line: Name of the line that all traffic over this link shares with all other links of that name
            (between two sites); None where every pair of nodes has the bandwidth to itself.
    """

    a: str
    b: str
    bandwidth_bytes_per_s: float
    latency_s: float
    line: str | None = None


@dataclass(frozen=True, slots=True)
class Assumption:
    """Something that the input did not state and was assumed, with the reason."""

    what: str
    why: str


@dataclass(frozen=True, slots=True)
class Cluster:
    """Nodes and the network between them.

    Attributes:
        name: For print.
        nodes: In the order of the file; no result depends on it.
        default_bandwidth_bytes_per_s: Between two nodes without a link of their own; the NICs still limit it.
        default_latency_s: Likewise.
        links: Exceptions, per pair of nodes or groups.
        assumptions: What the file marks as assumed.
    """

    name: str
    nodes: tuple[Node, ...]
    default_bandwidth_bytes_per_s: float
    default_latency_s: float
    links: tuple[Link, ...] = ()
    assumptions: tuple[Assumption, ...] = field(default=())

    @property
    def num_gpus(self) -> int:
        """GPUs of all nodes."""
        return sum(node.num_gpus for node in self.nodes)

    def node(self, name: str) -> Node:
        """Returns the node of that name.

        Raises:
            KeyError: There is none.
        """
        for node in self.nodes:
            if node.name == name:
                return node
        raise KeyError(name)

    def bandwidth_bytes_per_s(self, a: Node, b: Node) -> float:
        """Bandwidth between two different nodes: their link (or the default), limited by both hosts' NICs.

        Nodes of one host (a mixed host) talk over the host: the slower of their intra-node links. Nodes of
        one domain talk over the link that spans it: all GPUs of the smaller node at once.
        """
        if a.host == b.host:
            return min(a.intra_bandwidth_bytes_per_s, b.intra_bandwidth_bytes_per_s)
        if a.reach == b.reach:
            return min(a.num_gpus * a.intra_bandwidth_bytes_per_s, b.num_gpus * b.intra_bandwidth_bytes_per_s)
        link = self._link(a, b)
        rate = link.bandwidth_bytes_per_s if link else self.default_bandwidth_bytes_per_s
        return min(rate, a.nic_bandwidth_bytes_per_s, b.nic_bandwidth_bytes_per_s)

    def latency_s(self, a: Node, b: Node) -> float:
        """Latency of one message between two different nodes."""
        if a.host == b.host or a.reach == b.reach:
            return max(a.intra_latency_s, b.intra_latency_s)
        link = self._link(a, b)
        return link.latency_s if link else self.default_latency_s

    def line(self, a: Node, b: Node) -> tuple[Link, bool] | None:
        """Returns the link of the shared line that traffic from one node to another takes, and whether it
        goes from the link's first end to its second; None where no line is shared.
        """
        link = None if a.reach == b.reach or a.host == b.host else self._link(a, b)
        if link is None or link.line is None:
            return None
        return link, link.a in (a.name, a.group) and link.b in (b.name, b.group)

    def _link(self, a: Node, b: Node) -> Link | None:
        """Node names bind tighter than groups; among equals the narrowest wins, then the largest latency."""
        best: tuple[tuple[int, float, float], Link] | None = None
        for link in self.links:
            for x, y in ((link.a, link.b), (link.b, link.a)):
                if x in (a.name, a.group) and y in (b.name, b.group):
                    exactness = (x == a.name) + (y == b.name)
                    key = (-exactness, link.bandwidth_bytes_per_s, -link.latency_s)
                    if best is None or key < best[0]:
                        best = (key, link)
        return best[1] if best else None


@dataclass(frozen=True, slots=True)
class Island:
    """A set of whole nodes that is homogeneous within tolerances (design of islands: docs/architecture.md).

    Attributes:
        name: ``A100-80GB-SXM`` or, when a part forms several islands, with ``#2`` and so on.
        nodes: Sorted by name.
        gpu: The slowest, smallest part of the island: what a plan may count on.
        gpus_per_node: Equal for all nodes.
        intra_bandwidth_bytes_per_s: The slowest intra-node link.
        intra_latency_s: The largest.
        inter_bandwidth_bytes_per_s: The slowest link between two nodes (the NIC's for one node).
        inter_latency_s: The largest.
        nic_bandwidth_bytes_per_s: The slowest host's NICs together.
        reasons: Why the island ends where it ends, one sentence per boundary.
    """

    name: str
    nodes: tuple[Node, ...]
    gpu: GpuSpec
    gpus_per_node: int
    intra_bandwidth_bytes_per_s: float
    intra_latency_s: float
    inter_bandwidth_bytes_per_s: float
    inter_latency_s: float
    nic_bandwidth_bytes_per_s: float
    reasons: tuple[str, ...] = ()

    @property
    def num_nodes(self) -> int:
        """Nodes of the island."""
        return len(self.nodes)

    @property
    def num_gpus(self) -> int:
        """GPUs of the island."""
        return len(self.nodes) * self.gpus_per_node

    @property
    def is_domain(self) -> bool:
        """Whether one link joins the GPUs of all its nodes (NVL72)."""
        return len({node.reach for node in self.nodes}) == 1 and self.nodes[0].domain is not None

    @property
    def joined_gpus(self) -> int:
        """GPUs that the link inside a node joins: those of one node, or all of a domain."""
        return self.num_gpus if self.is_domain else self.gpus_per_node

    @property
    def bridge(self) -> Bridge | None:
        """The slowest bridge of its nodes; None when one of them has none."""
        bridges = [node.bridge for node in self.nodes if node.bridge is not None]
        if len(bridges) < len(self.nodes):
            return None
        return min(bridges, key=lambda bridge: (bridge.bandwidth_bytes_per_s, -bridge.latency_s))

    @property
    def nic_share_frac(self) -> float:
        """The smallest share of its NICs that collectives of a node may count on."""
        return min(node.nic_share_frac for node in self.nodes)


@dataclass(frozen=True, slots=True)
class Portion:
    """A part of an island that one stage (or a run of stages) may use: whole nodes, or part of one node.

    Attributes:
        island: The island.
        num_nodes: Nodes touched.
        gpus_per_node: GPUs used on each; less than the island's only when ``num_nodes`` is 1.
    """

    island: Island
    num_nodes: int
    gpus_per_node: int

    @property
    def num_gpus(self) -> int:
        """GPUs of the portion."""
        return self.num_nodes * self.gpus_per_node

    @property
    def joined_gpus(self) -> int:
        """GPUs of the portion that the link inside a node joins: those on one node, or all in a domain."""
        return self.num_gpus if self.island.is_domain else self.gpus_per_node

    @property
    def nic_bandwidth_bytes_per_s(self) -> float:
        """Egress of the portion towards other nodes, all NICs of its nodes together."""
        return self.num_nodes * self.island.nic_bandwidth_bytes_per_s


def portions(island: Island) -> list[Portion]:
    """Returns the legal portions of an island: divisors of the node size on one node, then whole nodes.

    These sizes always pack, whatever the order (planner prototype, pitfall 7); 6 of 8 would not.
    """
    size = island.gpus_per_node
    within = [Portion(island, 1, g) for g in range(1, size) if size % g == 0]
    return within + [Portion(island, n, size) for n in range(1, island.num_nodes + 1)]
