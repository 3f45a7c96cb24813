"""Transfers between stages that are not placed yet: what the links between two classes of stages can be.

A search asks for many micro-batch sizes, so the links of one space are looked at once; a size then costs a
few multiplications.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields

import numpy as np
import numpy.typing as npt

from tangram.basis import CostBasis
from tangram.cluster.spec import Cluster, Island, Node
from tangram.cost.transfer import tied_sync_s, transfer
from tangram.cost.types import BoolArray, IntArray
from tangram.planner.edges import Boundaries
from tangram.planner.problem import FAR_NS, Edges, Nics, SameNode
from tangram.planner.space import SearchSpace
from tangram.units import NS_PER_S

_MAX_REPRESENTATIVES = 8
_Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, eq=False)
class _Range:
    """The slowest and the fastest link of each pair of classes, shape ``(num_classes, num_classes)``.

    Attributes:
        slow_latency_s, fast_latency_s: Longest and shortest.
        slow_s_per_byte, fast_s_per_byte: Longest and shortest occupancy.
        exists: Whether two such stages can be like that.
        expects_nics: Whether every link goes over NICs; then it is expected.
        needs_nics: Whether none can be found that does not.
    """

    slow_latency_s: _Floats
    fast_latency_s: _Floats
    slow_s_per_byte: _Floats
    fast_s_per_byte: _Floats
    exists: BoolArray
    expects_nics: BoolArray
    needs_nics: BoolArray

    @staticmethod
    def nothing(num: int) -> _Range:
        """No links yet."""
        a, b, c, d = (np.zeros((num, num)) for _ in range(4))
        e, f, g = (np.zeros((num, num), dtype=np.bool_) for _ in range(3))
        return _Range(a, b, c, d, e, f, g)

    def note(
        self,
        at: tuple[int, int],
        cluster: Cluster,
        pairs: Sequence[NodePair],
        lanes: int,
        basis: CostBasis,
    ) -> None:
        """Notes the links between pairs of nodes; ``lanes`` pairs of GPUs use the fastest at once."""
        slow = [transfer(cluster, x, y, 1, basis=basis) for x, y in pairs]
        fast = [transfer(cluster, x, y, 1, lanes=lanes, basis=basis) for x, y in pairs]
        self.slow_latency_s[at] = max(t.latency_s for t in slow)
        self.fast_latency_s[at] = min(t.latency_s for t in fast)
        self.slow_s_per_byte[at] = max(t.occupancy_s for t in slow)
        self.fast_s_per_byte[at] = min(t.occupancy_s for t in fast)
        self.exists[at] = True

    def of_classes(self, island_of: IntArray, able: BoolArray | None = None) -> _Range:
        """Returns the links between classes from those between islands.

        Args:
            island_of: Island of each class.
            able: Pairs of classes that have such links; None where all have.
        """
        at = (island_of[:, None], island_of[None, :])
        found = _Range(*(getattr(self, f.name)[at] for f in fields(_Range)))
        if able is None:
            return found
        columns = (getattr(found, f.name) for f in fields(_Range))
        return _Range(*(np.where(able, column, np.zeros_like(column)) for column in columns))

    def edges(self, cuts: Boundaries, widths: IntArray | int) -> tuple[Edges, Edges]:
        """Returns edges as expected, and as no placement can undercut."""
        slow = np.rint(self.slow_s_per_byte * cuts.largest / widths * NS_PER_S).astype(np.int64)
        fast = np.floor(self.fast_s_per_byte * cuts.smallest / widths * NS_PER_S).astype(np.int64)
        slow_latency = np.rint(self.slow_latency_s * NS_PER_S).astype(np.int64)
        fast_latency = np.rint(self.fast_latency_s * NS_PER_S).astype(np.int64)
        return (
            self._edges(slow_latency, slow, self.expects_nics),
            self._edges(fast_latency, fast, self.needs_nics),
        )

    def _edges(self, latency: IntArray, occupancy: IntArray, over_nics: BoolArray) -> Edges:
        one_way = np.where(self.exists, latency + occupancy, FAR_NS)
        round_trip = np.where(self.exists, 2 * one_way, FAR_NS)
        nic = np.where(over_nics, occupancy, 0)
        return Edges(one_way, round_trip, np.where(self.exists, occupancy, FAR_NS), nic)


@dataclass(frozen=True, slots=True, eq=False)
class ClassLinks:
    """The links of one space. Build it with :meth:`of`.

    Attributes:
        apart: Of stages on different nodes; of islands of one node, on that.
        together: Of stages that share a node of an island of several; None where no two can.
        widths: Nodes that send side by side, per pair of classes.
        tied_ns: The least time in which a first and a last stage can keep a tied embedding equal,
            ``[class of the first, class of the last]``.
        tied_apart_ns: The same, on different nodes where there are several.
        nics: Who shares NICs.
        node_gpus: GPUs of one node of each island.
    """

    apart: _Range
    together: _Range | None
    widths: IntArray
    tied_ns: IntArray
    tied_apart_ns: IntArray
    nics: Nics
    node_gpus: IntArray

    @staticmethod
    def of(cluster: Cluster, space: SearchSpace, tied_bytes: int, basis: CostBasis) -> ClassLinks:
        """Looks at the links between all pairs of classes.

        Args:
            cluster: The network.
            space: Classes.
            tied_bytes: Gradient of a tied embedding; 0 without one.
            basis: What predictions rest on.
        """
        classes = space.link_classes
        nodes_of = np.array([c.num_nodes for c in classes], dtype=np.int64)
        island_of = np.array([c.island for c in classes], dtype=np.int64)
        part = np.array([not c.whole for c in classes], dtype=np.bool_)
        apart, together, one_line = _between_islands(cluster, space, basis)
        shared = (island_of[:, None] == island_of[None, :]) & part[:, None] & part[None, :]
        apart, together = apart.of_classes(island_of), together.of_classes(island_of, shared)
        widths = np.minimum(nodes_of[:, None], nodes_of[None, :])
        # More nodes on either side get no more of a line that all of them share.
        widths = np.where(one_line[island_of[:, None], island_of[None, :]], 1, widths)
        return ClassLinks(
            apart=apart,
            together=together if space.placement_matters else None,
            widths=widths,
            tied_ns=least_tied_ns(cluster, space, tied_bytes, basis),
            tied_apart_ns=least_tied_ns(cluster, space, tied_bytes, basis, apart=True),
            nics=Nics(
                island_of,
                nodes_of,
                np.array([island.num_nodes for island in space.islands], dtype=np.int64),
            ),
            node_gpus=np.array([island.gpus_per_node for island in space.islands], dtype=np.int64),
        )

    def edges(self, cuts: Boundaries) -> tuple[Edges, Edges]:
        """Returns transfer times between link classes: as to be expected, and as no placement can undercut.

        Two stages of one island with several nodes are on different ones; see :meth:`same_node` for those
        that share one. Where links between two islands differ, the slowest is expected.
        """
        return self.apart.edges(cuts, self.widths)

    def same_node(self, cuts: Boundaries) -> SameNode | None:
        """Returns what changes for stages that share a node; None where no two can choose to."""
        if self.together is None:
            return None
        expected, best = self.together.edges(cuts, 1)
        return SameNode(expected, best, self.tied_apart_ns, self.nics.class_island, self.node_gpus)


def least_tied_ns(
    cluster: Cluster, space: SearchSpace, num_bytes: float, basis: CostBasis, *, apart: bool = False
) -> IntArray:
    """Returns the least time in which a first and a last stage can keep a tied embedding equal, by their
    link classes: shape ``(num_classes, num_classes)``, ``[first, last]``; ``apart``: on different nodes,
    where there are several.
    """
    num = len(space.link_classes)
    least = np.zeros((num, num), dtype=np.int64)
    if not num_bytes:
        return least
    shown = [representatives(cluster, island) for island in space.islands]
    known: dict[tuple[int, int, bool], float] = {}
    for row, a in enumerate(space.link_classes):
        for column, b in enumerate(space.link_classes):
            may_share = not apart and a.island == b.island and not (a.whole or b.whole)
            key = a.island, b.island, may_share
            if key not in known:
                pairs = _expected_pairs(shown[a.island], shown[b.island])
                pairs += [(x, x) for x, _ in pairs] if may_share else []
                lanes = _lanes(space, a.island, b.island)
                known[key] = min(
                    tied_sync_s(cluster, x, y, num_bytes, lanes=lanes, basis=basis) for x, y in pairs
                )
            least[row, column] = int(known[key] / min(a.num_nodes, b.num_nodes) * NS_PER_S)
    return least


def _between_islands(
    cluster: Cluster, space: SearchSpace, basis: CostBasis
) -> tuple[_Range, _Range, BoolArray]:
    """Returns the links between stages of all pairs of islands: on different nodes where there are several,
    on one node (of one island), and whether all of a pair share one line.
    """
    num = len(space.islands)
    apart, together = _Range.nothing(num), _Range.nothing(num)
    one_line = np.zeros((num, num), dtype=np.bool_)
    shown = [representatives(cluster, island) for island in space.islands]
    reaches = [[node.reach for node in island.nodes] for island in space.islands]
    for row in range(num):
        for column in range(num):
            at, lanes = (row, column), _lanes(space, row, column)
            pairs = _expected_pairs(shown[row], shown[column])
            apart.note(at, cluster, pairs, lanes, basis)
            apart.expects_nics[at] = all(x.host != y.host and x.reach != y.reach for (x,), (y,) in pairs)
            one_line[at] = all(cluster.line(x, y) is not None for (x,), (y,) in pairs)
            apart.needs_nics[at] = (
                set(reaches[row]).isdisjoint(reaches[column])
                if row != column
                else 1 < len(reaches[row]) == len(set(reaches[row]))
            )
        lanes = _lanes(space, row, row)
        together.note((row, row), cluster, [((x,), (x,)) for x in shown[row]], lanes, basis)
    return apart, together, one_line


def _lanes(space: SearchSpace, first: int, second: int) -> int:
    """The most pairs of GPUs that can talk at once inside a node."""
    return min(space.islands[first].gpus_per_node, space.islands[second].gpus_per_node)


NodePair = tuple[tuple[Node], tuple[Node]]


def _expected_pairs(first: Sequence[Node], second: Sequence[Node]) -> list[NodePair]:
    """Pairs of single nodes: different ones where there are any."""
    pairs = [((x,), (y,)) for x in first for y in second]
    return [(x, y) for x, y in pairs if x[0].name != y[0].name] or pairs


def representatives(cluster: Cluster, island: Island) -> list[Node]:
    """Returns nodes that stand for all of an island as far as links go: two of each group, more where
    links name nodes.
    """
    named = {name for link in cluster.links for name in (link.a, link.b)}
    chosen: list[Node] = []
    per_group: dict[tuple[str, float], int] = {}
    for node in island.nodes:
        key = (node.group, node.nic_bandwidth_bytes_per_s)
        per_group[key] = per_group.get(key, 0) + 1
        if per_group[key] <= 2 or (node.name in named and node.name != node.group):
            chosen.append(node)
    return chosen[: max(_MAX_REPRESENTATIVES, 2 * len(per_group))]
