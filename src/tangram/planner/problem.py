"""The composition problem: pieces of pipeline, the GPUs they take, and the edges between them.

One problem holds one global micro-batch. It knows nothing of models or clusters: atoms are positions
``0..num_atoms``, islands are counters, and a *piece* is one stage, or a fixed run of stages that a slice
planner returned. All times are integer nanoseconds, so that sums are associative, ties are exact and bytes
are stable.

Notation (docs/composition.md): stage ``i`` has forward ``f``, backward ``b``, ``t = f + b``, step end
``u``, window ``w`` (micro-batches in flight); the edge behind it has one-way time ``x``, round trip ``X``,
occupancy ``o``, and ``n``, what of that occupies the NICs at its ends; ``m`` micro-batches.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace

import numpy as np

from tangram.cost.types import BoolArray, IntArray
from tangram.planner.groups import begins

FAR_NS = 1 << 60
"""Stands for "impossible"; two of them still fit into 64 bits."""


@dataclass(frozen=True, slots=True)
class StageTimes:
    """Times of one stage inside a piece.

    Attributes:
        forward_ns, backward_ns, step_ns: ``f``, ``b``, ``u``.
        one_way_ns, round_trip_ns, occupancy_ns: ``x``, ``X`` and ``o`` of the edge behind it inside the
            piece; 0 for the last.
        extra_in_flight: ``e`` of that edge: warm-up beyond plain 1F1B.
        nic_ns: ``n`` of that edge.
    """

    forward_ns: int
    backward_ns: int
    step_ns: int
    one_way_ns: int = 0
    round_trip_ns: int = 0
    occupancy_ns: int = 0
    extra_in_flight: int = 0
    nic_ns: int = 0

    @property
    def time_ns(self) -> int:
        """``t``: forward plus backward."""
        return self.forward_ns + self.backward_ns


@dataclass(frozen=True, slots=True, eq=False)
class Pieces:
    """Candidate pieces; parallel int64 arrays of shape ``(num_pieces,)``.

    A piece acts on the labels of the search as a max-plus affine map; these are its constants (sums run
    over the stages of the piece, ``l < j`` meaning in front of ``j``).

    Attributes:
        start, stop: Atoms ``[start, stop)``.
        island, gpus: What it takes, in units of the island's counter.
        head_class, tail_class: Link class of its first and of its last stage.
        min_in_flight: Windows below this are better served by another piece of the same slice and portion.
        max_in_flight: Largest window of its last stage that fits in memory.
        span: Window of the first stage minus window of the last one.
        num_stages: Stages of the piece.
        time_ns: ``sum (t + X)``.
        forward_ns: ``sum (f + x)``.
        step_fill_ns: ``max_j (sum_{l<j} (f + x) + sum_{l>=j} (t + X) + u_j)``.
        period_ns: The steady period that the piece allows by itself.
        occupied_ns: ``max_j (sum_{l<j} (t + X) + m t_j)``.
        tail_time_ns: ``t`` of the last stage.
        tail_forward_ns: ``f`` of the last stage.
        head_step_ns: ``u`` of the first stage.
        head_nic_ns, tail_nic_ns: ``n`` of the first and of the last edge inside; 0 without any.
        head_on_node, tail_on_node: GPUs of the first and of the last stage, if it takes part of a node of
            an island of several nodes, so that it may share that node or not; 0 otherwise.
        run: Index into ``problem.runs`` of a piece of several stages; -1 for one stage.
        payload: What the caller needs to recognise the piece.
    """

    start: IntArray
    stop: IntArray
    island: IntArray
    gpus: IntArray
    head_class: IntArray
    tail_class: IntArray
    min_in_flight: IntArray
    max_in_flight: IntArray
    span: IntArray
    num_stages: IntArray
    time_ns: IntArray
    forward_ns: IntArray
    step_fill_ns: IntArray
    period_ns: IntArray
    occupied_ns: IntArray
    tail_time_ns: IntArray
    tail_forward_ns: IntArray
    head_step_ns: IntArray
    head_nic_ns: IntArray
    tail_nic_ns: IntArray
    head_on_node: IntArray
    tail_on_node: IntArray
    run: IntArray
    payload: IntArray

    def __len__(self) -> int:
        return len(self.start)

    def take(self, idx: IntArray) -> Pieces:
        """Returns the pieces at these positions."""
        return Pieces(**_columns([self], lambda columns: columns[0][idx]))

    @staticmethod
    def concatenate(parts: Sequence[Pieces]) -> Pieces:
        """Returns all pieces of several tables, in order."""
        return Pieces(**_columns(parts, np.concatenate))


def _columns(parts: Sequence[Pieces], made: Callable[[list[IntArray]], IntArray]) -> dict[str, IntArray]:
    """Makes every column from those of the parts; columns that are one array in every part stay one array.

    Of a long model there are millions of pieces, mostly of one stage: half of their columns are the same.
    """
    found: dict[tuple[int, ...], IntArray] = {}
    columns = {}
    for field_ in fields(Pieces):
        sources = [getattr(part, field_.name) for part in parts]
        key = tuple(map(id, sources))
        if key not in found:
            found[key] = made(sources)
        columns[field_.name] = found[key]
    return columns


def single_stage_pieces(
    *,
    start: IntArray,
    stop: IntArray,
    island: int,
    gpus: int,
    link_class: int,
    on_node: int = 0,
    min_in_flight: IntArray | None = None,
    max_in_flight: IntArray,
    forward_ns: IntArray,
    backward_ns: IntArray,
    step_ns: IntArray,
    num_micro_batches: int,
    payload: IntArray,
) -> Pieces:
    """Returns pieces of one stage each, all on one portion."""
    time = forward_ns + backward_ns
    known: dict[int, IntArray] = {}

    def same(value: int) -> IntArray:
        if value not in known:
            known[value] = np.full(len(start), value, dtype=np.int64)
        return known[value]

    return Pieces(
        start=start,
        stop=stop,
        island=same(island),
        gpus=same(gpus),
        head_class=same(link_class),
        tail_class=same(link_class),
        min_in_flight=same(1) if min_in_flight is None else min_in_flight,
        max_in_flight=max_in_flight,
        span=same(0),
        num_stages=same(1),
        time_ns=time,
        forward_ns=forward_ns,
        step_fill_ns=time + step_ns,
        period_ns=time,
        occupied_ns=num_micro_batches * time,
        tail_time_ns=time,
        tail_forward_ns=forward_ns,
        head_step_ns=step_ns,
        head_nic_ns=same(0),
        tail_nic_ns=same(0),
        head_on_node=same(on_node),
        tail_on_node=same(on_node),
        run=same(-1),
        payload=payload,
    )


def run_piece(
    *,
    start: int,
    stop: int,
    island: int,
    gpus: int,
    head_class: int,
    tail_class: int,
    head_on_node: int = 0,
    tail_on_node: int = 0,
    max_in_flight: int,
    stages: Sequence[StageTimes],
    num_micro_batches: int,
    run: int,
    payload: int,
) -> Pieces:
    """Returns one piece made of several stages, first to last; they are ``problem.runs[run]``."""
    ahead_time = ahead_forward = occupied = period = 0
    step_fill = ahead_nic = 0
    behind = sum(s.time_ns + s.round_trip_ns for s in stages)
    for stage in stages:
        occupied = max(occupied, ahead_time + num_micro_batches * stage.time_ns)
        step_fill = max(step_fill, ahead_forward + behind + stage.step_ns)
        with_edge = -(-(stage.time_ns + stage.round_trip_ns) // (1 + stage.extra_in_flight))
        period = max(period, stage.time_ns, stage.occupancy_ns, with_edge, ahead_nic + stage.nic_ns)
        ahead_nic = stage.nic_ns
        ahead_time += stage.time_ns + stage.round_trip_ns
        ahead_forward += stage.forward_ns + stage.one_way_ns
        behind -= stage.time_ns + stage.round_trip_ns
    tail = stages[-1]
    values = {
        "start": start,
        "stop": stop,
        "island": island,
        "gpus": gpus,
        "head_class": head_class,
        "tail_class": tail_class,
        "min_in_flight": 1,
        "max_in_flight": max_in_flight,
        "span": sum(1 + s.extra_in_flight for s in stages[:-1]),
        "num_stages": len(stages),
        "time_ns": ahead_time,
        "forward_ns": ahead_forward,
        "step_fill_ns": step_fill,
        "period_ns": period,
        "occupied_ns": occupied,
        "tail_time_ns": tail.time_ns,
        "tail_forward_ns": tail.forward_ns,
        "head_step_ns": stages[0].step_ns,
        "head_nic_ns": stages[0].nic_ns,
        "tail_nic_ns": stages[-2].nic_ns if len(stages) > 1 else 0,
        "head_on_node": head_on_node,
        "tail_on_node": tail_on_node,
        "run": run,
        "payload": payload,
    }
    return Pieces(**{name: np.array([value], dtype=np.int64) for name, value in values.items()})


def piece_stages(
    pieces: Pieces, runs: Sequence[tuple[StageTimes, ...]], piece: int
) -> tuple[StageTimes, ...]:
    """Returns the stages of one of ``pieces``, first to last."""
    if pieces.run[piece] >= 0:
        return runs[int(pieces.run[piece])]
    forward = int(pieces.forward_ns[piece])
    backward = int(pieces.time_ns[piece]) - forward
    return (StageTimes(forward, backward, int(pieces.head_step_ns[piece])),)


def fastest_pieces(pieces: Pieces, num_micro_batches: int) -> IntArray:
    """Returns the positions of the fastest piece of each slice on each number of GPUs of each island: all its
    micro-batches and its step end.
    """
    whole = pieces.step_fill_ns + (num_micro_batches - 1) * pieces.period_ns
    columns = (pieces.gpus, pieces.island, pieces.stop, pieces.start)
    order = np.lexsort((np.arange(len(pieces)), whole, *columns))
    return np.sort(order[begins(*(column[order] for column in columns))])


def with_tail_step(pieces: Pieces, num_atoms: int, tied_ns: IntArray) -> Pieces:
    """Returns the pieces with what the last stage of several adds to its step end, at least, for a tied
    embedding.

    Args:
        pieces: Candidates.
        num_atoms: Of the model.
        tied_ns: As :class:`Problem` has it; the partner is not known yet, so the quickest counts. Runs of
            several stages are left as they are: a lower bound may leave things out.
    """
    tails = (pieces.start > 0) & (pieces.stop == num_atoms) & (pieces.num_stages == 1)
    more = np.where(tails, tied_ns.min(axis=0)[pieces.tail_class], 0)
    return replace(pieces, head_step_ns=pieces.head_step_ns + more, step_fill_ns=pieces.step_fill_ns + more)


@dataclass(frozen=True, slots=True, eq=False)
class Edges:
    """Transfers between link classes; int64 arrays ``(num_classes, num_classes)`` indexed ``[tail in
    front, head behind]``.

    Attributes:
        one_way_ns: ``x``.
        round_trip_ns: ``X``, forward and backward together.
        occupancy_ns: Time that one transfer keeps the link busy in the busier direction; the period cannot
            be shorter.
        nic_ns: Time that one transfer keeps the NICs of both stages busy: the occupancy, or 0 where the two
            stages may be on one host. A stage between two such edges receives an activation over one and a
            gradient over the other, and sends as many, so its period cannot be shorter than both together.
    """

    one_way_ns: IntArray
    round_trip_ns: IntArray
    occupancy_ns: IntArray
    nic_ns: IntArray


@dataclass(frozen=True, slots=True, eq=False)
class SameNode:
    """What changes for neighbours in the pipeline that share a node.

    Only islands of several nodes matter; where there is one, its edges are those on one node anyway.

    Attributes:
        edges, edges_at_best: Like those of the problem, for stages on one node; ``n`` is 0. ``FAR_NS``
            between classes that share none.
        tied_apart_ns: As ``tied_ns`` of the problem, for a first and a last stage on different nodes.
        class_island: Island of each link class.
        node_gpus: GPUs of one node of each island.
    """

    edges: Edges
    edges_at_best: Edges
    tied_apart_ns: IntArray
    class_island: IntArray
    node_gpus: IntArray


@dataclass(frozen=True, slots=True, eq=False)
class Nics:
    """How the NICs of an island share out what its stages send and receive, wherever they are placed.

    Attributes:
        class_island: Island of each link class.
        class_nodes: Nodes of a stage of each link class.
        island_nodes: Nodes of each island.
    """

    class_island: IntArray
    class_nodes: IntArray
    island_nodes: IntArray


@dataclass(frozen=True, slots=True, eq=False)
class Problem:
    """One composition problem.

    Attributes:
        num_atoms: Atoms to cover.
        capacity: Units (GPUs, or larger blocks) of each island.
        num_micro_batches: ``m``.
        pieces: Candidates.
        edges: Transfer times to rank plans with; of stages on different nodes, where there are several.
        edges_at_best: Transfer times that no such placement can undercut, for the lower bound.
        max_extra_in_flight: Largest ``e`` per edge; 0 for an engine with fixed warm-up.
        tied_ns: What keeping a tied embedding equal adds to the step end of the first stage, ``[its class,
            the last stage's class]``, at least; None without one. The last stage's share is in the pieces.
        num_stages: Exact number of stages of the pipeline, or None when it is free.
        same_node: Edges of neighbours that share a node; None where no two can choose to.
        nics: Who shares NICs; None where that is not counted.
        runs: Stages of the pieces that have several.
        atom_kinds: Numbers that are equal for atoms of equal content; empty where they are not told apart,
            which makes bounds no better.
    """

    num_atoms: int
    capacity: tuple[int, ...]
    num_micro_batches: int
    pieces: Pieces
    edges: Edges
    edges_at_best: Edges
    max_extra_in_flight: int
    num_stages: int | None = None
    tied_ns: IntArray | None = None
    same_node: SameNode | None = None
    nics: Nics | None = None
    runs: tuple[tuple[StageTimes, ...], ...] = ()
    atom_kinds: tuple[int, ...] = ()

    def stages_of(self, piece: int) -> tuple[StageTimes, ...]:
        """Returns the stages of a piece, first to last."""
        return piece_stages(self.pieces, self.runs, piece)

    def able_below(self, below_ns: int) -> IntArray:
        """Returns the positions of the pieces that a plan below a time may have: by their own time, and by
        the least window at their place.
        """
        pieces = self.pieces
        able = pieces.occupied_ns + pieces.head_step_ns < below_ns
        able &= pieces.max_in_flight >= np.where(
            pieces.stop == self.num_atoms, 1, min(2, self.num_micro_batches)
        )
        return np.flatnonzero(able)

    def least_waits_ns(self) -> tuple[IntArray, IntArray]:
        """Returns the least ``X`` and ``x`` behind a stage of each link class."""
        known = [self.edges_at_best]
        if self.same_node is not None:
            known.append(self.same_node.edges_at_best)
        both = np.min([edges.round_trip_ns.min(axis=1, initial=FAR_NS) for edges in known], axis=0)
        forward = np.min([edges.one_way_ns.min(axis=1, initial=FAR_NS) for edges in known], axis=0)
        return both, forward

    def extra_helps(
        self, piece: IntArray | int, link_class: IntArray | int, extra: int, pace_floor_ns: int
    ) -> BoolArray:
        """Returns whether ``extra`` micro-batches of extra warm-up are part of the space: whether one less
        leaves the edge slower than stage, link and any plan, even if the stage itself were as slow as any
        plan.

        So a stage has every window that a slower one on the same GPUs has: what is a plan with the slower
        option is one with the faster.

        The edges are those of the ranking for both objectives: the bound must cover the windows that the
        ranking may choose.

        Args:
            piece: In front of the edge.
            link_class: Of the first stage behind it.
            extra: ``e``, at least 1.
            pace_floor_ns: No plan has a shorter period.
        """
        at = (self.pieces.tail_class[piece], link_class)
        time = np.maximum(self.pieces.tail_time_ns[piece], pace_floor_ns)
        floor = np.maximum(time, self.edges.occupancy_ns[at])
        helps: BoolArray = time + self.edges.round_trip_ns[at] > floor * extra
        return helps


@dataclass(frozen=True, slots=True)
class Chain:
    """A composed pipeline: pieces first to last, and the extra warm-up of the edge behind each.

    Attributes:
        pieces: Indices into ``problem.pieces``.
        extra_in_flight: ``e`` of the edge behind each piece; 0 for the last.
        windows: ``w`` of the last stage of each piece, not clipped by ``m``.
        value_ns: What the search that found it says of it (closed form or lower bound).
    """

    pieces: tuple[int, ...]
    extra_in_flight: tuple[int, ...]
    windows: tuple[int, ...]
    value_ns: int
