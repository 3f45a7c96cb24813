"""Improves a plan step by step, judged by the referee alone.

The ranking formula and the bound know transfers by link class; what shares a NIC with what shows only once
stages are placed. So the best plans of the search are starting points: every plan one step away from them
(one window, one stage, one cut or one split or merger of stages different) that could be faster is executed,
the most promising first, and the first that is faster is the next starting point.

Complexity: a round makes at most ``O(stages x cuts x portions^2)`` neighbours; ``budget_tasks`` limits what
is looked at and executed: stages times micro-batches, as the time of an execution grows with them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import accumulate, pairwise, product
from math import prod
from typing import NamedTuple

import numpy as np

from tangram.cost.types import IntArray
from tangram.planner.frontier import chain_of
from tangram.planner.problem import FAR_NS, Chain, Problem, StageTimes
from tangram.simulate.formulas import lower_bound_ns

_MOST_NEIGHBOURS = 3_000
_LOOK_TASKS = 12  # looking at a neighbour takes about as long as executing so many tasks
_MOST_WINDOWS = 250
_BUSY_LINK = 5  # a transfer of more than 1/5 of the slowest stage may queue behind others
_ALTERNATIVES = 3  # pieces of one slice and portion that may replace part of a plan


@dataclass(frozen=True, slots=True)
class Step:
    """A plan as the search sees it: pieces first to last, and the extra warm-up behind each."""

    pieces: tuple[int, ...]
    extras: tuple[int, ...]


class _Piece(NamedTuple):
    """What is asked of a piece again and again; taking it from the table each time costs far more."""

    piece: int
    portion: tuple[int, int, int]  # island, GPUs, link class of its first stage
    island: int
    gpus: int
    num_stages: int
    span: int
    max_in_flight: int
    time_ns: int
    occupied_ns: int


@dataclass
class Neighbourhood:
    """The plans of one problem, and which of them are one step apart.

    Attributes:
        problem: What is composed.
        pace_floor_ns: As the search had it: decides which extra warm-up is part of the space.
    """

    problem: Problem
    pace_floor_ns: int
    _stages: dict[int, tuple[StageTimes, ...]] = field(default_factory=dict)
    _edges: dict[tuple[int, int], tuple[int, int, int, int]] = field(default_factory=dict)
    _extras: dict[tuple[int, int], int] = field(default_factory=dict)
    _best: dict[tuple[int, int, int], list[_Piece]] = field(default_factory=dict)
    _members: dict[tuple[int, int], list[_Piece]] = field(default_factory=dict)
    _pieces: dict[int, _Piece] = field(default_factory=dict)

    def _piece(self, piece: int) -> _Piece:
        if piece not in self._pieces:
            table = self.problem.pieces
            self._by_slice((int(table.start[piece]), int(table.stop[piece])))
        return self._pieces[piece]

    @cached_property
    def _sorted(self) -> tuple[IntArray, IntArray]:
        """All pieces, slice by slice and the fastest of each first; and the slice of each as one number."""
        pieces = self.problem.pieces
        slices = self._number(pieces.start, pieces.stop)
        order = np.lexsort((np.arange(len(pieces)), pieces.step_fill_ns, pieces.period_ns, slices))
        return order, slices[order]

    def _number(self, start: IntArray | int, stop: IntArray | int) -> IntArray:
        return np.asarray(start * (self.problem.num_atoms + 1) + stop)

    def _by_slice(self, span: tuple[int, int]) -> list[_Piece]:
        """Pieces of a slice, fastest first. Of a long model, most slices are never asked for."""
        if span not in self._members:
            order, slices = self._sorted
            number = self._number(*span)
            first, last = (int(np.searchsorted(slices, number, side)) for side in ("left", "right"))
            self._members[span] = self._read(order[first:last])
        return self._members[span]

    def _read(self, idx: IntArray) -> list[_Piece]:
        """Takes pieces from the table, all at once."""
        table = self.problem.pieces
        island, gpus, head_class = (c[idx].tolist() for c in (table.island, table.gpus, table.head_class))
        portions = zip(island, gpus, head_class, strict=True)
        columns = (table.num_stages, table.span, table.max_in_flight, table.time_ns, table.occupied_ns)
        others = (column[idx].tolist() for column in columns)
        found = [_Piece(*row) for row in zip(idx.tolist(), portions, island, gpus, *others, strict=True)]
        self._pieces.update((row.piece, row) for row in found)
        return found

    def _best_of(self, start: int, stop: int, window: int) -> list[_Piece]:
        """Returns the fastest few pieces of a slice on each portion that hold so many micro-batches."""
        key = start, stop, min(window, self.problem.num_micro_batches)
        if key not in self._best:
            taken, kept = Counter[tuple[int, int, int]](), []
            for row in self._by_slice((start, stop)):
                if row.max_in_flight >= key[2]:
                    taken[row.portion] += 1
                    if taken[row.portion] <= _ALTERNATIVES:
                        kept.append(row)
            self._best[key] = kept
        return self._best[key]

    def around(self, step: Step, below_ns: int = FAR_NS) -> Iterator[Step]:
        """Lists the neighbours of a plan that are plans themselves; some may come twice.

        Left out are those of which some piece other than the plan's own takes ``below_ns`` by itself.
        """
        yield from self._other_windows(step)
        for pieces, extras in self._other_pieces(step, below_ns):
            if self._has_stages(pieces):
                yield from self._with_windows(pieces, extras)
        for pieces in self._other_orders(step, below_ns):
            yield from self._with_windows(pieces, step.extras)

    def chain(self, step: Step) -> Chain:
        """The plan as the search would return it."""
        return chain_of(self.problem.pieces, step.pieces, step.extras, 0)

    def quick_bound_ns(self, step: Step) -> int:
        """The least of what :meth:`bound_ns` sees, at once: all micro-batches of a piece, and one of those in
        front of it.
        """
        ahead = bound = 0
        for row in map(self._piece, step.pieces):
            bound = max(bound, ahead + row.occupied_ns)
            ahead += row.time_ns
        return bound

    def _stages_of(self, piece: int) -> tuple[StageTimes, ...]:
        if piece not in self._stages:
            self._stages[piece] = self.problem.stages_of(piece)
        return self._stages[piece]

    def _edge_at_best(self, front: int, behind: int) -> tuple[int, int, int, int]:
        """``x``, ``X``, ``o`` and ``n`` of an edge that no placement can undercut."""
        key = (front, behind)
        if key not in self._edges:
            pieces, same_node = self.problem.pieces, self.problem.same_node
            at = int(pieces.tail_class[front]), int(pieces.head_class[behind])
            edges = self.problem.edges_at_best
            parts = int(pieces.tail_on_node[front]), int(pieces.head_on_node[behind])
            island = int(pieces.island[front])
            one_island = min(parts) > 0 and island == pieces.island[behind]
            if same_node is not None and one_island and sum(parts) <= same_node.node_gpus[island]:
                edges = same_node.edges_at_best
            columns = (edges.one_way_ns, edges.round_trip_ns, edges.occupancy_ns, edges.nic_ns)
            x, both, occupancy, nic = (int(column[at]) for column in columns)
            self._edges[key] = x, both, occupancy, nic
        return self._edges[key]

    def bound_ns(self, step: Step) -> int:
        """A time that no placement of the plan beats, but for the edges inside of runs."""
        f, b, u, x, big_x, o, n, extras = ([] for _ in range(8))
        for place, piece in enumerate(step.pieces):
            for stage in self._stages_of(piece):
                f.append(stage.forward_ns)
                b.append(stage.backward_ns)
                u.append(stage.step_ns)
                x.append(stage.one_way_ns)
                big_x.append(stage.round_trip_ns)
                o.append(stage.occupancy_ns)
                n.append(0)
                extras.append(stage.extra_in_flight)
            if place + 1 < len(step.pieces):
                x[-1], big_x[-1], o[-1], n[-1] = self._edge_at_best(piece, step.pieces[place + 1])
                extras[-1] = step.extras[place]
        windows = [1]
        for extra in reversed(extras[:-1]):
            windows.append(windows[-1] + 1 + extra)
        m = self.problem.num_micro_batches
        return lower_bound_ns(f, b, u, x[:-1], big_x[:-1], windows[::-1], m, o[:-1], n[:-1])

    def _has_stages(self, pieces: tuple[int, ...]) -> bool:
        """Whether a plan has as many stages as are asked for."""
        num_stages = self.problem.num_stages
        return num_stages is None or num_stages == sum(self._piece(piece).num_stages for piece in pieces)

    def _free(self, pieces: Sequence[int]) -> list[int]:
        """What some pieces leave of each island."""
        left = list(self.problem.capacity)
        for row in map(self._piece, pieces):
            left[row.island] -= row.gpus
        return left

    def _legal(self, step: Step) -> bool:
        """Whether the windows are in the space and in memory."""
        rows = [self._piece(piece) for piece in step.pieces]
        return self._allows(rows, step.extras, self._most_extras(step.pieces))

    def _allows(self, rows: Sequence[_Piece], extras: Sequence[int], most: Sequence[int]) -> bool:
        """The same, where it is known what is in the space."""
        in_space = all(0 <= extra <= limit for extra, limit in zip(extras, most, strict=False))
        return in_space and self._fits(rows, extras)

    def _fits(self, rows: Sequence[_Piece], extras: Sequence[int]) -> bool:
        """Whether every piece holds as many micro-batches as its place means."""
        window, m = 0, self.problem.num_micro_batches
        for row, extra in zip(reversed(rows), reversed(extras), strict=True):
            window += 1 + extra
            if row.max_in_flight < window and row.max_in_flight < m:
                return False
            window += row.span
        return True

    def _most_extras(self, pieces: Sequence[int]) -> list[int]:
        """The largest extra warm-up behind each piece but the last that is part of the space."""
        return [self._most_extra(front, self._piece(behind).portion[2]) for front, behind in pairwise(pieces)]

    def _most_extra(self, front: int, head_class: int) -> int:
        key = (front, head_class)
        if key not in self._extras:
            most = 0
            while most < self.problem.max_extra_in_flight:
                if not self.problem.extra_helps(front, head_class, most + 1, self.pace_floor_ns):
                    break
                most += 1
            self._extras[key] = most
        return self._extras[key]

    def _other_windows(self, step: Step) -> Iterator[Step]:
        for place in range(len(step.extras) - 1):
            for extra in range(self.problem.max_extra_in_flight + 1):
                extras = list(step.extras)
                extras[place] = extra
                other = Step(step.pieces, tuple(extras))
                if extra != step.extras[place] and self._legal(other):
                    yield other

    def all_windows(self, step: Step) -> list[Step]:
        """Lists all windows of a plan whose links are busy, if they are not very many: where transfers queue,
        a window more or less may help only together with another one.
        """
        edges = [self._edge_at_best(a, b) for a, b in pairwise(step.pieces)]
        slowest = max(int(self.problem.pieces.tail_time_ns[piece]) for piece in step.pieces)
        if not any(_BUSY_LINK * edge[2] > slowest for edge in edges):
            return []
        most = self._most_extras(step.pieces)
        if prod(extra + 1 for extra in most) > _MOST_WINDOWS:
            return []
        extras = product(*(range(extra + 1) for extra in most))
        return [other for found in extras if self._legal(other := Step(step.pieces, (*found, 0)))]

    def _with_windows(self, pieces: tuple[int, ...], extras: tuple[int, ...]) -> Iterator[Step]:
        """The extra warm-up as it was, none, and the most that memory holds, edge by edge from the back."""
        rows, found = [self._piece(piece) for piece in pieces], [0] * len(pieces)
        if not self._fits(rows, found):
            return
        most = self._most_extras(pieces)
        if self._allows(rows, extras, most):
            yield Step(pieces, extras)
        yield Step(pieces, tuple(found))
        for extra in range(1, self.problem.max_extra_in_flight + 1):
            before = found.copy()
            for place in reversed(range(len(most))):
                less = found[place]
                if extra <= most[place]:
                    found[place] = extra
                    if not self._fits(rows, found):
                        found[place] = less
            if found != before:
                yield Step(pieces, tuple(found))

    def _other_pieces(self, step: Step, below_ns: int) -> Iterator[tuple[tuple[int, ...], tuple[int, ...]]]:
        """Other pieces for one stage or two neighbours, on the GPUs that the others leave, and the extra
        warm-up of the others as it was.
        """
        pieces, extras, spans = step.pieces, step.extras, self._spans(step)
        for place, span in enumerate(spans):
            before, after = pieces[:place], pieces[place + 1 :]
            free = self._free(before + after)
            for other in self._single(span, free, below_ns):
                yield (*before, other, *after), extras
            for pair in self._pairs(*span, self._window(after), free, below_ns):
                yield (*before, *pair, *after), (*extras[:place], 0, *extras[place:])
        for place in range(len(pieces) - 1):
            before, after = pieces[:place], pieces[place + 2 :]
            free = self._free(before + after)
            start, stop = spans[place][0], spans[place + 1][1]
            for merged in self._single((start, stop), free, below_ns):
                yield (*before, merged, *after), (*extras[:place], *extras[place + 1 :])
            for pair in self._pairs(start, stop, self._window(after), free, below_ns):
                yield (*before, *pair, *after), extras

    def _other_orders(self, step: Step, below_ns: int = FAR_NS) -> Iterator[tuple[int, ...]]:
        """Two stages that trade portions, and one stage that moves to another place with all it has."""
        portions, spans = [self._portion(piece) for piece in step.pieces], self._spans(step)
        count = len(portions)
        for i in range(count):
            for j in range(i + 1, count):
                if portions[i] != portions[j]:
                    traded = list(portions)
                    traded[i], traded[j] = portions[j], portions[i]
                    yield from self._fastest(spans, traded, below_ns)
        for i in range(count):
            for j in range(count):
                if abs(i - j) < 2:
                    continue  # neighbours in any order are pairs
                order = [k for k in range(count) if k != i]
                order.insert(j, i)
                lengths = [spans[k][1] - spans[k][0] for k in order]
                cuts = [0, *accumulate(lengths)]
                yield from self._fastest(list(pairwise(cuts)), [portions[k] for k in order], below_ns)

    def _fastest(
        self, spans: Sequence[tuple[int, int]], portions: Sequence[tuple[int, int, int]], below_ns: int
    ) -> Iterator[tuple[int, ...]]:
        """The fastest pieces for these slices on these portions that hold what they must at their places, if
        there are any.
        """
        pieces: tuple[int, ...] = ()
        window = 1
        for span, portion in reversed(list(zip(spans, portions, strict=True))):
            able = next((row for row in self._best_of(*span, window) if row.portion == portion), None)
            if able is None or able.occupied_ns >= below_ns:
                return
            pieces = (able.piece, *pieces)
            window += able.num_stages
        yield pieces

    def _window(self, behind: Sequence[int]) -> int:
        """Returns how many micro-batches a piece holds at least in front of others."""
        return 1 + sum(self._piece(piece).num_stages for piece in behind)

    def _spans(self, step: Step) -> list[tuple[int, int]]:
        table = self.problem.pieces
        return [(int(table.start[p]), int(table.stop[p])) for p in step.pieces]

    def _portion(self, piece: int) -> tuple[int, int, int]:
        return self._piece(piece).portion

    def _single(self, span: tuple[int, int], free: Sequence[int], below_ns: int) -> Iterator[int]:
        """Lists the pieces of a slice that fit what is free."""
        for row in self._by_slice(span):
            if row.gpus <= free[row.island] and row.occupied_ns < below_ns:
                yield row.piece

    def _pairs(
        self, start: int, stop: int, window: int, free: Sequence[int], below_ns: int
    ) -> Iterator[tuple[int, int]]:
        """Lists two pieces for a slice on what is free; the second one holds so many micro-batches."""
        for cut in range(start + 1, stop):
            for second in self._best_of(cut, stop, window):
                if second.gpus > free[second.island] or second.occupied_ns >= below_ns:
                    continue
                for first in self._best_of(start, cut, window + second.num_stages):
                    gpus = first.gpus + (second.gpus if first.island == second.island else 0)
                    if gpus <= free[first.island] and first.occupied_ns < below_ns:
                        yield first.piece, second.piece


def polish(
    around: Neighbourhood, start: Step, start_ns: int, execute: Callable[[Chain], int], budget_tasks: int
) -> int:
    """Improves a plan; whoever executes the plans keeps the best. Returns what is left of the budget.

    Args:
        around: Neighbours.
        start, start_ns: A plan and its time.
        execute: The referee.
        budget_tasks: How many tasks of stages may be executed, or neighbours looked at in their place.
    """
    m, seen = around.problem.num_micro_batches, {start}
    best, best_ns = start, start_ns
    improved = True
    while improved and budget_tasks > 0:
        improved = False
        looked_at, promising = _promising(around, best, best_ns, seen)
        budget_tasks -= _LOOK_TASKS * looked_at
        for bound_ns, step in promising:
            if bound_ns >= best_ns or budget_tasks <= 0:
                break
            seen.add(step)
            chain = around.chain(step)
            budget_tasks -= m * len(step.pieces)
            time_ns = execute(chain)
            if time_ns < best_ns:
                best, best_ns, improved = step, time_ns, True
                break
    return budget_tasks


def sweep(around: Neighbourhood, start: Step, execute: Callable[[Chain], int], budget_tasks: int) -> int:
    """Executes a plan with all windows it can have; returns what is left of the budget."""
    cost = around.problem.num_micro_batches * len(start.pieces)
    for step in around.all_windows(start):
        if budget_tasks <= 0:
            break
        if step != start:
            budget_tasks -= cost
            execute(around.chain(step))
    return budget_tasks


def _promising(
    around: Neighbourhood, step: Step, below_ns: int, seen: set[Step]
) -> tuple[int, list[tuple[int, Step]]]:
    """Returns how many neighbours were looked at, and those not seen yet whose bound is below a time, the
    lowest first.
    """
    found: dict[Step, int] = {}
    looked_at = 0
    for other in around.around(step, below_ns):
        looked_at += 1
        if other in seen or other in found:
            continue
        if around.quick_bound_ns(other) >= below_ns:
            continue
        bound_ns = around.bound_ns(other)
        if bound_ns < below_ns:
            found[other] = bound_ns
        if len(found) == _MOST_NEIGHBOURS:
            break
    return looked_at, sorted(
        ((ns, other) for other, ns in found.items()), key=lambda e: (e[0], e[1].pieces, e[1].extras)
    )
