"""Process groups of a stage, and the time of their collectives.

Ranks lie on nodes in row-major order of the mesh (dp, cp, tp), tp innermost; experts re-slice the same ranks
as (expert_dp, ep, expert_tp). A group of ``size`` ranks, ``stride`` apart, has ``gcd(size, GPUs per node /
stride)`` ranks on each node it touches. Where groups lie across node borders unevenly (12 ranks on nodes of
8) this counts the worst group.

A collective costs latency + bytes / bandwidth. Inside a node the bandwidth is the link's; across nodes it is
the smaller of the link's and the group's share of the node's NICs: all groups of a node that cross nodes do
so at once and share them. Latency grows with the logarithm of the ranks inside a node, and of the nodes
(NCCL's trees).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tangram.cluster.spec import Portion
from tangram.cost.constants import cluster_constants, stack_constants
from tangram.cost.types import FloatArray, IntArray, StageConfigs

TP, CP, DATA, EP, EXPERT_TP, EXPERT_DATA = range(6)
"""Rows of :class:`Links`. DATA is dp and cp together: what gradients are reduced over."""


@dataclass(frozen=True, slots=True)
class Links:
    """The groups of a stage under every configuration; arrays of shape ``(6, num_configs)``.

    Attributes:
        size: Ranks of a group.
        remote_frac: Share of the bytes that come from other ranks, ``(size - 1) / size``.
        cross_node_frac: Share that comes from other nodes.
        seconds_per_byte: Of a ring collective, per byte of ``remote_frac``.
        latency_s: Of one collective; 0 for a group of one.
        intra_seconds_per_byte: Inside a node; a scalar.
        cross_seconds_per_byte: Per GPU, when all GPUs of a node talk to other nodes at once; a scalar.
    """

    size: FloatArray
    remote_frac: FloatArray
    cross_node_frac: FloatArray
    seconds_per_byte: FloatArray
    latency_s: FloatArray
    intra_seconds_per_byte: float
    cross_seconds_per_byte: float

    @staticmethod
    def of(portion: Portion, configs: StageConfigs) -> Links:
        """Places the groups of every configuration on the portion."""
        island, constants = portion.island, cluster_constants()
        per_node = portion.gpus_per_node
        size, stride = _groups(configs)
        in_node = np.gcd(size, np.maximum(per_node // stride, 1))
        nodes = size // in_node
        intra = 1 / (island.intra_bandwidth_bytes_per_s * constants.intra_efficiency(_intra_kind(portion)))
        egress = min(island.nic_bandwidth_bytes_per_s, island.inter_bandwidth_bytes_per_s)
        cross = per_node / (egress * constants.nic_efficiency)
        # A node holds per_node / in_node groups of each kind: each gets that share of the NICs.
        seconds_per_byte = np.where(nodes > 1, np.maximum(cross / in_node, intra), intra)
        hops_s = (
            _log2_ceil(in_node) * island.intra_latency_s
            + _log2_ceil(nodes) * island.inter_latency_s
            + stack_constants().collective_launch_s
        )
        return Links(
            size=size.astype(np.float64),
            remote_frac=(size - 1) / size,
            cross_node_frac=(size - in_node) / size,
            seconds_per_byte=seconds_per_byte,
            latency_s=np.where(size > 1, hops_s, 0.0),
            intra_seconds_per_byte=intra,
            cross_seconds_per_byte=cross,
        )

    def gather_s(self, group: int, total_bytes: FloatArray) -> FloatArray:
        """Time of an all-gather to ``total_bytes`` on every rank, or of a reduce-scatter of as much (ring).

        Args:
            group: A row, for example ``TP``.
            total_bytes: Shape ``(num_configs,)``.
        """
        volume = self.remote_frac[group] * total_bytes
        seconds: FloatArray = self.latency_s[group] + volume * self.seconds_per_byte[group]
        return seconds

    def all_to_all_s(self, group: int, rank_bytes: FloatArray) -> FloatArray:
        """Time of an all-to-all: a rank sends ``rank_bytes``, spread evenly over the group, itself included.

        Bytes inside the node and bytes across nodes move at the same time; the slower part counts.
        """
        cross = self.cross_node_frac[group]
        inside_s = (self.remote_frac[group] - cross) * self.intra_seconds_per_byte
        across_s = cross * self.cross_seconds_per_byte
        efficiency = cluster_constants().all_to_all_efficiency
        per_byte = np.maximum(inside_s, across_s) / efficiency
        seconds: FloatArray = self.latency_s[group] + rank_bytes * per_byte
        return seconds


def _groups(configs: StageConfigs) -> tuple[IntArray, IntArray]:
    """Size and stride of the six groups; shapes ``(6, num_configs)``."""
    dp, cp, tp, ep, expert_tp = configs.dp, configs.cp, configs.tp, configs.ep, configs.expert_tp
    expert_dp = dp * cp * tp // (ep * expert_tp)
    one = np.ones_like(tp)
    size = np.stack([tp, cp, dp * cp, ep, expert_tp, expert_dp])
    stride = np.stack([one, tp, tp, expert_tp, one, ep * expert_tp])
    return size, stride


def _intra_kind(portion: Portion) -> str:
    return portion.island.nodes[0].intra_kind


def _log2_ceil(count: IntArray) -> IntArray:
    """The smallest k with 2**k >= count, exactly: the bits of ``count - 1``."""
    exponent: IntArray = np.frexp((count - 1).astype(np.float64))[1].astype(np.int64)
    return exponent
