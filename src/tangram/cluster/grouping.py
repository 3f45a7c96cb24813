"""Groups classes of nodes into islands: first by what the nodes are, then by how they are linked.

The conditions are those of :mod:`tangram.cluster.islands`. The way:

1. *By node.* Nodes with equal numbers of GPUs are boxed by rate, memory and intra-node bandwidth: the
   fastest class left opens a box, and the others join in order while the box stays within the tolerances.
2. *By network.* A box that breaks a network condition is cut where its links are slowest (at the weakest
   edge of its maximum spanning tree), again and again, until every piece satisfies the conditions. A class
   that is cut within itself falls apart into single nodes.
3. *Together again.* Pieces whose union satisfies all conditions are joined, until no two can be.

Nodes of one class are treated alike: all in one island, or each alone. So the result depends neither on the
order of the nodes nor on their names, except where several choices are equally good and only names are left
to break the tie.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import numpy as np

from tangram.cluster.block_pairs import BlockPairs, pair_up
from tangram.cluster.classes import ClassNetwork, NodeClass, bridge_kind
from tangram.cluster.tolerances import BoolArray, FloatArray, Tolerances, alike


@dataclass(frozen=True, slots=True)
class Block:
    """Classes that form one island; or, when not ``whole``, one class whose nodes stand alone.

    Attributes:
        members: Indices of the classes, ascending.
        whole: Whether the nodes form one island.
    """

    members: tuple[int, ...]
    whole: bool


@dataclass(frozen=True, slots=True)
class Grouping:
    """The problem: classes, the network between them, and the tolerances."""

    classes: Sequence[NodeClass]
    network: ClassNetwork
    tolerances: Tolerances

    def blocks(self) -> list[Block]:
        """Returns the blocks, which cover every class once, in the order of their first classes."""
        pieces = [piece for box in self._boxes() for piece in self._cut(box)]
        return sorted(self._join(pieces), key=lambda block: block.members)

    def nodes_alike(self, members: Sequence[int]) -> bool:
        """Whether nodes of these classes may share an island: conditions (1) and (2)."""
        nodes = [self.classes[idx].first for idx in members]
        first = nodes[0]
        if any(n.num_gpus != first.num_gpus or n.gpu.vendor != first.gpu.vendor for n in nodes):
            return False
        bridges = [bridge_kind(n) for n in nodes]
        if any(size != bridges[0][0] for size, *_ in bridges):
            return False
        limits = self.tolerances
        values = (
            ([self.classes[idx].rate_flop_per_s for idx in members], limits.compute),
            ([n.gpu.usable_memory_bytes for n in nodes], limits.memory),
            ([n.intra_bandwidth_bytes_per_s for n in nodes], limits.intra),
            ([rate for _, rate, *_ in bridges], limits.intra),
        )
        return all(alike(min(column), max(column), limit) for column, limit in values)

    def inner_links(self, members: Sequence[int]) -> FloatArray:
        """Returns the bandwidths between different hosts of these classes, in bytes per second."""
        inside = np.ix_(members, members)
        links: FloatArray = self.network.bandwidth_bytes_per_s[inside][self.network.exists[inside]]
        return links

    def inner_latencies(self, members: Sequence[int]) -> FloatArray:
        """Returns the latencies between different hosts of these classes, in seconds."""
        inside = np.ix_(members, members)
        latencies: FloatArray = self.network.latency_s[inside][self.network.exists[inside]]
        return latencies

    def links_even(self, members: Sequence[int]) -> bool:
        """Whether no link inside is slower than 1 / (1 + tolerance) of the fastest."""
        links = self.inner_links(members)
        return links.size == 0 or alike(float(links.min()), float(links.max()), self.tolerances.network)

    def near(self, members: Sequence[int]) -> bool:
        """Whether every node is linked inside at least as fast as to anything outside: condition (3)."""
        rate, exists = self.network.bandwidth_bytes_per_s[list(members)], self.network.exists[list(members)]
        inside = np.zeros(len(self.classes), dtype=np.bool_)
        inside[list(members)] = True
        slowest_in = np.where(exists & inside, rate, np.inf).min(axis=1)
        fastest_out = np.where(exists & ~inside, rate, 0.0).max(axis=1)
        return bool((slowest_in >= fastest_out).all())

    def _boxes(self) -> list[list[int]]:
        equal: dict[Hashable, list[int]] = defaultdict(list)
        for idx, node_class in enumerate(self.classes):
            node, rate = node_class.first, node_class.rate_flop_per_s
            size = node.gpu.usable_memory_bytes
            inside = node.intra_bandwidth_bytes_per_s, bridge_kind(node)
            equal[node.num_gpus, node.gpu.vendor, rate, size, inside].append(idx)
        left = list(equal.values())
        boxes = []
        while left:
            box: list[list[int]] = []
            for group in left:
                if self.nodes_alike([other[0] for other in [*box, group]]):
                    box.append(group)
            boxes.append([idx for group in box for idx in group])
            left = [group for group in left if group not in box]
        return boxes

    def _cut(self, box: list[int]) -> list[Block]:
        done, todo = [], [box]
        while todo:
            members = todo.pop()
            whole = self.links_even(members) and self.near(members)
            if whole or len(members) == 1:
                done.append(Block(tuple(sorted(members)), whole))
            else:
                todo += self._cut_weakest(members)
        return done

    def _cut_weakest(self, members: list[int]) -> list[list[int]]:
        """Cuts at the slowest edge of the maximum spanning tree (Prim's), and at all edges no faster."""
        inside = np.ix_(members, members)
        rate = np.where(self.network.exists[inside], self.network.bandwidth_bytes_per_s[inside], 0.0)
        best, outside = rate[0].copy(), np.ones(len(members), dtype=np.bool_)
        outside[0] = False
        slowest = np.inf
        while outside.any():
            nearest = int(np.argmax(np.where(outside, best, -1.0)))
            slowest = min(slowest, float(best[nearest]))
            outside[nearest] = False
            best = np.maximum(best, rate[nearest])
        return [[members[idx] for idx in part] for part in components(rate > slowest)]

    def _join(self, blocks: list[Block]) -> list[Block]:
        while len(blocks) > 1:
            blocks = sorted(blocks, key=lambda block: block.members)
            pairs = pair_up([b.members for b in blocks], self.classes, self.network, self.tolerances)
            groups = [group for group in components(pairs.possible) if len(group) > 1]
            if not groups:
                break
            joined: set[int] = set()
            for group in groups:
                chosen = group if self._fits(blocks, group) else self._best_pair(blocks, group, pairs)
                joined.update(chosen)
                members = tuple(sorted(idx for at in chosen for idx in blocks[at].members))
                blocks.append(Block(members, True))
            blocks = [block for at, block in enumerate(blocks) if at not in joined]
        return blocks

    def _fits(self, blocks: Sequence[Block], chosen: Sequence[int]) -> bool:
        members = [idx for at in chosen for idx in blocks[at].members]
        return self.nodes_alike(members) and self.links_even(members) and self.near(members)

    def _best_pair(self, blocks: Sequence[Block], group: Sequence[int], pairs: BlockPairs) -> list[int]:
        """The pair with the fastest links between its halves, then the largest, then the first in order."""
        size = [sum(len(self.classes[idx].nodes) for idx in block.members) for block in blocks]
        inside = np.ix_(group, group)
        a, b = np.nonzero(np.triu(pairs.possible[inside], 1))
        slowest = pairs.slowest_bytes_per_s[inside][a, b]
        latency_s = pairs.latency_s[inside][a, b]
        sizes = np.array(size)[group]
        best = np.lexsort((b, a, -(sizes[a] + sizes[b]), latency_s, -slowest))[0]
        return [group[a[best]], group[b[best]]]


def components(linked: BoolArray) -> list[list[int]]:
    """Returns the connected components of a symmetric adjacency matrix, all in ascending order."""
    left = set(range(len(linked)))
    found = []
    while left:
        seen, todo = set(), [min(left)]
        while todo:
            at = todo.pop()
            if at not in seen:
                seen.add(at)
                todo += np.flatnonzero(linked[at]).tolist()
        found.append(sorted(seen))
        left -= seen
    return found
