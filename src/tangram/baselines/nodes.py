"""Nodes of equal size, which planners that know no others are given: larger nodes are divided.

The paper gives Metis and Sailor its 4 + 8 + 4 GPUs as four nodes of four. A part of a node keeps the node's
host, so links between parts of one node are links inside of it, and NICs stay shared; what a planner decides
about parts is read back as GPUs of the real nodes.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import reduce
from math import gcd

from tangram.cluster.spec import Bridge, Cluster, Node, Slot


@dataclass(frozen=True, slots=True)
class NodePart:
    """Some GPUs of a node, taken as a node of its own.

    Attributes:
        part: The node that a planner sees.
        whole: The node that is there.
        first_gpu: Place of the part's first GPU in the order in which stages take them.
    """

    part: Node
    whole: Node
    first_gpu: int

    def slot(self, gpu_idx: int) -> Slot:
        """Returns a GPU of the part as one of the real node."""
        return Slot(self.whole, self.whole.gpu_order[self.first_gpu + gpu_idx])

    @property
    def slots(self) -> tuple[Slot, ...]:
        """All its GPUs, on the real node."""
        return tuple(self.slot(idx) for idx in range(self.part.num_gpus))


def equal_parts(cluster: Cluster) -> tuple[NodePart, ...]:
    """Divides nodes into parts of one size, the largest that divides them all.

    Returns:
        The parts, by the names of their nodes, then by GPU index; a node of that size is its only part and
        keeps its name.
    """
    size = reduce(gcd, (node.num_gpus for node in cluster.nodes))
    parts = []
    for node in sorted(cluster.nodes, key=lambda node: node.name):
        for first in range(0, node.num_gpus, size):
            name = node.name if node.num_gpus == size else f"{node.name}/{first // size}"
            part = replace(node, name=name, num_gpus=size, bridge=_bridge_of_part(node.bridge, size))
            parts.append(NodePart(part, node, first))
    return tuple(parts)


def _bridge_of_part(bridge: Bridge | None, size: int) -> Bridge | None:
    """A bridge over the GPUs of a part, where parts and bridges divide each other."""
    if bridge is None or gcd(bridge.size, size) != min(bridge.size, size):
        return None
    width = min(bridge.size, size)
    return replace(bridge, groups=tuple(tuple(range(at, at + width)) for at in range(0, size, width)))


def divided(cluster: Cluster) -> Cluster:
    """Returns the cluster as a planner sees it that knows nodes of equal size only."""
    return replace(cluster, nodes=tuple(part.part for part in equal_parts(cluster)))
