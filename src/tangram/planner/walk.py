"""Improves plans of large clusters by a random walk (simulated annealing, from a fixed seed).

Block plans (:mod:`tangram.planner.blocks`) have one pace, and islands that do not recur. A plan may do
better: the last stages of a pipeline have to be quicker than the first, as the last micro-batch reaches
them later; a few GPUs of one island may fill a gap in another; more micro-batches in flight let early stages
be slow. So from the best block plan this walks over all plans of single stages: it moves cuts, trades,
moves, splits and merges stages, and changes portions and windows, one or two at a time. A plan that is
slower may be the next place by chance, the less so the slower it is and the longer the walk has been.

A plan's time is estimated by :func:`tangram.simulate.formulas.lower_bound_ns` with the transfers of the
ranking, and with the steady pace that windows allow (:func:`_pace`); that takes some ten microseconds per
plan. With many micro-batches it is within half a per cent of the simulator. With few, it may be 5 % below,
and such plans are what a walk would find; so there a plan that passes is simulated on links of its own. The
caller's referee has the last word. Each stage has the quickest option that has room for its window.

A small cluster's plans can be judged by the referee itself, on the way: where slow NICs are shared, one step
changes what queues behind what, and no formula ranks plans well. Then the time by the formula, with links at
their best and without that pace, only says which plans are not worth the time: a bound screens best.

What is left out: pieces of several stages, and which neighbours share a node.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from math import log
from typing import NamedTuple

import numpy as np

from tangram.cost.types import IntArray
from tangram.planner.frontier import chain_of
from tangram.planner.groups import begins
from tangram.planner.problem import Chain, Edges, Pieces, Problem
from tangram.simulate.fast import iteration_ns
from tangram.simulate.pipeline import SimEdge, SimPipeline, SimStage

_HOTTEST = 0.003  # share of its time by which a plan may become slower: in the mean, at the start
_HOTTEST_JUDGED = 0.01  # the same where the referee judges: shared NICs make plans differ more
_DOUBT_SHIFT = 6  # the referee is asked about plans up to 1/64 above the limit at best
_LONGEST_SHIFT = 2  # atoms by which a cut moves
_TWO_MOVES = 0.4  # share of steps
_GPUS_TOO = 0.5  # share of splits and merges that split and merge GPUs as well, on walks that may
_SLACK_SHIFT = 6  # pieces too slow for 1/64 above the first plan are left out
_LONGEST_CYCLE = 9  # micro-batches
_FEW_TASKS = 8_000  # stages times micro-batches up to which plans are simulated on the way
_SEED = 0x9E3779B97F4A7C15
_MASK = (1 << 64) - 1


class Stage(NamedTuple):
    """A stage of a plan on the walk: where it stops, its portion, and the extra warm-up behind it."""

    stop: int
    island: int
    gpus: int
    extra: int


class _Option(NamedTuple):
    """One way to run a slice on a portion: times as in :mod:`tangram.planner.problem`."""

    time_ns: int
    forward_ns: int
    step_ns: int
    longest: int
    link_class: int
    piece: int


class _Options(NamedTuple):
    """The options of a slice on a portion, and what each of them needs at least by itself."""

    choices: tuple[_Option, ...]
    least_ns: int


class _Tail(NamedTuple):
    """A stage and all behind it: their estimate, as in :func:`tangram.simulate.formulas.lower_bound_ns`.

    ``time_ns``, ``both_ns``, ``window`` and ``nic_ns`` are ``t``, ``X``, ``w`` and ``n`` of the stage.
    """

    time_ns: int
    both_ns: int
    window: int
    nic_ns: int
    trip_ns: int
    busy_ns: int
    end_ns: int
    extra: int
    link_class: int
    piece: int


@dataclass(frozen=True, slots=True)
class Place:
    """A plan where the walk may be.

    Attributes:
        stages: First to last.
        pieces: Chosen for them.
        extras: Extra warm-up as far as it helps.
        time_ns: Estimated.
        tails: What is behind each stage, from the last one, on the walk that found it.
    """

    stages: tuple[Stage, ...]
    pieces: tuple[int, ...]
    extras: tuple[int, ...]
    time_ns: int
    tails: tuple[_Tail, ...] = field(default=(), repr=False, compare=False)


class Draws:
    """Numbers that look random and are the same everywhere (xorshift64*)."""

    def __init__(self, seed: int) -> None:
        self._state = (seed * 2 + 1) * _SEED & _MASK or _SEED

    def share(self) -> float:
        """Returns a number between 0 and 1, neither included."""
        state = self._state
        state ^= state >> 12
        state = (state ^ state << 25) & _MASK
        state ^= state >> 27
        self._state = state
        return ((state * 0x2545F4914F6CDD1D & _MASK) >> 11 | 1) / (1 << 53)

    def below(self, count: int) -> int:
        """Returns one of ``0 .. count - 1``."""
        return int(self.share() * count)


@dataclass(slots=True, eq=False)
class Walk:
    """A walk over the plans of one problem.

    Attributes:
        problem: What is composed.
        below_ns: About how long the first plan takes; pieces that only much slower plans have are left out.
        referee: Judges every plan on the way; None where estimates do.
    """

    problem: Problem
    below_ns: int
    referee: Callable[[Chain], int] | None = None
    _code: IntArray = field(init=False)
    _order: IntArray = field(init=False)
    _sizes: list[list[int]] = field(init=False)
    _largest: int = field(init=False)
    _known: dict[tuple[int, int, int, int], _Options] = field(default_factory=dict)
    _simulated: dict[tuple[tuple[int, ...], tuple[int, ...]], int] = field(default_factory=dict)
    _edges: list[list[tuple[int, int, int, int]]] = field(init=False)
    _expected: list[list[tuple[int, int, int, int]]] = field(init=False)

    def __post_init__(self) -> None:
        pieces = self.problem.pieces
        limit = self.below_ns + (self.below_ns >> _SLACK_SHIFT)
        able = (pieces.occupied_ns + pieces.head_step_ns < limit) & (pieces.num_stages == 1)
        kept = np.flatnonzero(able)
        self._largest = int(pieces.gpus.max(initial=0)) + 1
        code = self._codes(pieces.start[kept], pieces.stop[kept], pieces.island[kept], pieces.gpus[kept])
        by = np.lexsort((kept, pieces.head_step_ns[kept], pieces.time_ns[kept], code))
        self._code, self._order = code[by], kept[by]
        islands = pieces.island[kept]
        self._sizes = [
            np.unique(pieces.gpus[kept[islands == island]]).tolist()
            for island in range(len(self.problem.capacity))
        ]
        self._edges = self._expected = _by_class(self.problem.edges)
        if self.referee is not None:
            self._edges = _by_class(self.problem.edges_at_best)

    @property
    def num_pairs(self) -> int:
        """Slices on portions that a plan may have."""
        return int(begins(self._code).sum())

    def longest(self, start: int, stop: int, island: int, gpus: int) -> int:
        """Returns how many micro-batches a slice on a portion can hold; 0 where it cannot run there."""
        choices = self._options_of(start, stop, island, gpus).choices
        return choices[-1].longest if choices else 0

    def start(self, chain: Chain, pieces: Pieces | None = None) -> Place | None:
        """Returns a plan as a place to begin at; None where it has pieces of several stages.

        Args:
            chain: The plan.
            pieces: That it consists of; None for those of the problem. The problem must have the like.
        """
        pieces = self.problem.pieces if pieces is None else pieces
        if any(pieces.num_stages[piece] > 1 for piece in chain.pieces):
            return None
        stages = tuple(
            Stage(int(pieces.stop[piece]), int(pieces.island[piece]), int(pieces.gpus[piece]), extra)
            for piece, extra in zip(chain.pieces, chain.extra_in_flight, strict=True)
        )
        return self.place(stages)

    def chain(self, place: Place) -> Chain:
        """Returns a place as a plan."""
        return chain_of(self.problem.pieces, place.pieces, place.extras, place.time_ns)

    def place(
        self, stages: tuple[Stage, ...], below_ns: int | None = None, near: Place | None = None
    ) -> Place | None:
        """Returns the plan of these stages; None where there is none, or none that may take less than
        ``below_ns``.

        Args:
            stages: First to last.
            below_ns: None for no limit.
            near: A plan that may have the same last stages: what is known of these is used again.
        """
        left = list(self.problem.capacity)
        for stage in stages:
            left[stage.island] -= stage.gpus
        if min(left) < 0 or self.problem.num_stages not in (None, len(stages)):
            return None
        limit, tails = below_ns or (1 << 62), list[_Tail]()
        if near is not None:
            tails = list(near.tails[: _common_tails(stages, near.stages)])
            first = len(stages) - len(tails) - 1
            # One stage by itself says most of the time that a plan is too slow.
            changed = range(first, _common_front(stages, near.stages) - 1, -1)
            if (tails and tails[-1].end_ns >= limit) or any(
                self._options(stages, i).least_ns >= limit for i in changed
            ):
                return None
        for i in range(len(stages) - len(tails) - 1, -1, -1):
            tail = self._in_front(tails, self._options(stages, i).choices, stages[i].extra)
            if tail is None or tail.end_ns >= limit:
                return None
            tails.append(tail)
        chosen = tails[::-1]
        pieces, extras = tuple(tail.piece for tail in chosen), tuple(tail.extra for tail in chosen)
        return Place(stages, pieces, extras, tails[-1].end_ns, tuple(tails))

    def _in_front(self, tails: list[_Tail], options: tuple[_Option, ...], extra: int) -> _Tail | None:
        """Puts a stage in front of others, last to first; None where none of its options has room."""
        m = self.problem.num_micro_batches
        if not tails:
            option = next((option for option in options if option.longest >= 1), None)
            if option is None:
                return None
            time, busy = option.time_ns, m * option.time_ns
            link_class, piece = option.link_class, option.piece
            return _Tail(time, 0, 1, 0, time, busy, busy + option.step_ns, 0, link_class, piece)
        behind = tails[-1]
        fitting = _fitting(options, behind.window, extra, m, self._expected[behind.link_class])
        if fitting is None:
            return None
        option, extra, window = fitting
        time, forward = option.time_ns, option.forward_ns
        x, both, occupancy, nic = self._edges[behind.link_class][option.link_class]
        others, wait = (window if window < m else m) - 1, both + behind.trip_ns
        fill, drain = max(0, wait - others * forward), max(0, wait - others * (time - forward))
        idle = fill + drain if m > window else max(fill, drain)
        if window < m and self.referee is None:
            idle += (m - window) * (_pace(time, both, window, tails) - time)
        trip = wait + time
        busy = max(time + both + behind.busy_ns, m * time + idle, trip + (m - 1) * occupancy)
        busy = max(busy, time + both - x + m * (nic + behind.nic_ns))
        end = max(forward + x + behind.end_ns, busy + option.step_ns)
        return _Tail(time, both, window, nic, trip, busy, end, extra, option.link_class, option.piece)

    def go(
        self,
        first: Place,
        steps: int,
        seed: int = 1,
        *,
        simulated: bool = True,
        gpus_too: bool = False,
        judgements: int | None = None,
    ) -> list[Place]:
        """Walks so many steps.

        Args:
            first: Where to begin.
            steps: Plans to look at.
            seed: Another one is another walk.
            simulated: Whether plans are judged by their simulated time, where that does not take long, or by
                the referee if there is one.
            gpus_too: Whether a stage may be split along with its GPUs, and merged so: finds other numbers of
                stages, and leads away from good plans of many.
            judgements: Plans to judge so at most; None for all that pass.

        Returns:
            The plans that were better than all before, the last one the best; empty where none was.
        """
        draws, judged = Draws(seed), self.judged if simulated else _as_estimated
        at = judged(first)
        better: list[Place] = []
        best_ns, number = at.time_ns, 0
        hottest, doubt = (_HOTTEST, 0) if self.referee is None else (_HOTTEST_JUDGED, _DOUBT_SHIFT)
        for step in range(steps):
            if number == judgements:
                break
            stages = self._moved(list(at.stages), draws, gpus_too)
            if stages is not None and draws.share() < _TWO_MOVES:
                stages = self._moved(stages, draws, gpus_too)
            if stages is None or not _in_order(stages, self.problem.num_atoms):
                continue
            gone = step / steps if judgements is None else max(step / steps, number / judgements)
            limit = int(at.time_ns * (1 - log(draws.share()) * hottest * (1 - gone))) + 1
            found = self.place(tuple(stages), limit + (limit >> doubt if doubt else 0), at)
            number += found is not None
            if found is None or (found := judged(found)).time_ns >= limit:
                continue
            at = found
            if at.time_ns < best_ns:
                best_ns = at.time_ns
                better.append(at)
        return better

    def judged(self, place: Place) -> Place:
        """Returns a place with its simulated time, where that does not take long; with the referee's time if
        there is one.
        """
        if self.referee is not None:
            return replace(place, time_ns=self.referee(self.chain(place)))
        if self.problem.num_micro_batches * len(place.pieces) > _FEW_TASKS:
            return place
        return replace(place, time_ns=self.simulated_ns(place))

    def simulated_ns(self, place: Place) -> int:
        """Returns the simulated time of a plan; walks meet many plans again, so it is kept."""
        key = place.pieces, place.extras
        if key not in self._simulated:
            self._simulated[key] = self._simulate(place)
        return max(place.time_ns, self._simulated[key])

    def _simulate(self, place: Place) -> int:
        m, pieces = self.problem.num_micro_batches, self.problem.pieces
        stages, edges = [], []
        for i, (piece, window) in enumerate(zip(place.pieces, self.chain(place).windows, strict=True)):
            forward, time = int(pieces.forward_ns[piece]), int(pieces.time_ns[piece])
            stages.append(SimStage(forward, time - forward, int(pieces.head_step_ns[piece]), window))
            if i + 1 < len(place.pieces):
                behind = int(pieces.head_class[place.pieces[i + 1]])
                x, _, occupancy, _ = self._edges[behind][int(pieces.tail_class[piece])]
                edges.append(SimEdge(x - occupancy, occupancy, occupancy))
        return iteration_ns(SimPipeline(tuple(stages), tuple(edges), m))

    def _moved(self, stages: list[Stage], draws: Draws, gpus_too: bool = False) -> list[Stage] | None:
        """Changes a plan a little; what comes out need not be one."""
        kind, i = draws.share(), draws.below(len(stages))
        stage = stages[i]
        if kind < 0.35:
            return _cut_moved(stages, i, draws)
        if kind < 0.45:
            extra = draws.below(1 + self.problem.max_extra_in_flight)
            stages[i] = Stage(stage.stop, stage.island, stage.gpus, extra)
        elif kind < 0.65:
            island = stage.island if kind < 0.55 else draws.below(len(self._sizes))
            return self._resized(stages, i, island, draws)
        elif kind < 0.8:
            other = draws.below(len(stages))
            behind = stages[other]
            stages[i] = Stage(stage.stop, behind.island, behind.gpus, behind.extra)
            stages[other] = Stage(behind.stop, stage.island, stage.gpus, stage.extra)
        elif kind < 0.88:
            return _elsewhere(stages, i, draws.below(len(stages)))
        elif kind < 0.94:
            return self._split(stages, i, draws, gpus_too)
        elif i + 1 < len(stages):
            behind = stages[i + 1]
            kept = stage if draws.share() < 0.5 else behind
            gpus = kept.gpus
            if gpus_too and stage.island == behind.island and draws.share() < _GPUS_TOO:
                gpus = stage.gpus + behind.gpus
            stages[i : i + 2] = [Stage(behind.stop, kept.island, gpus, kept.extra)]
        return stages

    def _split(self, stages: list[Stage], i: int, draws: Draws, gpus_too: bool) -> list[Stage] | None:
        """Splits a stage, and its GPUs too or puts the first part on another portion."""
        stage, start = stages[i], stages[i - 1].stop if i else 0
        if stage.stop - start < 2:
            return None
        cut = start + 1 + draws.below(stage.stop - start - 1)
        if gpus_too and draws.share() < _GPUS_TOO:
            half = stage.gpus // 2
            stages[i : i + 1] = [stage._replace(stop=cut, gpus=stage.gpus - half), stage._replace(gpus=half)]
            return stages
        stages.insert(i, stage._replace(stop=cut))
        island = stage.island if draws.share() < 0.5 else draws.below(len(self._sizes))
        return self._resized(stages, i, island, draws)

    def _resized(self, stages: list[Stage], i: int, island: int, draws: Draws) -> list[Stage] | None:
        """Puts a stage on another portion of an island."""
        sizes = self._sizes[island]
        if not sizes:
            return None
        stages[i] = Stage(stages[i].stop, island, sizes[draws.below(len(sizes))], stages[i].extra)
        return stages

    def _options(self, stages: tuple[Stage, ...], i: int) -> _Options:
        """The options of a stage of a plan."""
        stop, island, gpus, _ = stages[i]
        return self._options_of(stages[i - 1].stop if i else 0, stop, island, gpus)

    def _options_of(self, start: int, stop: int, island: int, gpus: int) -> _Options:
        """The options of a slice on a portion: the quickest first, the others for ever longer windows."""
        key = (start, stop, island, gpus)
        known = self._known.get(key)
        if known is None:
            code = self._codes(*(np.array(value) for value in key))
            lo, hi = np.searchsorted(self._code, [code, code + 1]).tolist()
            pieces, found, longest = self.problem.pieces, [], 0
            for piece in self._order[lo:hi].tolist():
                if pieces.max_in_flight[piece] > longest:
                    longest = int(pieces.max_in_flight[piece])
                    time, forward = int(pieces.time_ns[piece]), int(pieces.forward_ns[piece])
                    step, link_class = int(pieces.head_step_ns[piece]), int(pieces.tail_class[piece])
                    found.append(_Option(time, forward, step, longest, link_class, piece))
            m = self.problem.num_micro_batches
            least = min((m * option.time_ns + option.step_ns for option in found), default=1 << 62)
            known = self._known[key] = _Options(tuple(found), least)
        return known

    def _codes(self, start: IntArray, stop: IntArray, island: IntArray, gpus: IntArray) -> IntArray:
        """Numbers slices on portions."""
        codes: IntArray = start * (self.problem.num_atoms + 1) + stop
        return (codes * len(self.problem.capacity) + island) * self._largest + gpus


def _by_class(edges: Edges) -> list[list[tuple[int, int, int, int]]]:
    """``x``, ``X``, ``o`` and ``n`` by the link class behind an edge, and the one in front of it."""
    columns = (edges.one_way_ns, edges.round_trip_ns, edges.occupancy_ns, edges.nic_ns)
    return [
        [(int(x), int(both), int(o), int(n)) for x, both, o, n in zip(*rows, strict=True)]
        for rows in zip(*(column.T.tolist() for column in columns), strict=True)
    ]


def _fitting(
    options: tuple[_Option, ...],
    window_behind: int,
    extra: int,
    m: int,
    edges: list[tuple[int, int, int, int]],
) -> tuple[_Option, int, int] | None:
    """The quickest option that has room, the extra warm-up behind it as far as it helps, and its window."""
    while extra >= 0:
        window = window_behind + 1 + extra
        need = window if window < m else m
        for option in options:
            if option.longest >= need:
                if not extra:
                    return option, extra, window
                _, both, occupancy, _ = edges[option.link_class]
                if option.time_ns + both > max(option.time_ns, occupancy) * extra:
                    return option, extra, window
                break
        extra -= 1
    return None


def _pace(time_ns: int, both_ns: int, window: int, tails: list[_Tail]) -> int:
    """The least time between two micro-batches of a stage in the steady state.

    A micro-batch goes from stage ``i`` to stage ``j`` behind it, where a backward has to wait for its
    forward, and comes back, where a forward has to wait for its backward: a cycle of ``1 + w_i - w_j``
    micro-batches that takes the sum of ``t`` of these stages and of ``X`` between them.

    Args:
        time_ns, both_ns, window: ``t``, ``X`` and ``w`` of the stage.
        tails: The stages behind it, last to first.
    """
    pace = whole = time_ns
    link = both_ns
    for tail in reversed(tails):
        count = 1 + window - tail.window
        if count > _LONGEST_CYCLE:
            break
        whole += link + tail.time_ns
        link = tail.both_ns
        if whole > count * pace:
            pace = -(-whole // count)
    return pace


def _common_front(stages: tuple[Stage, ...], others: tuple[Stage, ...]) -> int:
    """How many stages from the first are the same."""
    number = 0
    for stage, other in zip(stages, others, strict=False):
        if stage != other:
            break
        number += 1
    return number


def _common_tails(stages: tuple[Stage, ...], others: tuple[Stage, ...]) -> int:
    """How many stages from the last are the same and begin at the same atom."""
    number, most = 0, min(len(stages), len(others))
    while number < most and stages[-1 - number] == others[-1 - number]:
        number += 1
    ahead, other = len(stages) - number, len(others) - number
    start = stages[ahead - 1].stop if ahead else 0
    same = start == (others[other - 1].stop if other else 0)
    return number if same or not number else number - 1


def _as_estimated(place: Place) -> Place:
    """A plan with the time that it is estimated to take."""
    return place


def _in_order(stages: list[Stage], num_atoms: int) -> bool:
    """Whether the stages cover the model, each with an atom at least."""
    stop = 0
    for stage in stages:
        if stage.stop <= stop:
            return False
        stop = stage.stop
    return stop == num_atoms


def _cut_moved(stages: list[Stage], i: int, draws: Draws) -> list[Stage] | None:
    """Moves the cut behind a stage by an atom or two, and now and then the next one along with it."""
    if i + 1 >= len(stages):
        return None
    shift = 1 + draws.below(_LONGEST_SHIFT)
    shift = shift if draws.share() < 0.5 else -shift
    both = i + 2 < len(stages) and draws.share() < 0.5
    for at in (i, i + 1) if both else (i,):
        stage = stages[at]
        stages[at] = Stage(stage.stop + shift, stage.island, stage.gpus, stage.extra)
    return stages


def _elsewhere(stages: list[Stage], i: int, to: int) -> list[Stage]:
    """Moves a stage with its atoms to another place."""
    start = 0
    counts = []
    for stage in stages:
        counts.append((stage.stop - start, stage))
        start = stage.stop
    counts.insert(to, counts.pop(i))
    moved, stop = [], 0
    for count, stage in counts:
        stop += count
        moved.append(Stage(stop, stage.island, stage.gpus, stage.extra))
    return moved
