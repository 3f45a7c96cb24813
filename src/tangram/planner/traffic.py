"""What a placement costs: transfers between stages, NICs that they share, a tied embedding at both ends."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from tangram.basis import CostBasis
from tangram.cluster.spec import Cluster, Node, Portion
from tangram.cost.transfer import tied_sync_s
from tangram.planner.edges import node_edge
from tangram.planner.placement import Homes, Placement, every_homes, improved_homes, packed_homes
from tangram.simulate.pipeline import SimEdge, SimPipeline, SimStage
from tangram.units import NS_PER_S

_Names = tuple[str, ...]
Way = tuple[int, int, Homes]
"""What homes cost once, per micro-batch, and the homes."""

_MOST_WAYS = 250


@dataclass(slots=True)
class EdgeBook:
    """Remembers edges by the nodes at their ends, and ways to pack by the stages.

    Attributes:
        cluster: The network.
        basis: What predictions rest on.
        ways: Per portions, bytes behind them and bytes of a tied embedding.
    """

    cluster: Cluster
    basis: CostBasis
    ways: dict[tuple[object, ...], list[Way]] = field(default_factory=dict)
    _edges: dict[tuple[_Names, _Names, int, int], SimEdge] = field(default_factory=dict)
    _tied: dict[tuple[_Names, _Names, int], int] = field(default_factory=dict)

    def edge(self, front: Sequence[Node], behind: Sequence[Node], num_bytes: int, lanes: int) -> SimEdge:
        """Returns the edge between stages on these nodes."""
        key = (_names(front), _names(behind), num_bytes, lanes)
        if key not in self._edges:
            self._edges[key] = node_edge(self.cluster, front, behind, num_bytes, lanes, self.basis)
        return self._edges[key]

    def tied_ns(self, first: Sequence[Node], last: Sequence[Node], num_bytes: int) -> int:
        """Returns what stages on these nodes add to their step end to keep a tied embedding equal."""
        if not num_bytes:
            return 0
        key = (_names(first), _names(last), num_bytes)
        if key not in self._tied:
            self._tied[key] = self._tied_ns(first, last, num_bytes)
        return self._tied[key]

    def _tied_ns(self, first: Sequence[Node], last: Sequence[Node], num_bytes: int) -> int:
        return round(tied_sync_s(self.cluster, first, last, num_bytes, basis=self.basis) * NS_PER_S)

    def edges(
        self, portions: Sequence[Portion], homes: Homes, bytes_behind: Sequence[int]
    ) -> tuple[SimEdge, ...]:
        """Returns the edges between the stages of a pipeline; ``bytes_behind`` each stage but the last."""
        lanes = [portion.gpus_per_node for portion in portions]
        return tuple(
            self.edge(homes[i], homes[i + 1], num_bytes, min(lanes[i], lanes[i + 1]))
            for i, num_bytes in enumerate(bytes_behind)
        )

    def pipeline(
        self,
        placements: Sequence[Placement],
        bytes_behind: Sequence[int],
        tied_bytes: int,
        stages: Sequence[SimStage],
        num_micro_batches: int,
        *,
        blocking_p2p: bool,
    ) -> SimPipeline:
        """Returns the pipeline of placed stages.

        Args:
            placements: Of the stages.
            bytes_behind: Of the cut behind each stage but the last.
            tied_bytes: Gradient of a tied embedding, which both ends of several stages keep equal; 0 without.
            stages: Their times without that, and their windows.
            num_micro_batches, blocking_p2p: As :class:`~tangram.simulate.pipeline.SimPipeline` has them.
        """
        homes = tuple(placement.nodes for placement in placements)
        timed, last = list(stages), len(stages) - 1
        if last > 0:
            tied = self.tied_ns(homes[0], homes[-1], tied_bytes)
            for end in (0, last):
                timed[end] = replace(timed[end], step_ns=timed[end].step_ns + tied)
        edges = self.edges([placement.portion for placement in placements], homes, bytes_behind)
        return SimPipeline(tuple(timed), edges, num_micro_batches, blocking_p2p)


@dataclass(frozen=True, slots=True)
class Traffic:
    """The traffic of one pipeline, whose stages are yet to be placed.

    Attributes:
        book: Edges.
        portions: Of the stages.
        bytes_behind: Of the cut behind each stage but the last.
        tied_bytes: Gradient of a tied embedding; 0 without one.
        num_micro_batches: ``m``.
        pace_ns: Of the slowest stage; NICs that are busy for less cost nothing.
    """

    book: EdgeBook
    portions: tuple[Portion, ...]
    bytes_behind: tuple[int, ...]
    tied_bytes: int
    num_micro_batches: int
    pace_ns: int

    def edges(self, homes: Homes) -> tuple[SimEdge, ...]:
        """Returns the edges between stages on these nodes."""
        return self.book.edges(self.portions, homes, self.bytes_behind)

    def tied_ns(self, homes: Homes) -> int:
        """Returns what first and last stage each add to their step end for a tied embedding."""
        return self.book.tied_ns(homes[0], homes[-1], self.tied_bytes) if len(homes) > 1 else 0

    def cost_ns(self, homes: Homes) -> int:
        """Returns what depends on the placement of the closed form of the iteration time.

        One round trip over all edges, the tied embedding, and ``m - 1`` periods, each no shorter than any NIC
        is busy with one micro-batch.
        """
        return self._total_ns(*self._load(homes))

    def best_homes(self) -> Homes:
        """Returns the cheapest homes; where there are very many ways to pack, a good one."""
        key = (tuple(_name(portion) for portion in self.portions), self.bytes_behind, self.tied_bytes)
        if key not in self.book.ways:
            self.book.ways[key] = self._ways()
        ways = self.book.ways[key]
        if not ways:
            return improved_homes(self.portions, packed_homes(self.portions), self.cost_ns)
        return min(ways, key=lambda way: self._total_ns(way[0], way[1]))[2]

    def _total_ns(self, once_ns: int, busy_ns: int) -> int:
        return once_ns + (self.num_micro_batches - 1) * max(self.pace_ns, busy_ns)

    def _ways(self) -> list[Way]:
        """The ways to pack of which none costs more both once and per micro-batch than another; none where
        they are too many to look at.
        """
        ways: list[Way] = []
        for homes in every_homes(self.portions, packed_homes(self.portions), _MOST_WAYS) or ():
            once_ns, busy_ns = self._load(homes)
            if all(once_ns < way[0] or busy_ns < way[1] for way in ways):
                ways = [way for way in ways if way[0] < once_ns or way[1] < busy_ns]
                ways.append((once_ns, busy_ns, homes))
        return ways

    def _load(self, homes: Homes) -> tuple[int, int]:
        """What homes cost once, and for how long one micro-batch keeps the busiest NIC busy."""
        busy: Counter[str] = Counter()
        once_ns = self.tied_ns(homes)
        for edge in self.edges(homes):
            once_ns += edge.round_trip_ns
            for resource in edge.forward_resources:
                busy[resource] += edge.forward_occupancy_ns
            for resource in edge.backward_resources:
                busy[resource] += edge.backward_occupancy_ns
        return once_ns, max(busy.values(), default=0)


def _name(portion: Portion) -> tuple[str, int, int]:
    return portion.island.name, portion.num_nodes, portion.gpus_per_node


def _names(nodes: Sequence[Node]) -> _Names:
    return tuple(node.name for node in nodes)
