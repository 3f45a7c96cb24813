"""Process groups of a stage, and the rates of their collectives.

Ranks lie on nodes in row-major order of the mesh (dp, cp, tp), tp innermost; experts re-slice the same ranks
as (expert_dp, ep, expert_tp). A group of ``size`` ranks, ``stride`` apart, has ``gcd(size, GPUs per node /
stride)`` ranks on each node it touches. Where groups lie across node borders unevenly (12 ranks on nodes of
8) this counts the worst group.

A collective costs latency + bytes / bandwidth. Inside a node the bandwidth is the link's; across nodes it is
the smaller of the link's and the group's share of the node's NICs: all groups of a node that cross nodes do
so at once and share them. The parts of a mixed host share its NICs too: their collectives run at the same
time, so each counts on its share. Latency grows with the ranks inside a node, and with the nodes: all-gathers
and reduce-scatters go round a ring (NCCL has trees for all-reduces only). On 256 and 512 GPUs this is what
made fully sharded runs slower than bandwidth says.

Where bridges join the GPUs of a node in pairs (or other groups), a group of ranks that lies within one has
the bridge, every other one the link between any two GPUs, which is the slowest of its ring. The link inside a
domain spans its nodes: there all ranks of a stage are on one "node".
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tangram.cluster.spec import Portion
from tangram.cost.constants import ClusterConstants, StackConstants, link_kind
from tangram.cost.types import FloatArray, IntArray, Number, StageConfigs

TP, CP, DATA, EP, EXPERT_TP, EXPERT_DATA = range(6)
"""Rows of :class:`Groups` and :class:`LinkRates`. DATA is dp and cp together: what gradients are reduced
over."""


@dataclass(frozen=True, slots=True)
class Groups:
    """How the groups of a stage lie under every configuration, and what the links between them are stated to
    carry.

    Attributes:
        size: Ranks of a group; arrays of shape ``(6, num_configs)``, as the next ones.
        in_node: Of these on one node.
        nodes: Nodes touched.
        per_node: GPUs of the stage on one node; a scalar, as the next ones, or shape ``(num_configs,)``.
        intra_bytes_per_s: Between two GPUs of the node.
        egress_bytes_per_s: Of one node.
        intra_latency_s, inter_latency_s: Of one message.
        intra_kind: Of the link in the node, as :func:`tangram.cost.constants.link_kind` numbers it.
        in_bridge: Whether all ranks of a group are joined by one bridge; 0 or 1, also one for all groups.
        bridge_bytes_per_s, bridge_latency_s, bridge_kind: Of the bridge; they mean nothing without one.
    """

    size: FloatArray
    in_node: FloatArray
    nodes: FloatArray
    per_node: Number
    intra_bytes_per_s: Number
    egress_bytes_per_s: Number
    intra_latency_s: Number
    inter_latency_s: Number
    intra_kind: int | IntArray
    in_bridge: Number = 0.0
    bridge_bytes_per_s: Number = 1.0
    bridge_latency_s: Number = 0.0
    bridge_kind: int | IntArray = 0

    @staticmethod
    def of(portion: Portion, configs: StageConfigs) -> Groups:
        """Places the groups of every configuration on the portion."""
        island = portion.island
        size, stride = _groups(configs)
        in_node = np.gcd(size, np.maximum(portion.joined_gpus // stride, 1))
        nic_bytes_per_s = island.nic_bandwidth_bytes_per_s * island.nic_share_frac
        bridge, kind = island.bridge, island.nodes[0].intra_kind
        # Stages start at a multiple of every power of two that divides them, so ranks that follow each other
        # fill bridges one by one.
        in_bridge = (bridge.size if bridge else 1) % (size * stride) == 0
        return Groups(
            size=size.astype(np.float64),
            in_node=in_node.astype(np.float64),
            nodes=(size // in_node).astype(np.float64),
            per_node=float(portion.joined_gpus),
            intra_bytes_per_s=island.intra_bandwidth_bytes_per_s,
            egress_bytes_per_s=min(nic_bytes_per_s, island.inter_bandwidth_bytes_per_s),
            intra_latency_s=island.intra_latency_s,
            inter_latency_s=island.inter_latency_s,
            intra_kind=link_kind(kind),
            in_bridge=in_bridge.astype(np.float64),
            bridge_bytes_per_s=bridge.bandwidth_bytes_per_s if bridge else island.intra_bandwidth_bytes_per_s,
            bridge_latency_s=bridge.latency_s if bridge else island.intra_latency_s,
            bridge_kind=link_kind(bridge.kind if bridge else kind),
        )

    @property
    def remote_frac(self) -> FloatArray:
        """Share of a collective's bytes that come from other ranks, ``(size - 1) / size``."""
        share: FloatArray = (self.size - 1) / self.size
        return share

    @property
    def cross_node_frac(self) -> FloatArray:
        """Share that comes from other nodes."""
        share: FloatArray = (self.size - self.in_node) / self.size
        return share


