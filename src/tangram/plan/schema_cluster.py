"""The cluster as the plan holds it: a complete :class:`~tangram.cluster.spec.Cluster`, and its islands."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field, SerializerFunctionWrapHandler, model_serializer

from tangram.cluster.serial import cluster_from_dict, cluster_to_dict, fingerprint
from tangram.cluster.spec import Cluster, Island
from tangram.job import Precision
from tangram.plan.section import Count, Positive, Rate, Seconds, Section


class GpuSection(Section):
    """One GPU part; the fields are those of :class:`~tangram.cluster.spec.GpuSpec`."""

    name: str
    vendor: str
    family: str
    architecture: str
    memory_bytes: Positive
    usable_memory_bytes: Positive
    memory_bandwidth_bytes_per_s: Rate
    peak_flop_per_s: dict[Precision, Rate]
    achieved_flop_per_s: dict[Precision, Rate]
    achieved_basis: str
    link_bytes_per_s: Annotated[float, Field(ge=0)]
    pcie_bytes_per_s: Annotated[float, Field(ge=0)]
    attention_kernel: str
    gpus_per_node: Positive
    source: str


class BridgeSection(Section):
    """A link that joins the GPUs of a node in groups, faster than any two of them are joined.

    Attributes:
        groups: The GPUs of the node, group by group: every one once, groups of one size.
        kind: ``nvlink`` or as the user calls it.
        bandwidth_bytes_per_s: Between two GPUs of a group, per GPU and direction.
        latency_s: Of one message between them.
    """

    groups: Annotated[list[Annotated[list[Count], Field(min_length=1)]], Field(min_length=1)]
    kind: str
    bandwidth_bytes_per_s: Rate
    latency_s: Seconds


class NodeSection(Section):
    """One host, or the equal part of a mixed host; fields as in :class:`~tangram.cluster.spec.Node`.

    Attributes:
        gpu: Name of the part, see ``cluster.gpus``.
        bridge: Where GPUs are joined in groups (NVLink pairs); absent otherwise.
        domain: Where the link inside spans several nodes (NVL72), its name; absent otherwise.
        nic_share_frac: Of a part of a mixed host; absent otherwise.
    """

    name: str
    gpu: str
    num_gpus: Positive
    intra_bandwidth_bytes_per_s: Rate
    intra_latency_s: Seconds
    intra_kind: str
    nic_bandwidth_bytes_per_s: Rate
    host: str
    group: str
    bridge: BridgeSection | None = None
    domain: str | None = None
    nic_share_frac: Annotated[float, Field(gt=0, le=1)] = 1.0

    @model_serializer(mode="wrap")
    def _as_before(self, serialize: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Leaves out what a plain node does not have."""
        return _without_defaults(serialize(self), bridge=None, domain=None, nic_share_frac=1.0)


