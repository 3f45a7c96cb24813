"""The exact search: labels over suffixes of the model, from the back, guided by the relaxed programme.

A label says: atoms ``[j, N)`` are covered by pieces that use so many units of each island, the first stage
of them has window ``w`` and a link class, and the suffix has the values ``(c0, c1, ...)``. The meaning of the
first three depends on the objective:

* ``CLOSED_FORM``: ``A = sum (t + X)``, ``U`` (the fill with its step end) and the period ``P`` so far; a
  complete plan takes ``U + (m - 1) P``.
* ``LOWER_BOUND``: ``A``, ``V`` and ``W`` of the recursion in
  :func:`tangram.simulate.formulas.lower_bound_ns`; a complete plan takes at least ``W``.

The others are about the node of the first stage: for how long one micro-batch keeps its NICs busy with the
edge behind the stages there, and how many GPUs are taken by stages that follow each other there; and, with a
tied embedding, the same two of the node of the last stage (:mod:`tangram.planner.sharing`). Where the NICs of
an island may set the pace, one more says for how long one micro-batch keeps them busy, all nodes together.

All values are monotone in the label, so dropping a label that another one of the same state dominates is
exact, and so is dropping one whose value plus the relaxed rest reaches the cut-off. Cuts are visited in
descending order; when one is visited, every label that will ever lie there does.

Complexity: the number of labels times the pieces that end at a cut, as a few numpy operations per cut. The
number of labels is what the guide leaves: usually some hundreds to some ten thousands.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from tangram.cost.types import BoolArray, IntArray
from tangram.planner.labels import Labels, joined, merged, undominated
from tangram.planner.lattice import PrefixBound
from tangram.planner.problem import FAR_NS, Chain, Edges, Pieces, Problem
from tangram.planner.sharing import FULL, Sharing
from tangram.planner.trails import Trails

_CHUNK_CELLS = 1 << 19
_BEAM_CHILDREN = 1
_NUM_VALUES = 7
_MOST_TRANSFERS = 8  # over NICs of one island per micro-batch, about


class Objective(StrEnum):
    """What a search minimises."""

    CLOSED_FORM = "closed form"
    LOWER_BOUND = "lower bound"


class _Pairs(NamedTuple):
    """Pieces to put in front of labels; arrays of shape ``(num_pairs,)``.

    Ordered by ``extra``, for each of them first those that are not ``together``.
    """

    row: IntArray  # of the label
    piece: IntArray
    window: IntArray  # of the last stage of the piece
    extra: IntArray  # warm-up of the edge between the two
    together: BoolArray  # whether its ends are on one node
    left: IntArray  # code of the GPUs that are left then

    def take(self, idx: IntArray) -> _Pairs:
        """Returns the pairs at these positions."""
        return _Pairs(
            self.row[idx],
            self.piece[idx],
            self.window[idx],
            self.extra[idx],
            self.together[idx],
            self.left[idx],
        )


@dataclass(slots=True)
class SearchResult:
    """What a search found.

    Attributes:
        chains: Complete plans below the cut-off, best first; none of a merged search.
        lowest_ns: The least value of a complete plan; None when there is none below the cut-off.
        num_labels: Labels that were made.
        exhausted: Whether everything below the cut-off was seen (no beam cut, no limit reached).
        gave_up: Whether the label limit was reached.
        pieces: Those of all complete plans, of those beyond ``max_chains`` too; None but of a listing.
    """

    chains: list[Chain]
    lowest_ns: int | None
    num_labels: int
    exhausted: bool
    gave_up: bool
    pieces: IntArray | None = None


@dataclass(slots=True)
class FrontierSearch:
    """One search over one problem.

    Attributes:
        problem: What to compose.
        guide: The relaxed programme; pieces slower than its period were left out of it, so ``cutoff_ns``
            must justify them.
        objective: What to minimise.
        cutoff_ns: Only plans strictly below are of interest; tightens as plans are found unless
            ``margin_frac`` keeps more.
        margin_frac: Keep looking for plans up to this much above the best one found (finalists for the
            simulator).
        beam: Keep only so many labels per cut: quick, not exact.
        dominance: Drop dominated labels; without it every plan below the cut-off is listed.
        label_limit: Give up (``exhausted`` false) after so many labels.
        max_chains: Keep the best so many plans.
        pace_floor_ns: No plan below the cut-off has a shorter period; extra warm-up that helps only below
            it is not tried.
        merge: One label per GPUs used and class, with the least of every value and windows from the least
            to the widest: a weaker bound, and never many labels.
        must_use: An island that every plan has to use, or None. A beam then keeps labels with and without
            it apart.
    """

    problem: Problem
    guide: PrefixBound
    objective: Objective
    cutoff_ns: int
    margin_frac: float = 0.0
    beam: int | None = None
    dominance: bool = True
    label_limit: int | None = None
    max_chains: int = 64
    pace_floor_ns: int = 0
    merge: bool = False
    must_use: int | None = None
    _trails: Trails = field(default_factory=Trails)
    _exhausted: bool = True
    _taken: IntArray = field(init=False)
    _most_nic_ns: IntArray = field(init=False)
    _sharing: Sharing = field(init=False)
    _shared_nics: IntArray = field(init=False)
    _edge_ns: IntArray = field(init=False)

    def __post_init__(self) -> None:
        pieces = self.problem.pieces
        self._taken = pieces.gpus * self.guide.lattice.strides[pieces.island]
        self._most_nic_ns = self._edges(together=False).nic_ns.max(axis=0, initial=0)
        self._sharing = Sharing(self.problem)
        self._shared_nics = self._islands_with_busy_nics()
        kinds = [False] if self.problem.same_node is None else [False, True]
        edges = [self._edges(together=together) for together in kinds]
        columns = [[e.one_way_ns, e.round_trip_ns, e.occupancy_ns, e.nic_ns] for e in edges]
        self._edge_ns = np.array(columns).swapaxes(0, 1)

    def _islands_with_busy_nics(self) -> IntArray:
        """Islands whose NICs may set the pace: where a handful of transfers per micro-batch exceeds the least
        period of any plan.
        """
        nics, nic_ns = self.problem.nics, self._edges(together=False).nic_ns
        if nics is None:
            return np.zeros(0, dtype=np.int64)
        most = np.zeros(len(nics.island_nodes), dtype=np.int64)
        np.maximum.at(most, nics.class_island, np.maximum(nic_ns.max(axis=0), nic_ns.max(axis=1)))
        return np.flatnonzero(_MOST_TRANSFERS * most > self.pace_floor_ns * nics.island_nodes)

    def run(self) -> SearchResult:
        """Searches from the last atom to the first."""
        problem = self.problem
        by_stop = _group_by(problem.pieces.stop, problem.num_atoms)
        buckets: list[list[Labels]] = [[] for _ in range(problem.num_atoms + 1)]
        buckets[problem.num_atoms] = [self._root()]
        for cut in range(problem.num_atoms, 0, -1):
            if not buckets[cut]:
                continue
            labels = self._settle(buckets[cut])
            buckets[cut] = []
            idx = self._useful(by_stop[cut])
            if len(labels) and len(idx):
                self._expand(labels, idx, buckets, first=cut == problem.num_atoms)
            if self._gives_up():
                self._exhausted = False
                break
        lowest = min((value for value, _ in self._trails.complete), default=None)
        chains = [] if self.merge else self._chains()
        pieces = None if self.dominance else self._trails.used_pieces()
        num_labels = self._trails.num_labels
        return SearchResult(chains, lowest, num_labels, self._exhausted, self._gives_up(), pieces)

    def _gives_up(self) -> bool:
        return self.label_limit is not None and self._trails.num_labels > self.label_limit

    def _root(self) -> Labels:
        zero = np.zeros(1, dtype=np.int64)
        used = np.zeros((1, len(self.problem.capacity)), dtype=np.int64)
        values = np.array([[0, 0, 0, 0, FULL, -1, 0, *[0] * len(self._shared_nics)]], dtype=np.int64)
        return Labels(used, zero, zero, zero, zero, zero, values, zero, zero - 1)

    def _settle(self, parts: list[Labels]) -> Labels:
        """Joins the labels of a cut, drops those beyond the cut-off and the dominated ones."""
        labels = parts[0] if len(parts) == 1 else joined(parts)
        labels = labels.take(labels.rest_ns < self.cutoff_ns)
        if self.merge and len(labels) > 1:
            return merged(labels, self._keys(labels))
        if self.dominance and len(labels) > 1:
            labels = labels.take(undominated(labels, self._keys(labels)))
        if self.beam is None or len(labels) <= self.beam:
            return labels
        self._exhausted = False
        order = np.lexsort((labels.uid, labels.rest_ns))
        if self.must_use is None:
            return labels.take(np.sort(order[: self.beam]))
        uses = labels.used[order, self.must_use] > 0
        return labels.take(np.sort(np.concatenate([order[uses][: self.beam], order[~uses][: self.beam]])))

    def _keys(self, labels: Labels) -> IntArray:
        code = labels.used @ self.guide.lattice.strides
        key = code * (int(labels.link_class.max()) + 1) + labels.link_class
        if not self.merge:
            key = key * (int(labels.window.max()) + 1) + labels.window
        if self.problem.num_stages is not None:
            key = key * (self.problem.num_stages + 1) + labels.num_stages
        if self.problem.tied_ns is not None:
            key = key * len(self.problem.tied_ns) + labels.tail_class
            key = key * 2 + (labels.values[:, 5] < 0)
        return key

    def _useful(self, idx: IntArray) -> IntArray:
        """Pieces whose own pace does not break the cut-off."""
        pieces, m = self.problem.pieces, self.problem.num_micro_batches
        if self.objective is Objective.CLOSED_FORM:
            least = pieces.step_fill_ns[idx] + (m - 1) * pieces.period_ns[idx]
        else:
            least = pieces.occupied_ns[idx] + pieces.head_step_ns[idx]
        return idx[least < self.cutoff_ns]

    def _expand(self, labels: Labels, idx: IntArray, buckets: list[list[Labels]], *, first: bool) -> None:
        idx = self._in_reach(labels, idx)
        rows = max(1, _CHUNK_CELLS // max(1, len(idx)))
        for lo in range(0, len(labels), rows):
            if self._gives_up() or not len(idx):
                return
            chunk = labels if rows >= len(labels) else labels.take(np.arange(lo, min(lo + rows, len(labels))))
            self._expand_chunk(chunk, idx, buckets, first=first)

    def _in_reach(self, labels: Labels, idx: IntArray) -> IntArray:
        """Returns which pieces may be of use in front of any of the labels: of one with the least of every
        value and of GPUs. Most are not, and need no look at label by label.
        """
        pieces, used = self.problem.pieces, labels.used.min(axis=0)
        left = self.guide.lattice.capacity - used
        idx = idx[pieces.gpus[idx] <= left[pieces.island[idx]]]
        values, row = labels.values.min(axis=0)[None], np.zeros(len(idx), dtype=np.int64)
        window = np.full(len(idx), labels.window.min() + 1)
        codes = self.guide.lattice.left(used) - self._taken[idx]
        return idx[self._coverable(values, row, idx, window, codes)]

    def _expand_chunk(
        self, labels: Labels, idx: IntArray, buckets: list[list[Labels]], *, first: bool
    ) -> None:
        problem, pieces = self.problem, self.problem.pieces
        island, gpus = pieces.island[idx], pieces.gpus[idx]
        fits = labels.used[:, island] + gpus <= self.guide.lattice.capacity[island]
        if problem.num_stages is not None:
            fits &= self._room_for_stages(labels, idx, problem.num_stages)
        extras = 1 if first or self.merge else problem.max_extra_in_flight + 1
        classes, class_of = np.unique(labels.link_class, return_inverse=True)
        found: list[tuple[IntArray, IntArray, IntArray, IntArray]] = []
        for extra in range(extras):
            if extra:
                helps = problem.extra_helps(idx, classes[:, None], extra, self.pace_floor_ns)
                if not helps.any():
                    break
                fits &= helps[class_of]
            window = np.minimum(labels.window + 1 + extra, problem.num_micro_batches)
            able = fits & (window[:, None] <= pieces.max_in_flight[idx])
            able &= window[:, None] >= pieces.min_in_flight[idx]
            row, column = np.nonzero(able)
            found.append((row, idx[column], window[row], np.full(len(row), extra)))
        row, piece, window, extra_of = (np.concatenate(part) for part in zip(*found, strict=True))
        left = self.guide.lattice.left(labels.used)[row] - self._taken[piece]
        apart = _Pairs(row, piece, window, extra_of, np.zeros(len(row), dtype=np.bool_), left)
        apart = apart.take(self._coverable(labels.values, row, piece, window, left))
        if len(apart.row):
            self._emit(labels, self._with_shared_nodes(labels, apart), buckets, first=first)

    def _with_shared_nodes(self, labels: Labels, apart: _Pairs) -> _Pairs:
        """Adds the pairs of which both ends may be on one node."""
        link_class, taken = labels.link_class[apart.row], labels.values[apart.row, 4]
        shared = self._sharing.may_share(apart.piece, link_class, taken)
        if not len(shared):
            return apart
        both = apart.take(np.concatenate([np.arange(len(apart.row)), shared]))
        both.together[len(apart.row) :] = True
        return both.take(np.lexsort((both.together, both.extra)))

    def _room_for_stages(self, labels: Labels, idx: IntArray, num_stages: int) -> BoolArray:
        """Whether, in front of each piece, a pinned number of stages can still be made up.

        Each of those left needs an atom, and as many GPUs as the smallest stage. Without this a beam fills up
        with labels whose first stages are too large for sixteen of them to fit sixteen GPUs.
        """
        pieces, capacity = self.problem.pieces, self.guide.lattice.capacity
        still = num_stages - labels.num_stages[:, None] - pieces.num_stages[idx]
        free = (capacity.sum() - labels.used.sum(axis=1))[:, None] - pieces.gpus[idx]
        smallest = (pieces.gpus // pieces.num_stages).min()
        room: BoolArray = (still <= pieces.start[idx]) & (still * smallest <= free)
        return room & (still >= np.minimum(pieces.start[idx], 1))

    def _coverable(
        self, values: IntArray, row: IntArray, piece: IntArray, window: IntArray, left: IntArray
    ) -> IntArray:
        """Returns the pairs of labels' values and pieces whose rest can be covered with what is left, and not
        too slowly: the cheapest test first.
        """
        pieces = self.problem.pieces
        at = (self.guide.level(window), pieces.start[piece], left)
        time = self.guide.time_ns[at]
        least = values[row, 0] + pieces.time_ns[piece] + time
        keep = np.flatnonzero(least < self.cutoff_ns)
        row, piece, time, least = row[keep], piece[keep], time[keep], least[keep]
        pace = self.guide.period_ns[tuple(part[keep] for part in at)]
        if self.objective is Objective.CLOSED_FORM:
            pace = np.maximum(pace, np.maximum(values[row, 2], pieces.period_ns[piece]))
            least += (self.problem.num_micro_batches - 1) * pace
        else:
            busy = np.maximum(values[row, 1] + pieces.time_ns[piece], pieces.occupied_ns[piece])
            least = np.maximum(busy + time, self.problem.num_micro_batches * pace)
        within: IntArray = keep[least < self.cutoff_ns]
        return within

    def _edges(self, *, together: bool) -> Edges:
        closed, found = self.objective is Objective.CLOSED_FORM, self.problem
        if together:
            assert found.same_node is not None
            return found.same_node.edges if closed else found.same_node.edges_at_best
        return found.edges if closed else found.edges_at_best

    def _emit(
        self, labels: Labels, pairs: _Pairs, buckets: list[list[Labels]], *, first: bool = False
    ) -> None:
        """Makes the labels that result from putting pieces in front of labels."""
        pieces, problem = self.problem.pieces, self.problem
        row, piece, window = pairs.row, pairs.piece, pairs.window
        m = problem.num_micro_batches
        widest = window
        if self.merge and not first:
            widest = np.minimum(labels.widest[row] + 1 + problem.max_extra_in_flight, m)
        values = self._values(labels, pairs, widest, first=first)
        used = labels.used[row]
        used[np.arange(len(row)), pieces.island[piece]] += pieces.gpus[piece]
        start = pieces.start[piece]
        head = np.minimum(window + pieces.span[piece], m)
        rest = self._with_rest(values, pairs.left, start, head)
        keep = rest < self.cutoff_ns
        stages = labels.num_stages[row] + pieces.num_stages[piece]
        if problem.num_stages is not None:
            keep &= (start > 0) | (stages == problem.num_stages)
        if self.must_use is not None:
            keep &= (start > 0) | (used[:, self.must_use] > 0)
        keep_idx = self._most_promising(np.flatnonzero(keep), rest, pairs)
        if not len(keep_idx):
            return
        uid = self._trails.remember(labels.uid[row[keep_idx]], piece[keep_idx], pairs.extra[keep_idx])
        made = Labels(
            used[keep_idx],
            head[keep_idx],
            np.minimum(widest + pieces.span[piece], m)[keep_idx],
            pieces.head_class[piece[keep_idx]],
            pieces.tail_class[piece[keep_idx]] if first else labels.tail_class[row[keep_idx]],
            stages[keep_idx],
            values[keep_idx],
            rest[keep_idx],
            uid,
        )
        self._distribute(made, start[keep_idx], buckets)

    def _most_promising(self, idx: IntArray, rest: IntArray, pairs: _Pairs) -> IntArray:
        """In a beam, keeps the best few of the labels made at once with the same extra warm-up, on one node
        or not; most would not survive their cut.
        """
        if self.beam is None or len(idx) <= _BEAM_CHILDREN * self.beam:
            return idx
        kind = 2 * pairs.extra[idx] + pairs.together[idx]
        order = np.lexsort((rest[idx], kind))
        place = np.arange(len(idx)) - np.searchsorted(kind, kind)  # They are ordered by kind.
        best = order[place < _BEAM_CHILDREN * self.beam]
        self._exhausted &= len(best) == len(idx)
        return np.sort(idx[best])

    def _values(self, labels: Labels, pairs: _Pairs, window: IntArray, *, first: bool) -> IntArray:
        pieces, row, piece = self.problem.pieces, pairs.row, pairs.piece
        behind = labels.values[row]
        if first:
            one_way = round_trip = occupancy = nic = np.zeros(len(row), dtype=np.int64)
        else:
            where = pairs.together.astype(np.int64), pieces.tail_class[piece], labels.link_class[row]
            one_way, round_trip, occupancy, nic = self._edge_ns[:, *where]
        time, forward = pieces.time_ns[piece], pieces.forward_ns[piece]
        sum_behind = behind[:, 0] + round_trip
        values = np.zeros((len(row), _NUM_VALUES + len(self._shared_nics)), dtype=np.int64)
        values[:, 0] = sum_behind + time
        values[:, 3] = self._nic_behind(piece, np.where(pairs.together, behind[:, 3], nic))
        values[:, 4] = self._sharing.taken(piece, np.where(pairs.together, behind[:, 4], 0))
        tail_class = labels.tail_class[row]
        pace = self._add_island_nics(values, behind, labels.link_class[row], piece, nic)
        if self.problem.tied_ns is not None:
            values[:, 5] = self._sharing.tail_taken(piece, behind[:, 5], pairs.together, first=first)
            values[:, 6] = np.where(behind[:, 5] < 0, nic, behind[:, 6])
            tail_class = pieces.tail_class[piece] if first else tail_class
        if self.objective is Objective.CLOSED_FORM:
            reach = behind[:, 1] + one_way + forward
            with_edge = -(-(pieces.tail_time_ns[piece] + round_trip) // (1 + pairs.extra))
            period = np.maximum(np.maximum(behind[:, 2], occupancy), pieces.period_ns[piece])
            period = np.maximum(period, nic + np.maximum(behind[:, 3], pieces.tail_nic_ns[piece]))
            period = np.maximum(np.maximum(period, with_edge), pace)
            total = sum_behind + pieces.step_fill_ns[piece]
        else:
            reach = behind[:, 2] + one_way + forward
            period = self._busy(behind, piece, window, (one_way, round_trip, occupancy, nic))
            period = np.maximum(period, time + self.problem.num_micro_batches * pace)
            total = pieces.head_step_ns[piece]
        return self._best_end(values, piece, tail_class, (reach, period, total), first=first)

    def _add_island_nics(
        self, values: IntArray, behind: IntArray, link_class: IntArray, piece: IntArray, nic: IntArray
    ) -> IntArray:
        """Adds up for how long one micro-batch keeps the NICs of each island busy, all nodes together;
        returns for how long it keeps those of some node busy at least.
        """
        pace = np.zeros(len(piece), dtype=np.int64)
        nics = self.problem.nics
        if nics is None:
            return pace
        front = self.problem.pieces.tail_class[piece]
        for column, island in enumerate(self._shared_nics.tolist(), start=_NUM_VALUES):
            ends = sum(
                np.where(nics.class_island[end] == island, nics.class_nodes[end], 0)
                for end in (front, link_class)
            )
            values[:, column] = behind[:, column] + nic * ends
            pace = np.maximum(pace, values[:, column] // nics.island_nodes[island])
        return pace

    def _busy(
        self, behind: IntArray, piece: IntArray, window: IntArray, edge: tuple[IntArray, ...]
    ) -> IntArray:
        """``V`` of the lower bound: from the first forward to the last backward of each piece."""
        pieces, m = self.problem.pieces, self.problem.num_micro_batches
        one_way, round_trip, occupancy, nic = edge
        trip = behind[:, 0] + round_trip
        time, tail = pieces.time_ns[piece], pieces.tail_time_ns[piece]
        tail_forward = pieces.tail_forward_ns[piece]
        fill = np.maximum(trip - (window - 1) * tail_forward, 0)
        drain = np.maximum(trip - (window - 1) * (tail - tail_forward), 0)
        idle = np.where(window < m, fill + drain, np.maximum(fill, drain))
        at_tail = time - tail + m * tail + idle
        busy = np.maximum(behind[:, 1] + round_trip + time, np.maximum(pieces.occupied_ns[piece], at_tail))
        busy = np.maximum(busy, trip + time + (m - 1) * occupancy)
        at_nic = time + round_trip - one_way + m * (nic + behind[:, 3])
        found: IntArray = np.maximum(busy, at_nic)
        return found

    def _best_end(
        self,
        values: IntArray,
        piece: IntArray,
        tail_class: IntArray,
        parts: tuple[IntArray, IntArray, IntArray],
        *,
        first: bool,
    ) -> IntArray:
        """Fills in what depends on where the ends of a model with a tied embedding are: the better way.

        ``parts`` are, for the closed form, the fill up to here, the period, and the round trip with the step
        end; for the bound, ``W`` up to here, ``V``, and the step end.
        """
        pieces, m = self.problem.pieces, self.problem.num_micro_batches
        reach, period, total = parts
        closed = self.objective is Objective.CLOSED_FORM
        least = np.full(len(piece), FAR_NS * 2, dtype=np.int64)
        nics = values[:, 3] + values[:, 6]
        for tied, wrapped in self._sharing.ends(piece, tail_class, values[:, 4], values[:, 5], nics):
            step = np.where(pieces.num_stages[piece] > 1, tied, 0) if first else tied
            if closed:
                here, pace = np.maximum(reach, total + step), np.maximum(period, wrapped)
                ends_at = here + (m - 1) * pace
            else:
                here = np.maximum(period, pieces.time_ns[piece] + m * wrapped)
                pace = ends_at = np.maximum(reach, here + total + step)
            better = ends_at < least
            values[:, 1] = np.where(better, here, values[:, 1])
            values[:, 2] = np.where(better, pace, values[:, 2])
            least = np.minimum(least, ends_at)
        return values

    def _nic_behind(self, piece: IntArray, nic: IntArray) -> IntArray:
        """``n`` of the edge that leaves the node of a piece's first stage; 0 where it cannot slow a plan."""
        pieces = self.problem.pieces
        # The bound does not count on the edges inside a run: they may turn out better than when it is alone.
        closed = self.objective is Objective.CLOSED_FORM
        inside = pieces.head_nic_ns[piece] if closed else 0
        behind = np.where(pieces.num_stages[piece] > 1, inside, nic)
        matters = behind + self._most_nic_ns[pieces.head_class[piece]] > self.pace_floor_ns
        return np.where(matters, behind, 0)

    def _with_rest(self, values: IntArray, left: IntArray, start: IntArray, window: IntArray) -> IntArray:
        """What the best completion of each label takes at least (exact for complete ones)."""
        m = self.problem.num_micro_batches
        at = (self.guide.level(window), start, left)
        time = self.guide.time_ns[at]
        pace = np.where(time >= FAR_NS, 0, self.guide.period_ns[at])
        if self.objective is Objective.CLOSED_FORM:
            fill = np.maximum(values[:, 0] + time, values[:, 1] + self.guide.forward_ns(time))
            rest = fill + (m - 1) * np.maximum(values[:, 2], pace)
            complete = values[:, 1] + (m - 1) * values[:, 2]
        else:
            rest = np.maximum(values[:, 1] + time, values[:, 2] + self.guide.forward_ns(time))
            rest = np.maximum(rest, m * pace)
            complete = values[:, 2]
        rest = np.where(time >= FAR_NS, FAR_NS, rest)
        return np.where(start == 0, complete, rest)

    def _distribute(self, made: Labels, start: IntArray, buckets: list[list[Labels]]) -> None:
        order = np.argsort(start, kind="stable")
        ordered = start[order]
        bounds = [0, *(np.flatnonzero(np.diff(ordered)) + 1).tolist(), len(order)]
        for lo, hi in pairwise(bounds):
            part = made.take(order[lo:hi])
            if ordered[lo] > 0:
                buckets[int(ordered[lo])].append(part)
                continue
            done = list(zip(part.rest_ns.tolist(), part.uid.tolist(), strict=True))
            self._trails.complete += done
            if self.dominance:
                best = min(value for value, _ in done)
                keep = best + int(best * self.margin_frac) + (1 if self.margin_frac else 0)
                self.cutoff_ns = min(self.cutoff_ns, keep)

    def _chains(self) -> list[Chain]:
        chains: dict[tuple[tuple[int, ...], tuple[int, ...]], Chain] = {}
        for value, pieces, extras in self._trails.plans():
            # The same plan comes once with and once without a shared node: the cheaper one is in front.
            if (pieces, extras) not in chains:
                chains[pieces, extras] = chain_of(self.problem.pieces, pieces, extras, value)
            if len(chains) == self.max_chains:
                break
        return list(chains.values())


def chain_of(pieces: Pieces, indices: Sequence[int], extras: Sequence[int], value: int) -> Chain:
    """Returns the chain of these pieces, first to last, with the windows that its extra warm-up means."""
    windows: list[int] = []
    window = 0
    for piece, extra in zip(reversed(indices), reversed(extras), strict=True):
        window += 1 + extra
        windows.append(window)
        window += int(pieces.span[piece])
    return Chain(tuple(indices), tuple(extras), tuple(reversed(windows)), value)


def _group_by(stop: IntArray, num_atoms: int) -> list[IntArray]:
    order = np.argsort(stop, kind="stable")
    bounds = np.searchsorted(stop[order], np.arange(num_atoms + 2))
    return [order[bounds[cut] : bounds[cut + 1]] for cut in range(num_atoms + 1)]