@dataclass(frozen=True, slots=True)
class LinkRates:
    """What a collective costs; arrays of shape ``(6, num_configs)`` unless stated.

    Attributes:
        latency_s: Of one collective; 0 for a group of one.
        seconds_per_byte: Of a ring collective, per byte that a rank gets from others.
        all_to_all_s_per_byte: Of an all-to-all of the EP group, per byte that a rank sends, itself included;
            shape ``(num_configs,)``.
    """

    latency_s: FloatArray
    seconds_per_byte: FloatArray
    all_to_all_s_per_byte: FloatArray

    @staticmethod
    def of(groups: Groups, stack: StackConstants, cluster: ClusterConstants) -> LinkRates:
        """Applies the constants of the stack and of the cluster.

        In an all-to-all bytes inside the node and bytes across nodes move at the same time; the slower part
        counts.
        """
        shares = (
            cluster.nvlink_efficiency,
            cluster.xgmi_efficiency,
            cluster.pcie_efficiency,
            cluster.other_efficiency,
        )
        inside = 1 / (groups.intra_bytes_per_s * np.choose(groups.intra_kind, shares))
        bridged = 1 / (groups.bridge_bytes_per_s * np.choose(groups.bridge_kind, shares))
        in_bridge = np.broadcast_to(np.asarray(groups.in_bridge) > 0, groups.size.shape)
        intra = np.where(in_bridge, bridged, inside)
        message_s = np.where(in_bridge, groups.bridge_latency_s, groups.intra_latency_s)
        cross = groups.per_node / (groups.egress_bytes_per_s * cluster.nic_efficiency)
        # A node holds per_node / in_node groups of each kind: each gets that share of the NICs.
        ring = np.where(groups.nodes > 1, np.maximum(cross / groups.in_node, intra), intra)
        hops_s = (
            (groups.in_node - 1) * message_s
            + (groups.nodes - 1) * groups.inter_latency_s
            + stack.collective_launch_s
        )
        near, far = groups.remote_frac[EP] - groups.cross_node_frac[EP], groups.cross_node_frac[EP]
        return LinkRates(
            latency_s=np.where(groups.size > 1, hops_s, 0.0),
            seconds_per_byte=ring,
            all_to_all_s_per_byte=np.maximum(near * intra[EP], far * cross) / cluster.all_to_all_efficiency,
        )


def _groups(configs: StageConfigs) -> tuple[IntArray, IntArray]:
    """Size and stride of the six groups; shapes ``(6, num_configs)``."""
    dp, cp, tp, ep, expert_tp = configs.dp, configs.cp, configs.tp, configs.ep, configs.expert_tp
    expert_dp = dp * cp * tp // (ep * expert_tp)
    one = np.ones_like(tp)
    size = np.stack([tp, cp, dp * cp, ep, expert_tp, expert_dp])
    stride = np.stack([one, tp, tp, expert_tp, one, ep * expert_tp])
    return size, stride
