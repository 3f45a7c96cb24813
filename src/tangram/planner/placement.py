"""Which GPUs a stage gets: exact slots for the counts that the search decided.

Whole-node stages take nodes in name order, then stages smaller than a node are put in, largest first;
among equals in pipeline order, so that neighbours in the pipeline share a node where they can. Sizes are
divisors of the node size or whole nodes, so this always packs (planner prototype, pitfall 7).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tangram.cluster.spec import Node, Portion
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
    free: dict[str, list[int]] = {}
    placed: dict[int, Placement] = {}
    order = sorted(range(len(stages)), key=lambda i: (-stages[i].num_gpus, i))
    for idx in order:
        portion = stages[idx]
        island = portion.island
        for node in island.nodes:
            free.setdefault(node.name, list(range(island.gpus_per_node)))
        if portion.gpus_per_node == island.gpus_per_node:
            whole = [n for n in island.nodes if len(free[n.name]) == island.gpus_per_node]
            nodes = whole[: portion.num_nodes]
        else:
            room = [n for n in island.nodes if len(free[n.name]) >= portion.gpus_per_node]
            nodes = sorted(room, key=lambda n: (len(free[n.name]), n.name))[:1]
        if len(nodes) < portion.num_nodes:
            raise InternalError(f"stage {idx} with {portion.num_gpus} GPUs of {island.name} cannot be placed")
        slots: list[Slot] = []
        for node in nodes:
            taken, free[node.name] = (
                free[node.name][: portion.gpus_per_node],
                free[node.name][portion.gpus_per_node :],
            )
            slots += [Slot(node, g) for g in taken]
        placed[idx] = Placement(portion, tuple(slots))
    return tuple(placed[idx] for idx in range(len(stages)))
