"""Logical meshes: the GPUs of a portion as a grid of two axes, and what a collective on an axis costs.

Ranks lie on the mesh in row-major order, as those of a stage do (:mod:`tangram.cost.links`): the ranks of the
second axis are neighbours, those of the first lie one row apart and so are the ones that cross nodes. Every
factoring of the number of GPUs is a mesh, in both orders; one axis alone is the mesh of all GPUs in a row.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tangram.cluster.spec import Portion
from tangram.cost.constants import Constants, link_kind
from tangram.cost.links import TP, Groups, LinkRates
from tangram.cost.types import FloatArray, IntArray
from tangram.job import divisors

NUM_GROUPS = 6  # Rows of Groups; all are filled alike, and those of TP and EP read.

WHOLE = 2
"""Number of the group that both axes make together, beside the axes 0 and 1."""


@dataclass(frozen=True, slots=True)
class LogicalMesh:
    """A grid of GPUs.

    Attributes:
        shape: Rows and columns; the second is 1 where there is one axis only.
        latency_s: Of a collective on axis 0, on axis 1, and on both together; 0 for one rank.
        ring_s_per_byte: Of an all-gather or a reduce-scatter, per byte of the whole tensor.
        exchange_s_per_byte: Of an all-to-all, per byte that a rank holds.
    """

    shape: tuple[int, int]
    latency_s: tuple[float, float, float]
    ring_s_per_byte: tuple[float, float, float]
    exchange_s_per_byte: tuple[float, float, float]

    def sweep_s(self, group: int, num_bytes: float) -> float:
        """Returns the time of an all-gather that ends with so many bytes, or of a reduce-scatter of them."""
        return self.latency_s[group] + num_bytes * self.ring_s_per_byte[group]

    def exchange_s(self, group: int, num_bytes: float) -> float:
        """Returns the time of an all-to-all in which each rank holds so many bytes."""
        return self.latency_s[group] + num_bytes * self.exchange_s_per_byte[group]


def logical_meshes(
    portion: Portion, constants: Constants, *, near_exchanges: bool = False
) -> list[LogicalMesh]:
    """Returns the meshes of a portion: all GPUs in a row, then the factorings by ascending first axis.

    Args:
        portion: The GPUs.
        constants: Of the cost model.
        near_exchanges: Whether all-to-alls of the first axis are between neighbours, as those of experts are
            wherever an engine has fewer experts' ranks than GPUs.
    """
    num = portion.num_gpus
    shapes = [(num, 1)] + [(n, num // n) for n in divisors(num) if 1 < n < num]
    return [_mesh(portion, shape, constants, near_exchanges) for shape in shapes]


def _mesh(
    portion: Portion, shape: tuple[int, int], constants: Constants, near_exchanges: bool
) -> LogicalMesh:
    size = np.array([shape[0], shape[1], portion.num_gpus])
    stride = np.array([shape[1], 1, 1])
    groups = _groups(portion, size, stride)
    rates = LinkRates.of(groups, constants.stack, constants.cluster)
    near = rates
    if near_exchanges:
        near = LinkRates.of(_groups(portion, size, np.ones_like(size)), constants.stack, constants.cluster)
    return LogicalMesh(
        shape,
        _three(rates.latency_s[TP]),
        _three(rates.seconds_per_byte[TP] * groups.remote_frac[TP]),
        _three(near.all_to_all_s_per_byte),
    )


def _groups(portion: Portion, size: IntArray, stride: IntArray) -> Groups:
    """Places groups as :meth:`tangram.cost.links.Groups.of` does."""
    island = portion.island
    in_node = np.gcd(size, np.maximum(portion.gpus_per_node // stride, 1))
    rows = [np.tile(a.astype(np.float64), (NUM_GROUPS, 1)) for a in (size, in_node, size // in_node)]
    return Groups(
        size=rows[0],
        in_node=rows[1],
        nodes=rows[2],
        per_node=float(portion.gpus_per_node),
        intra_bytes_per_s=island.intra_bandwidth_bytes_per_s,
        egress_bytes_per_s=min(island.nic_bandwidth_bytes_per_s, island.inter_bandwidth_bytes_per_s),
        intra_latency_s=island.intra_latency_s,
        inter_latency_s=island.inter_latency_s,
        intra_kind=link_kind(island.nodes[0].intra_kind),
    )


def _three(values: FloatArray) -> tuple[float, float, float]:
    first, second, both = np.broadcast_to(values, (3,)).tolist()
    return first, second, both
