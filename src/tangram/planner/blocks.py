"""Plans for clusters of any size, with one block of consecutive stages per island.

Where the GPUs left of every island are too many states, this looks at fewer plans: each island's stages
follow each other, and stages are as long as a pace allows. Then it is enough to know, for the islands that
are done, the GPUs used of the present one, and the window of the first stage, how far towards the front the
model is covered: further is never worse (a coverage programme). Given a pace and a limit on step ends, that
decides whether there is such a plan, and the fewest stages that do. The caller tries paces and limits, and
simulates.

The order of the islands is part of the programme while they are few (sets of finished islands); with more,
those whose stages hold few micro-batches in flight come last, where windows are small.

What is left out: islands that recur, stages shorter than the pace allows, portions that are no multiples of
the island's unit. So plans are good rather than best; how good, the bound says
(:mod:`tangram.planner.dual`).

Complexity: ``O(sets x units x sizes)`` numpy operations on arrays of windows, 2^(K-1) K sets for K islands.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from tangram.cost.types import BoolArray, IntArray
from tangram.planner.frontier import chain_of
from tangram.planner.problem import FAR_NS, Chain, Problem

_MOST_SETS = 6  # islands whose order is searched
_MOST_UNITS = 24  # per island; stages on parts of a unit are left out
_IDLE, _ENTRY = -2, -1


@dataclass(frozen=True, slots=True, eq=False)
class _Reach:
    """How far stages of one size reach: ``front[w, j]`` is the least start of a piece that ends at cut
    ``j`` and may have window ``w`` at its last stage; more than the number of atoms where there is none.
    """

    units: int
    extra: int
    span: int
    front: IntArray


@dataclass(frozen=True, slots=True, eq=False)
class _Block:
    """The coverage of one island after some set of others; arrays ``(units + 1, windows + 1)``.

    Attributes:
        cut: How far the model is covered from the back.
        chosen: Which reach led there; ``_IDLE`` where a unit is left out, ``_ENTRY`` where the block begins.
    """

    cut: IntArray
    chosen: IntArray


@dataclass(slots=True, eq=False)
class BlockPlanner:
    """Looks for block plans of one problem.

    Attributes:
        problem: What to compose.
        below_ns: Pieces that no plan below this time may have are left out.
    """

    problem: Problem
    below_ns: int
    _kept: IntArray = field(init=False)
    _longest: IntArray = field(init=False)
    _round_trip: IntArray = field(init=False)
    _windows: int = field(init=False)
    _unit: list[int] = field(init=False)
    _by_island: list[IntArray] = field(init=False)

    def __post_init__(self) -> None:
        problem, pieces = self.problem, self.problem.pieces
        m, num = problem.num_micro_batches, problem.num_atoms
        self._unit = [_unit_of(problem, island) for island in range(len(problem.capacity))]
        able = pieces.occupied_ns + pieces.head_step_ns < self.below_ns
        able &= pieces.gpus % np.array(self._unit)[pieces.island] == 0
        self._kept = np.flatnonzero(able)
        islands = pieces.island[self._kept]
        self._by_island = [np.flatnonzero(islands == island) for island in range(len(self._unit))]
        self._windows = min(m, num * (1 + problem.max_extra_in_flight))
        self._longest = np.minimum(pieces.max_in_flight[self._kept], self._windows)
        own = np.diagonal(problem.edges.round_trip_ns)
        self._round_trip = np.where(pieces.stop == num, 0, own[pieces.tail_class])[self._kept]

    def plan(
        self, pace_ns: int, step_ns: int, order: tuple[int, ...] | None = None
    ) -> tuple[Chain | None, int, tuple[int, ...]]:
        """Looks for a plan of a pace.

        Args:
            pace_ns: No stage is slower.
            step_ns: No step end is longer.
            order: Islands from the back; None searches for it.

        Returns:
            A plan of few stages, or None; how many atoms from the front are not covered; and the order of the
            islands of the plan.
        """
        usable = (self.problem.pieces.period_ns <= pace_ns) & (self.problem.pieces.head_step_ns <= step_ns)
        usable = usable[self._kept]
        tables = [self._reaches(island, usable, pace_ns) for island in range(len(self._unit))]
        if order is None and len(self._unit) > _MOST_SETS:
            order = self._by_stamina(usable)
        if order is None:
            cover, blocks, way = self._over_sets(tables)
        else:
            cover, blocks, way = self._in_order(tables, order)
        if cover.min():
            return None, int(cover.min()), ()
        chain, islands = self._trace(tables, blocks, way, int(cover.argmin()), usable)
        return chain, 0, islands

    def _reaches(self, island: int, usable: BoolArray, pace_ns: int) -> list[_Reach]:
        """Makes the tables of one island, of all sizes, extra warm-ups and kinds of pieces."""
        pieces, most = self.problem.pieces, self.problem.max_extra_in_flight
        own = self._by_island[island]
        at = own[usable[own]]
        found: list[_Reach] = []
        if not len(at):
            return found
        piece = self._kept[at]
        extra = np.maximum(-(-(pieces.tail_time_ns[piece] + self._round_trip[at]) // pace_ns) - 1, 0)
        spans = self._windows + 1
        kinds = pieces.gpus[piece] // self._unit[island] * spans + np.minimum(
            pieces.span[piece], self._windows
        )
        for kind in np.flatnonzero(np.bincount(kinds)).tolist():
            units, span = divmod(kind, spans)
            same = kinds == kind
            for level in range(most + 1):
                needs = same & (extra <= level)
                if not (same & (extra == level)).any():
                    continue  # no piece is new at this level
                found.append(_Reach(units, level, span, self._front(at[needs])))
        return found

    def _front(self, at: IntArray) -> IntArray:
        pieces, num = self.problem.pieces, self.problem.num_atoms
        start, stop = pieces.start[self._kept[at]], pieces.stop[self._kept[at]]
        front = np.full((self._windows + 1, num + 2), num + 1, dtype=np.int64)
        np.minimum.at(front, (self._longest[at], stop), start)
        found: IntArray = np.minimum.accumulate(front[::-1], axis=0)[::-1]
        return found

    def _root(self) -> IntArray:
        cover = np.full(self._windows + 1, self.problem.num_atoms + 1, dtype=np.int64)
        cover[0] = self.problem.num_atoms
        return cover

    def _block(self, island: int, reaches: list[_Reach], entry: IntArray) -> _Block:
        """Puts stages of one island in front of what is covered, per window of the first stage."""
        units, most, num = (
            self.problem.capacity[island] // self._unit[island],
            self._windows,
            self.problem.num_atoms,
        )
        cut = np.full((units + 1, most + 1), num + 1, dtype=np.int64)
        chosen = np.full((units + 1, most + 1), _ENTRY, dtype=np.int64)
        cut[0] = entry
        windows = np.arange(most + 1)
        for used in range(1, units + 1):
            cut[used], chosen[used] = cut[used - 1], _IDLE
            for idx, reach in enumerate(reaches):
                rise = 1 + reach.extra + reach.span
                if reach.units > used or rise > most:
                    continue
                behind = cut[used - reach.units, : most + 1 - rise]
                tail = windows[1 + reach.extra : most + 1 - reach.span]
                front = reach.front[tail, behind]
                if reach.extra:
                    front = np.where(behind == num, num + 1, front)  # nothing is behind the last stage
                better = front < cut[used, rise:]
                cut[used, rise:] = np.where(better, front, cut[used, rise:])
                chosen[used, rise:] = np.where(better, idx, chosen[used, rise:])
        return _Block(cut, chosen)

    def _over_sets(
        self, tables: list[list[_Reach]]
    ) -> tuple[IntArray, dict[tuple[int, int], _Block], dict[int, IntArray]]:
        """The best cover by all islands in any order; blocks by (set, last island), and the last island of
        each set per window.
        """
        islands = range(len(tables))
        covers, blocks, last = {0: self._root()}, {}, {}
        for done in range(1, 1 << len(tables)):
            best = np.full(self._windows + 1, self.problem.num_atoms + 2, dtype=np.int64)
            chosen = np.zeros(self._windows + 1, dtype=np.int64)
            for island in islands:
                if not done >> island & 1:
                    continue
                block = self._block(island, tables[island], covers[done & ~(1 << island)])
                blocks[done, island] = block
                better = block.cut[-1] < best
                best = np.where(better, block.cut[-1], best)
                chosen = np.where(better, island, chosen)
            covers[done], last[done] = best, chosen
        return covers[(1 << len(tables)) - 1], blocks, last

    def _in_order(
        self, tables: list[list[_Reach]], order: tuple[int, ...]
    ) -> tuple[IntArray, dict[tuple[int, int], _Block], dict[int, IntArray]]:
        """The same for one order, from the back."""
        cover, done = self._root(), 0
        blocks, last = {}, {}
        for island in order:
            done |= 1 << island
            block = self._block(island, tables[island], cover)
            blocks[done, island], cover = block, block.cut[-1]
            last[done] = np.full(self._windows + 1, island, dtype=np.int64)
        return cover, blocks, last

    def _by_stamina(self, usable: BoolArray) -> tuple[int, ...]:
        """Islands from the back: those first whose stages hold few micro-batches in flight."""
        island = self.problem.pieces.island[self._kept]
        held = [
            float(self._longest[usable & (island == idx)].mean()) if (usable & (island == idx)).any() else 0.0
            for idx in range(len(self._unit))
        ]
        return tuple(sorted(range(len(held)), key=lambda idx: (held[idx], idx)))

    def _trace(
        self,
        tables: list[list[_Reach]],
        blocks: dict[tuple[int, int], _Block],
        last: dict[int, IntArray],
        window: int,
        usable: BoolArray,
    ) -> tuple[Chain, tuple[int, ...]]:
        """Follows a cover back to its pieces, first to last, and the order of its islands, from the back."""
        pieces, extras, islands = [], [], []
        done = max(last)
        while done:
            island = int(last[done][window])
            block, used = blocks[done, island], self.problem.capacity[island] // self._unit[island]
            islands.append(island)
            done &= ~(1 << island)
            while used > 0:
                idx = int(block.chosen[used, window])
                if idx == _IDLE:
                    used -= 1
                    continue
                if idx == _ENTRY:
                    break
                reach, start = tables[island][idx], int(block.cut[used, window])
                behind = window - 1 - reach.extra - reach.span
                used -= reach.units
                stop = int(block.cut[used, behind])
                pieces.append(self._piece(island, reach, start, stop, window - reach.span, usable))
                extras.append(reach.extra)
                window = behind
        return chain_of(self.problem.pieces, pieces, extras, 0), tuple(reversed(islands))

    def _piece(
        self, island: int, reach: _Reach, start: int, stop: int, window: int, usable: BoolArray
    ) -> int:
        """The piece with the least time of those that a reach stands for, then the shortest step end."""
        pieces = self.problem.pieces
        own = self._by_island[island]
        own = own[pieces.start[self._kept[own]] == start]
        own = own[usable[own] & (self._longest[own] >= window) & (pieces.stop[self._kept[own]] == stop)]
        idx = self._kept[own]
        idx = idx[(pieces.gpus[idx] == reach.units * self._unit[island]) & (pieces.span[idx] == reach.span)]
        order: IntArray = np.lexsort((idx, pieces.head_step_ns[idx], pieces.time_ns[idx]))
        return int(idx[order[0]])


def _unit_of(problem: Problem, island: int) -> int:
    """The least size of stages of an island of which it holds at most a certain number; 1 where none is."""
    capacity = problem.capacity[island]
    sizes: list[int] = np.unique(problem.pieces.gpus[problem.pieces.island == island]).tolist()
    return next((size for size in sizes if capacity // size <= _MOST_UNITS), max([1, *sizes]))


def uncovered(problem: Problem) -> int:
    """Returns how many atoms of a problem no block plan can cover, time aside."""
    slowest = int(problem.pieces.period_ns.max())
    planner = BlockPlanner(problem, FAR_NS)
    return planner.plan(slowest, int(problem.pieces.head_step_ns.max()))[1]