class LinkSection(Section):
    """A link that differs from the default, between two nodes or groups of nodes.

    Attributes:
        line: Where all traffic shares one line, its name; absent otherwise.
    """

    a: str
    b: str
    bandwidth_bytes_per_s: Rate
    latency_s: Seconds
    line: str | None = None

    @model_serializer(mode="wrap")
    def _as_before(self, serialize: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Leaves out what a plain link does not have."""
        return _without_defaults(serialize(self), line=None)


def _without_defaults(data: dict[str, Any], **defaults: object) -> dict[str, Any]:
    return {name: value for name, value in data.items() if name not in defaults or value != defaults[name]}


class AssumptionSection(Section):
    """Something that was assumed.

    Attributes:
        what: What was assumed.
        why: Why, or how sure it is.
    """

    what: str
    why: str


class ClusterSection(Section):
    """The whole cluster, used or not. Nodes are sorted by name, so that the order of a file leaves no trace.

    Attributes:
        name: For print.
        fingerprint: Independent of the order of the nodes.
        gpus: Each part once, sorted by name.
        nodes: Sorted by name.
        default_bandwidth_bytes_per_s: Between two nodes without a link of their own; their NICs still limit
            it.
        default_latency_s: Likewise.
        links: Exceptions, in the order of the file.
        assumptions: What the file marks as assumed.
    """

    name: str
    fingerprint: str
    gpus: list[GpuSection]
    nodes: list[NodeSection]
    default_bandwidth_bytes_per_s: Rate
    default_latency_s: Seconds
    links: list[LinkSection] = Field(default_factory=list)
    assumptions: list[AssumptionSection] = Field(default_factory=list)

    @staticmethod
    def of(cluster: Cluster) -> ClusterSection:
        """Returns the section of a cluster.

        Raises:
            InputError: Two different parts of the cluster have one name.
        """
        data = cluster_to_dict(cluster)
        data["nodes"].sort(key=lambda node: node["name"])
        data["assumptions"].sort(key=lambda assumption: (assumption["what"], assumption["why"]))
        return ClusterSection.model_validate(data | {"fingerprint": fingerprint(cluster)})

    def to_cluster(self) -> Cluster:
        """Returns the cluster, nodes sorted by name.

        Raises:
            UnknownNameError: A node has a GPU that ``gpus`` does not define.
        """
        return cluster_from_dict(self.model_dump(mode="json", exclude={"fingerprint"}))


class IslandSection(Section):
    """A homogeneous set of whole nodes; stages never leave their island.

    Attributes:
        name: Unique.
        nodes: Names, sorted.
        gpu: The slowest, smallest part of the island: what the plan counts on.
        gpus_per_node: Equal for all nodes.
        intra_bandwidth_bytes_per_s, intra_latency_s: Within a node, the worst of the island.
        inter_bandwidth_bytes_per_s, inter_latency_s: Between nodes of the island, the worst.
        nic_bandwidth_bytes_per_s: NICs of a host together, the worst.
        reasons: Why the island ends where it ends.
    """

    name: str
    nodes: list[str]
    gpu: str
    gpus_per_node: Positive
    intra_bandwidth_bytes_per_s: Rate
    intra_latency_s: Seconds
    inter_bandwidth_bytes_per_s: Rate
    inter_latency_s: Seconds
    nic_bandwidth_bytes_per_s: Rate
    reasons: list[str] = Field(default_factory=list)

    @staticmethod
    def of(island: Island) -> IslandSection:
        """Returns the section of an island."""
        return IslandSection(
            name=island.name,
            nodes=[node.name for node in island.nodes],
            gpu=island.gpu.name,
            gpus_per_node=island.gpus_per_node,
            intra_bandwidth_bytes_per_s=island.intra_bandwidth_bytes_per_s,
            intra_latency_s=island.intra_latency_s,
            inter_bandwidth_bytes_per_s=island.inter_bandwidth_bytes_per_s,
            inter_latency_s=island.inter_latency_s,
            nic_bandwidth_bytes_per_s=island.nic_bandwidth_bytes_per_s,
            reasons=list(island.reasons),
        )

    def to_island(self, cluster: Cluster) -> Island:
        """Returns the island, with its nodes looked up in the cluster.

        Raises:
            KeyError: A node is not in the cluster, or no node of the cluster has the island's GPU;
                :func:`~tangram.plan.check.check_plan` reports both.
        """
        parts = {node.gpu.name: node.gpu for node in cluster.nodes}
        by_name = {node.name: node for node in cluster.nodes}
        return Island(
            name=self.name,
            nodes=tuple(by_name[name] for name in self.nodes),
            gpu=parts[self.gpu],
            gpus_per_node=self.gpus_per_node,
            intra_bandwidth_bytes_per_s=self.intra_bandwidth_bytes_per_s,
            intra_latency_s=self.intra_latency_s,
            inter_bandwidth_bytes_per_s=self.inter_bandwidth_bytes_per_s,
            inter_latency_s=self.inter_latency_s,
            nic_bandwidth_bytes_per_s=self.nic_bandwidth_bytes_per_s,
            reasons=tuple(self.reasons),
        )
