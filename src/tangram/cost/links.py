"""Process groups of a stage, and the rates of their collectives.

Ranks lie on nodes in row-major order of the mesh (dp, cp, tp), tp innermost; experts re-slice the same ranks
as (expert_dp, ep, expert_tp). A group of ``size`` ranks, ``stride`` apart, has ``gcd(size, GPUs per node /
stride)`` ranks on each node it touches. Where groups lie across node borders unevenly (12 ranks on nodes of
8) this counts the worst group.

A collective costs latency + bytes / bandwidth. Inside a node the bandwidth is the link's; across nodes it is
the smaller of the link's and the group's share of the node's NICs: all groups of a node that cross nodes do
so at once and share them. Latency grows with the ranks inside a node, and with the nodes: all-gathers and
reduce-scatters go round a ring (NCCL has trees for all-reduces only). On 256 and 512 GPUs this is what made
fully sharded runs slower than bandwidth says.
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

    @staticmethod
    def of(portion: Portion, configs: StageConfigs) -> Groups:
        """Places the groups of every configuration on the portion."""
        island = portion.island
        size, stride = _groups(configs)
        in_node = np.gcd(size, np.maximum(portion.gpus_per_node // stride, 1))
        return Groups(
            size=size.astype(np.float64),
            in_node=in_node.astype(np.float64),
            nodes=(size // in_node).astype(np.float64),
            per_node=float(portion.gpus_per_node),
            intra_bytes_per_s=island.intra_bandwidth_bytes_per_s,
            egress_bytes_per_s=min(island.nic_bandwidth_bytes_per_s, island.inter_bandwidth_bytes_per_s),
            intra_latency_s=island.intra_latency_s,
            inter_latency_s=island.inter_latency_s,
            intra_kind=link_kind(island.nodes[0].intra_kind),
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
        intra = 1 / (groups.intra_bytes_per_s * np.choose(groups.intra_kind, shares))
        cross = groups.per_node / (groups.egress_bytes_per_s * cluster.nic_efficiency)
        # A node holds per_node / in_node groups of each kind: each gets that share of the NICs.
        ring = np.where(groups.nodes > 1, np.maximum(cross / groups.in_node, intra), intra)
        hops_s = (
            (groups.in_node - 1) * groups.intra_latency_s
            + (groups.nodes - 1) * groups.inter_latency_s
            + stack.collective_launch_s
        )
        inside, across = groups.remote_frac[EP] - groups.cross_node_frac[EP], groups.cross_node_frac[EP]
        return LinkRates(
            latency_s=np.where(groups.size > 1, hops_s, 0.0),
            seconds_per_byte=ring,
            all_to_all_s_per_byte=np.maximum(inside * intra, across * cross) / cluster.all_to_all_efficiency,
        )


def _groups(configs: StageConfigs) -> tuple[IntArray, IntArray]:
    """Size and stride of the six groups; shapes ``(6, num_configs)``."""
    dp, cp, tp, ep, expert_tp = configs.dp, configs.cp, configs.tp, configs.ep, configs.expert_tp
    expert_dp = dp * cp * tp // (ep * expert_tp)
    one = np.ones_like(tp)
    size = np.stack([tp, cp, dp * cp, ep, expert_tp, expert_dp])
    stride = np.stack([one, tp, tp, expert_tp, one, ep * expert_tp])
    return size, stride
