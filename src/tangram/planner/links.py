"""Transfers between stages that are not placed yet: what the links between two classes of stages can be.

A search asks for many micro-batch sizes, so the links of one space are looked at once; a size then costs a
few multiplications.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tangram.basis import CostBasis
from tangram.cluster.spec import Cluster, Island, Node
from tangram.cost.transfer import tied_sync_s, transfer
from tangram.cost.types import BoolArray, IntArray
from tangram.planner.edges import Boundaries
from tangram.planner.problem import FAR_NS, Edges, Nics, SameNode
from tangram.planner.space import LinkClass, SearchSpace
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
        widths = np.minimum(nodes_of[:, None], nodes_of[None, :])
        apart, together = _Range.nothing(len(classes)), _Range.nothing(len(classes))
        for row, a in enumerate(classes):
            for column, b in enumerate(classes):
                at, lanes = (row, column), _lanes(space, a, b)
                pairs = _expected_pairs(cluster, space, a, b)
                apart.note(at, cluster, pairs, lanes, basis)
                apart.expects_nics[at] = all(x.host != y.host and x.reach != y.reach for (x,), (y,) in pairs)
                if all(cluster.line(x, y) is not None for (x,), (y,) in pairs):
                    widths[at] = 1  # more nodes on either side get no more of a line that all of them share
                apart.needs_nics[at] = _always_two_hosts(space, a, b)
                if a.island == b.island and not (a.whole or b.whole):
                    nodes = representatives(cluster, space.islands[a.island])
                    together.note(at, cluster, [((x,), (x,)) for x in nodes], lanes, basis)
        return ClassLinks(
            apart=apart,
            together=together if space.placement_matters else None,
            widths=widths,
            tied_ns=least_tied_ns(cluster, space, tied_bytes, basis),
            tied_apart_ns=least_tied_ns(cluster, space, tied_bytes, basis, apart=True),
            nics=Nics(
                np.array([c.island for c in classes], dtype=np.int64),
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
    pairs = _expected_pairs if apart else _best_pairs
    num = len(space.link_classes)
    least = np.zeros((num, num), dtype=np.int64)
    if not num_bytes:
        return least
    for row, a in enumerate(space.link_classes):
        for column, b in enumerate(space.link_classes):
            times = [
                tied_sync_s(cluster, x, y, num_bytes, lanes=_lanes(space, a, b), basis=basis)
                for x, y in pairs(cluster, space, a, b)
            ]
            least[row, column] = int(min(times) / min(a.num_nodes, b.num_nodes) * NS_PER_S)
    return least


def _lanes(space: SearchSpace, a: LinkClass, b: LinkClass) -> int:
    """The most pairs of GPUs that can talk at once inside a node."""
    return min(space.islands[a.island].gpus_per_node, space.islands[b.island].gpus_per_node)


NodePair = tuple[tuple[Node], tuple[Node]]


def _expected_pairs(cluster: Cluster, space: SearchSpace, a: LinkClass, b: LinkClass) -> list[NodePair]:
    """Pairs of single nodes: different ones where there are any."""
    first, second = space.islands[a.island], space.islands[b.island]
    pairs = [((x,), (y,)) for x in representatives(cluster, first) for y in representatives(cluster, second)]
    return [(x, y) for x, y in pairs if x[0].name != y[0].name] or pairs


def _best_pairs(cluster: Cluster, space: SearchSpace, a: LinkClass, b: LinkClass) -> list[NodePair]:
    """Pairs of single nodes, the same one too for two stages that may share it."""
    apart = _expected_pairs(cluster, space, a, b)
    if a.island != b.island or a.whole or b.whole:
        return apart
    return [*apart, *((x, x) for x, _ in apart)]


def _always_two_hosts(space: SearchSpace, a: LinkClass, b: LinkClass) -> bool:
    """Whether a transfer between stages of two classes, on different nodes, always occupies NICs."""
    first, second = ([node.reach for node in space.islands[c.island].nodes] for c in (a, b))
    if a.island != b.island:
        return not set(first) & set(second)
    return 1 < len(first) == len(set(first))


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
