"""Which GPUs a stage gets: exact slots for the counts that the search decided.

Whole-node stages take nodes in name order, then stages smaller than a node are put in, largest first, each
into the fullest node that has room; among equals in pipeline order, so that neighbours in the pipeline
share a node where they can. Where that greedy order does not pack (3, 3, 4, 4, 4 and 6 on two nodes of
12), all ways are tried. Sizes are divisors of the node size or whole nodes; with them, counts that fit do
pack (planner prototype, pitfall 7; tests/planner/test_placement.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tangram.cluster.spec import Island, Node, Portion
from tangram.errors import InternalError


@dataclass(frozen=True, slots=True)
class Slot:
    """One GPU: a node and the index on it."""

    node: Node
    gpu_idx: int


@dataclass(frozen=True, slots=True)
class Placement:
    """The GPUs of one stage, rank order."""

    portion: Portion
    slots: tuple[Slot, ...]

    @property
    def nodes(self) -> tuple[Node, ...]:
        """Nodes touched, in rank order."""
        seen: dict[str, Node] = {}
        for slot in self.slots:
            seen.setdefault(slot.node.name, slot.node)
        return tuple(seen.values())


def place(stages: Sequence[Portion]) -> tuple[Placement, ...]:
    """Returns the placement of each stage, in the order of the stages.

    Raises:
        InternalError: The portions do not pack, which their sizes rule out.
    """
    islands = {portion.island.name: portion.island for portion in stages}
    placed: dict[int, Placement] = {}
    for name, island in islands.items():
        own = [idx for idx, portion in enumerate(stages) if portion.island.name == name]
        own.sort(key=lambda idx: (-stages[idx].num_gpus, idx))
        nodes_of = _pack(island, [stages[idx] for idx in own])
        free = {node.name: 0 for node in island.nodes}
        for idx, nodes in zip(own, nodes_of, strict=True):
            slots = []
            for node in nodes:
                first = free[node.name]
                free[node.name] = first + stages[idx].gpus_per_node
                slots += [Slot(node, gpu) for gpu in range(first, free[node.name])]
            placed[idx] = Placement(stages[idx], tuple(slots))
    return tuple(placed[idx] for idx in range(len(stages)))


def _pack(island: Island, portions: Sequence[Portion]) -> list[tuple[Node, ...]]:
    """Returns the nodes of each portion, largest portions first in the sequence."""
    size = island.gpus_per_node
    whole = [p for p in portions if p.gpus_per_node == size]
    parts = [p.gpus_per_node for p in portions if p.gpus_per_node < size]
    taken = sum(p.num_nodes for p in whole)
    homes = _fill([size] * max(0, island.num_nodes - taken), parts)
    if taken > island.num_nodes or homes is None:
        raise InternalError(f"stages with {sum(p.num_gpus for p in portions)} GPUs do not fit {island.name}")
    nodes: list[tuple[Node, ...]] = []
    at = 0
    for portion in whole:
        nodes.append(island.nodes[at : at + portion.num_nodes])
        at += portion.num_nodes
    return nodes + [(island.nodes[taken + home],) for home in homes]


def _fill(room: list[int], parts: Sequence[int]) -> list[int] | None:
    """Returns the index of a node for each part; the fullest node with room first, others if that fails."""
    if not parts:
        return []
    tried: set[int] = set()
    for home in sorted(range(len(room)), key=lambda n: (room[n], n)):
        left = room[home]
        if left < parts[0] or left in tried:
            continue
        tried.add(left)  # nodes with equal room are alike
        room[home] -= parts[0]
        rest = _fill(room, parts[1:])
        if rest is not None:
            return [home, *rest]
        room[home] = left
    return None
