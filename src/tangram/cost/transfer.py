"""Transfers between stages: what crosses a cut, and how long a link is busy with it.

A micro-batch crosses a cut once: each rank of one side sends each rank of the other the slice that both hold
(batch over dp, tokens over cp and tp), so unequal degrees cost no extra bytes and all links between the two
sides work at once. All NICs of a host count, however few of its GPUs send. Neighbours that a bridge happens
to join are taken to use the link between any two GPUs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product

from tangram.basis import SHIPPED_BASIS, CostBasis
from tangram.cluster.spec import Cluster, Node, Portion
from tangram.cost.constants import ClusterConstants, cluster_constants
from tangram.job import Job
from tangram.model.atoms import Atom, Part
from tangram.model.spec import FeedForwardSpec, ModelSpec

Side = Portion | Sequence[Node]


@dataclass(frozen=True, slots=True)
class Transfer:
    """One tensor on its way: it arrives ``latency_s + occupancy_s`` after it was sent.

    Attributes:
        latency_s: Of the link; other tensors may follow meanwhile.
        occupancy_s: For which the link is busy: bytes over bandwidth.
    """

    latency_s: float
    occupancy_s: float

    @property
    def total_s(self) -> float:
        """From the first byte sent to the last byte received."""
        return self.latency_s + self.occupancy_s


def boundary_bytes(model: ModelSpec, atom: Atom, micro_batch: int, job: Job) -> float:
    """Returns the bytes of a whole micro-batch that cross the cut behind an atom; gradients are as many.

    Between blocks that is the residual stream. Inside a block the tensors between its parts cross too:
    queries, keys and values; the attention output; the up-projection.

    Args:
        model: The whole model.
        atom: The atom before the cut. Behind the head nothing crosses.
        micro_batch: Global micro-batch, in samples.
        job: Sequence length and precision.
    """
    last = atom.parts[-1]
    if last.part is Part.HEAD:
        return 0.0
    elements = model.hidden_size
    if last.layer_idx is not None:
        layer = model.layers[last.layer_idx]
        attention, block = layer.attention, layer.feed_forward
        if last.part is Part.QKV:
            elements += attention.query_width + attention.expanded_kv_width
        elif last.part is Part.CORE:
            elements += attention.value_width
        elif last.part is Part.UP and isinstance(block, FeedForwardSpec):
            elements += block.num_up_matrices * block.intermediate_size
    return float(micro_batch * job.seq_len * elements * job.precision.element_bytes)


def transfer(
    cluster: Cluster,
    a: Side,
    b: Side,
    num_bytes: float,
    *,
    lanes: int = 1,
    basis: CostBasis = SHIPPED_BASIS,
) -> Transfer:
    """Returns how long it takes to send ``num_bytes`` from one stage to the next.

    Across nodes the rate is the smallest of what a's hosts send, what b's hosts receive, and the slowest link
    between them times the smaller number of nodes; a line that links share counts once. On one node (or
    between the parts of one mixed host) it is the link inside it, times the pairs of GPUs that use it at
    once; in a domain the same between each pair of nodes.

    Args:
        cluster: The network.
        a, b: The nodes of either stage. A portion stands for the first nodes of its island; two portions that
            fit one node of their island together are taken to share it.
        num_bytes: Of one micro-batch (:func:`boundary_bytes`).
        lanes: Pairs of GPUs that talk at once when both stages are on one node; derived where a and b are
            portions.
        basis: Whose constants count; what Tangram ships where nobody says.
    """
    constants = cluster_constants(basis.cluster, basis.overrides)
    senders, receivers = _nodes(a), _nodes(b)
    if isinstance(a, Portion) and isinstance(b, Portion):
        lanes = min(a.gpus_per_node, b.gpus_per_node)
        if a.island.name == b.island.name and not _share_node(a, b):
            senders, receivers = _apart(a, b)
    if all(x.host == y.host for x, y in product(senders, receivers)):
        slow = min((*senders, *receivers), key=lambda node: node.intra_bandwidth_bytes_per_s)
        rate = slow.intra_bandwidth_bytes_per_s * constants.intra_efficiency(slow.intra_kind) * max(lanes, 1)
        return Transfer(max(node.intra_latency_s for node in (*senders, *receivers)), num_bytes / rate)
    if len({node.reach for node in (*senders, *receivers)}) == 1:
        return _within_domain(senders, receivers, lanes, num_bytes, constants)
    return _between(cluster, senders, receivers, num_bytes, constants)


def tied_sync_s(
    cluster: Cluster,
    a: Side,
    b: Side,
    num_bytes: float,
    *,
    lanes: int = 1,
    basis: CostBasis = SHIPPED_BASIS,
) -> float:
    """Returns the time of adding up, once per step, the gradients of a tied embedding on two stages.

    Args:
        cluster: The network.
        a, b: The nodes of the first and the last stage.
        num_bytes: Gradient of the whole matrix. Each side sends half of the sums and receives half: as many
            bytes each way, after the reduction over either side's replicas has sharded it.
        lanes, basis: As for :func:`transfer`.
    """
    half = transfer(cluster, a, b, num_bytes / 2, lanes=lanes, basis=basis)
    return 2 * half.total_s


def _nodes(side: Side) -> tuple[Node, ...]:
    return side.island.nodes[: side.num_nodes] if isinstance(side, Portion) else tuple(side)


def _share_node(a: Portion, b: Portion) -> bool:
    """Whether two portions of one island are on one node: they fit it together, or there is no other."""
    if a.island.num_nodes == 1:
        return True
    fits = a.gpus_per_node + b.gpus_per_node <= a.island.gpus_per_node
    return fits and a.num_nodes == b.num_nodes == 1


def _apart(a: Portion, b: Portion) -> tuple[tuple[Node, ...], tuple[Node, ...]]:
    """Different nodes of one island: its first ones and its last ones."""
    nodes = a.island.nodes
    if a.num_nodes + b.num_nodes > len(nodes):
        # More than the island holds: the two can never run side by side, but a table may still ask.
        return nodes[:1], nodes[-1:]
    return nodes[: a.num_nodes], nodes[len(nodes) - b.num_nodes :]


def _within_domain(
    senders: Sequence[Node],
    receivers: Sequence[Node],
    lanes: int,
    num_bytes: float,
    constants: ClusterConstants,
) -> Transfer:
    """Over the link that spans the nodes of a domain."""
    nodes = (*senders, *receivers)
    slow = min(nodes, key=lambda node: node.intra_bandwidth_bytes_per_s)
    pairs = max(lanes, 1) * min(len(senders), len(receivers))
    rate = slow.intra_bandwidth_bytes_per_s * constants.intra_efficiency(slow.intra_kind) * pairs
    return Transfer(max(node.intra_latency_s for node in nodes), num_bytes / rate)


def _between(
    cluster: Cluster,
    senders: Sequence[Node],
    receivers: Sequence[Node],
    num_bytes: float,
    constants: ClusterConstants,
) -> Transfer:
    shared = {n.host for n in senders} & {n.host for n in receivers}
    left, right = (_representatives(cluster, nodes, shared) for nodes in (senders, receivers))
    pairs = [(x, y) for x, y in product(left, right) if x.reach != y.reach and x.host != y.host]
    link = min(cluster.bandwidth_bytes_per_s(x, y) for x, y in pairs)
    latency_s = max(cluster.latency_s(x, y) for x, y in pairs)
    links = link * min(len({n.host for n in senders}), len({n.host for n in receivers}))
    lines = [line[0].bandwidth_bytes_per_s for x, y in pairs if (line := cluster.line(x, y)) is not None]
    stated = min(_nic_bytes_per_s(senders), _nic_bytes_per_s(receivers), links, *lines)
    return Transfer(latency_s, num_bytes / (stated * constants.nic_efficiency))


def _nic_bytes_per_s(nodes: Sequence[Node]) -> float:
    """Of all hosts together; nodes of one host share its NICs."""
    by_host = {node.host: node.nic_bandwidth_bytes_per_s for node in nodes}
    return sum(by_host.values())


def _representatives(cluster: Cluster, nodes: Sequence[Node], shared: set[str]) -> list[Node]:
    """One node for all that look alike to the network, so that large stages stay cheap.

    Links name nodes or groups. Nodes on hosts that both sides share stand for themselves.
    """
    named = {name for link in cluster.links for name in (link.a, link.b)}
    alike: dict[tuple[object, ...], Node] = {}
    for node in nodes:
        label = node.name if node.name in named or node.host in shared else ""
        alike.setdefault((label, node.group, node.nic_bandwidth_bytes_per_s, node.domain), node)
    return list(alike.values())
