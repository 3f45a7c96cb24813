"""Which GPUs a stage gets: exact slots for the counts that the search decided.

Whole-node stages take nodes in name order, then stages smaller than a node are put in, largest first, each
into the fullest node that has room; among equals in pipeline order, so that neighbours in the pipeline
share a node where they can. Where that greedy order does not pack (3, 3, 4, 4, 4 and 6 on two nodes of
12), all ways are tried. Sizes are divisors of the node size or whole nodes; with them, counts that fit do
pack (planner prototype, pitfall 7; tests/planner/test_placement.py).

That is one way among several: which neighbours share a node, and how busy the busiest NIC is, is decided by
nothing else. :mod:`tangram.planner.traffic` chooses among all ways, or improves this one where they are too
many. On the node, stages that fill whole bridges (NVLink pairs) take their GPUs first, and bridged GPUs
follow each other, so that a tensor-parallel pair never straddles two bridges.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from math import gcd

from tangram.cluster.spec import Island, Node, Portion, Slot
from tangram.errors import InternalError


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


Homes = tuple[tuple[Node, ...], ...]
"""The nodes of each stage."""


def place(stages: Sequence[Portion], homes: Homes | None = None) -> tuple[Placement, ...]:
    """Returns the placement of each stage, in the order of the stages.

    Args:
        stages: What each stage takes.
        homes: Their nodes; None packs them.

    Raises:
        InternalError: The portions do not pack, which their sizes rule out.
    """
    if homes is None:
        homes = packed_homes(stages)
    placed: dict[int, Placement] = {}
    free: dict[str, int] = {}
    for idx in _whole_bridges_first(stages):
        slots = []
        for node in homes[idx]:
            first = free.get(node.name, 0)
            free[node.name] = first + stages[idx].gpus_per_node
            slots += [Slot(node, gpu) for gpu in node.gpu_order[first : free[node.name]]]
        placed[idx] = Placement(stages[idx], tuple(slots))
    return tuple(placed[idx] for idx in range(len(stages)))


def packed_homes(stages: Sequence[Portion]) -> Homes:
    """Returns the first way to pack.

    Raises:
        InternalError: The portions do not pack, which their sizes rule out.
    """
    homes: list[tuple[Node, ...]] = [()] * len(stages)
    order = _largest_first(stages)
    for name, island in {portion.island.name: portion.island for portion in stages}.items():
        own = [idx for idx in order if stages[idx].island.name == name]
        for idx, nodes in zip(own, _pack(island, [stages[idx] for idx in own]), strict=True):
            homes[idx] = nodes
    return tuple(homes)


def every_homes(stages: Sequence[Portion], homes: Homes, limit: int) -> list[Homes] | None:
    """Lists every way to pack the stages that share nodes, the others staying where they are; None when there
    are more than ``limit``.

    Nodes that no stage is on yet count as alike.
    """
    movable = [idx for idx in _largest_first(stages) if _is_movable(stages[idx])]
    fixed = {node.name for idx, nodes in enumerate(homes) if idx not in movable for node in nodes}
    found: list[Homes] = []
    chosen: dict[int, tuple[Node, ...]] = {}
    taken: dict[str, int] = {}

    def choose(place_idx: int) -> bool:
        if place_idx == len(movable):
            found.append(_with(homes, chosen))
            return len(found) <= limit
        idx = movable[place_idx]
        size, opened = stages[idx].num_gpus, False
        for node in stages[idx].island.nodes:
            used = taken.get(node.name, 0)
            if node.name in fixed or used + size > node.num_gpus or (not used and opened):
                continue
            opened |= not used
            taken[node.name] = used + size
            chosen[idx] = (node,)
            if not choose(place_idx + 1):
                return False
            taken[node.name] = used
        return True

    return found if choose(0) else None


def improved_homes(stages: Sequence[Portion], homes: Homes, cost_ns: Callable[[Homes], int]) -> Homes:
    """Changes homes while that makes them cheaper; the first of the cheapest changes each time."""
    movable = [idx for idx, portion in enumerate(stages) if _is_movable(portion)]
    best, best_ns = homes, cost_ns(homes)
    while True:
        start = best
        for other in _changed(stages, start, movable):
            other_ns = cost_ns(other)
            if other_ns < best_ns:
                best, best_ns = other, other_ns
        if best is start:
            return best


def _largest_first(stages: Sequence[Portion]) -> list[int]:
    return sorted(range(len(stages)), key=lambda idx: (-stages[idx].num_gpus, idx))


def _whole_bridges_first(stages: Sequence[Portion]) -> list[int]:
    """Those that fill whole bridges before others, so that none of them begins inside one; then by size."""

    def filled(idx: int) -> int:
        bridge = stages[idx].island.bridge
        return gcd(stages[idx].gpus_per_node, bridge.size) if bridge else 1

    return sorted(_largest_first(stages), key=lambda idx: -filled(idx))


def _is_movable(portion: Portion) -> bool:
    """Whether a stage takes part of one of several nodes."""
    return portion.gpus_per_node < portion.island.gpus_per_node and portion.island.num_nodes > 1


def _changed(stages: Sequence[Portion], homes: Homes, movable: Sequence[int]) -> Iterator[Homes]:
    """Lists homes that differ in one stage, or in two that trade places."""
    room: dict[str, int] = {}
    for idx, nodes in enumerate(homes):
        for node in nodes:
            room[node.name] = room.get(node.name, node.num_gpus) - stages[idx].gpus_per_node
    for place_idx, idx in enumerate(movable):
        (own,), size = homes[idx], stages[idx].num_gpus
        for node in stages[idx].island.nodes:
            if node is not own and room.get(node.name, node.num_gpus) >= size:
                yield _with(homes, {idx: (node,)})
        for other in movable[place_idx + 1 :]:
            (there,), more = homes[other], stages[other].num_gpus - size
            if there is own or stages[other].island is not stages[idx].island:
                continue
            if room[own.name] >= more and room[there.name] >= -more:
                yield _with(homes, {idx: (there,), other: (own,)})


def _with(homes: Homes, changed: dict[int, tuple[Node, ...]]) -> Homes:
    return tuple(changed.get(idx, nodes) for idx, nodes in enumerate(homes))


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
