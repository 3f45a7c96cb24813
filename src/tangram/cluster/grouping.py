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
from itertools import combinations

import numpy as np

from tangram.cluster.classes import BoolArray, ClassNetwork, FloatArray, NodeClass
from tangram.cluster.tolerances import Tolerances, alike


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
        limits = self.tolerances
        values = (
            ([self.classes[idx].rate_flop_per_s for idx in members], limits.compute),
            ([n.gpu.usable_memory_bytes for n in nodes], limits.memory),
            ([n.intra_bandwidth_bytes_per_s for n in nodes], limits.intra),
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
            equal[node.num_gpus, node.gpu.vendor, rate, size, node.intra_bandwidth_bytes_per_s].append(idx)
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
            possible = self._joinable(blocks)
            groups = [group for group in components(possible) if len(group) > 1]
            if not groups:
                break
            joined: set[int] = set()
            for group in groups:
                chosen = group if self._fits(blocks, group) else self._best_pair(blocks, group, possible)
                joined.update(chosen)
                members = tuple(sorted(idx for at in chosen for idx in blocks[at].members))
                blocks.append(Block(members, True))
            blocks = [block for at, block in enumerate(blocks) if at not in joined]
        return blocks

    def _fits(self, blocks: Sequence[Block], chosen: Sequence[int]) -> bool:
        members = [idx for at in chosen for idx in blocks[at].members]
        return self.nodes_alike(members) and self.links_even(members) and self.near(members)

    def _best_pair(
        self, blocks: Sequence[Block], group: Sequence[int], possible: BoolArray
    ) -> tuple[int, int]:
        """The pair with the fastest links between its halves, then the largest, then the first."""

        def key(pair: tuple[int, int]) -> tuple[float, int, tuple[int, int]]:
            a, b = (list(blocks[at].members) for at in pair)
            slowest = float(self.network.bandwidth_bytes_per_s[np.ix_(a, b)].min())
            return -slowest, -sum(len(self.classes[idx].nodes) for idx in a + b), pair

        return min((pair for pair in combinations(sorted(group), 2) if possible[pair]), key=key)

    def _joinable(self, blocks: Sequence[Block]) -> BoolArray:
        """Which pairs of blocks form an island together, as a symmetric matrix."""
        candidates = self._near_pairs(blocks)
        possible = np.zeros_like(candidates)
        for a, b in np.argwhere(np.triu(candidates, 1)).tolist():
            possible[a, b] = possible[b, a] = self._fits(blocks, (a, b))
        return possible

    def _near_pairs(self, blocks: Sequence[Block]) -> BoolArray:
        """Pairs that pass a cheap necessary part of the conditions, for all pairs at once.

        For the first node of one block, no block outside the pair may be linked faster than the slowest
        link to the other block; and the nodes must have equal numbers of GPUs.
        """
        firsts = [block.members[0] for block in blocks]
        rate = self.network.bandwidth_bytes_per_s[firsts]
        exists = self.network.exists[firsts]
        slowest = np.stack(
            [np.where(exists, rate, np.inf)[:, list(block.members)].min(axis=1) for block in blocks], axis=1
        )
        fastest = np.stack(
            [np.where(exists, rate, 0.0)[:, list(block.members)].max(axis=1) for block in blocks], axis=1
        )
        np.fill_diagonal(fastest, 0.0)
        best = fastest.max(axis=1, keepdims=True)
        is_best = fastest == best
        second = np.where(is_best, -np.inf, fastest).max(axis=1, keepdims=True)
        only_best = is_best & (is_best.sum(axis=1, keepdims=True) == 1)
        near = slowest >= np.where(only_best, np.maximum(second, 0.0), best)
        gpus = np.array([self.classes[idx].first.num_gpus for idx in firsts])
        pairs: BoolArray = near & near.T & (gpus[:, None] == gpus[None, :])
        return pairs


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
