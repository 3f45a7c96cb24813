"""Composes plans for clusters whose GPUs are too many to tell all states of the search apart.

Per micro-batch size:

1. the relaxed bound (:mod:`tangram.planner.dual`) says what no plan beats, in any order of stages and on
   any portions; at or above the best time so far, the size is done, proven;
2. for the sizes with the lowest bounds, block plans (:mod:`tangram.planner.blocks`) are made: first of the
   shortest pace that covers the model, then of paces a little longer with ever shorter step ends; all of them
   are simulated.

When all sizes have been considered:

3. the bounds are raised by cases (:mod:`tangram.planner.cases`), halving the distance to the least time that
   cannot be shown;
4. from the best block plans of the best sizes, random walks (:mod:`tangram.planner.walk`) lead to plans of
   any shape; the best on the way are simulated;
5. the bounds are raised once more, up to the best plan: the least of all is the plan's.

There is no listing here, so an answer is proven only where the bound reaches it.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np

from tangram.cost.types import BoolArray
from tangram.planner.blocks import BlockPlanner
from tangram.planner.candidates import Candidate
from tangram.planner.cases import Casework
from tangram.planner.compose import Composer
from tangram.planner.dual import dual_bound_ns
from tangram.planner.problem import FAR_NS, Chain, Problem
from tangram.planner.starts import starts
from tangram.planner.walk import Place, Stage, Walk

_PACES = (1.0, 1.01, 1.02, 1.04, 1.07)
_STEP_ENDS = 3  # limits on step ends that are tried per pace
_PACE_HALVINGS = 7
_ANY_HALVINGS, _LAST_SHIFT = 2, 4  # with other orders, for paces shorter by up to 1/16
_PLANNED = 1  # micro-batch sizes, those with the lowest bounds
_MOST_DOUBLINGS = 24
_QUICK_STEPS = 12  # of the relaxed bound
_ESTIMATED = ((18, 4_000), (3, 40_000))
"""Walks that are judged by estimates, from the best plans there are: how many, and the steps of each."""
_JUDGED = ((3, 24_000_000, 40_000), (1, 72_000_000, 100_000))
"""Walks that are judged by simulation, from the best so far: how many, micro-batches times stages to simulate
for each, and the most steps.
"""
_CLOSE_SHIFT = 8  # estimates are good enough where simulations are no more than 1/256 above them
_RAISED_FRAC, _MOST_CASES = 0.0003, 800  # least distance of times to show, and cases for each
_STEPS_PER_PAIR = 8  # most steps of a walk, per slice on a portion
_WALKED = 3  # plans of a walk that are simulated
_STARTS = (9, 5, 4)  # walks from what bounds leave, of the sizes with the lowest bounds
_TARGETS = (1.001, 1.004, 1.008, 1.012, 1.02, 1.03)
_FEW_CASES = 60
"""Times at which something is left, in bounds; and cases that are looked into for each."""


@dataclass(frozen=True, slots=True)
class _Contender:
    """A plan that walks may go on from.

    Attributes:
        problem_idx: Of its micro-batch size.
        walk: Over the plans of that.
        place: The plan.
        time_ns: Simulated.
    """

    problem_idx: int
    walk: Walk
    place: Place
    time_ns: int

    @property
    def is_estimated_well(self) -> bool:
        """Whether its estimate is so good that walks need no simulations."""
        return self.time_ns - self.place.time_ns <= self.time_ns >> _CLOSE_SHIFT

    @property
    def num_tasks(self) -> int:
        """Of a simulation."""
        return self.walk.problem.num_micro_batches * len(self.place.stages)


@dataclass(slots=True)
class LargeComposer(Composer):
    """Keeps the best plan over several problems, for large clusters."""

    _considered: dict[int, Problem] = field(default_factory=dict)
    _order: tuple[int, ...] | None = None
    _planned: set[int] = field(default_factory=set)
    _not_shown: dict[int, int] = field(default_factory=dict)

    def consider(self, problem_idx: int, problem: Problem) -> None:
        """Bounds one problem, and looks for plans where it may hold a better one."""
        if not len(problem.pieces):
            self.close(problem_idx, self.cutoff_ns, proven=True)
            return
        if self.effort.quick or self.cutoff_ns >= FAR_NS:
            self._plan(problem_idx, problem)
        if self.effort.quick:
            self.close(problem_idx, 0, proven=False)
            return
        self._bound(problem_idx, problem, _QUICK_STEPS)
        if not self.proven[problem_idx]:
            self._considered[problem_idx] = problem

    def scout(self, problem_idx: int, problem: Problem) -> None:
        """Looks for a first plan in a problem that may leave useful pieces out; says nothing of bounds."""
        self._plan(problem_idx, problem)
        self._planned.clear()

    def promise_ns(self, problem: Problem) -> int:
        """Returns about how long a plan of a problem takes at best."""
        pieces = problem.pieces
        if not len(pieces):
            return FAR_NS
        slowest = int((pieces.occupied_ns + pieces.head_step_ns).max()) + 1
        return dual_bound_ns(problem, slowest, _QUICK_STEPS)

    def doubt(self, problem_idx: int, problem: Problem, useless: BoolArray) -> None:
        """Does nothing: what the rules call useless is not looked at again on a large cluster."""

    def best_with(self, problem_idx: int, problem: Problem, island: int) -> Candidate | None:
        """Returns None: what-ifs are not searched on a large cluster."""
        return None

    def settle(self) -> None:
        """Plans the sizes with the lowest bounds, raises these, and improves the best plans."""
        for idx in self._by_bound(self.cutoff_ns)[:_PLANNED]:
            if idx not in self._planned:
                self._plan(idx, self._considered[idx])
        if not self._considered:
            return
        cases = {idx: Casework.of(problem, self.cutoff_ns) for idx, problem in self._considered.items()}
        self._raise(cases)
        self._walk(cases)
        self._raise(cases)

    def list_rest(self) -> None:
        """Does nothing: a large cluster has too many plans to list."""

    def improve(self, problem_idx: int, problem: Problem, chain: Chain) -> None:
        """Takes a plan as one of the candidates."""
        self._simulate(problem_idx, problem, chain)

    def _bound(self, problem_idx: int, problem: Problem, steps: int) -> None:
        """Raises the bound of a problem as far as so many steps do."""
        bound = dual_bound_ns(problem, self.cutoff_ns, steps)
        bound = min(max(bound, self.lower_bounds_ns.get(problem_idx, 0)), self.cutoff_ns)
        self.close(problem_idx, bound, proven=bound >= self.cutoff_ns)

    def _plan(self, problem_idx: int, problem: Problem) -> None:
        """Simulates block plans of paces from the shortest."""
        if not len(problem.pieces):
            return
        self._planned.add(problem_idx)
        planner = BlockPlanner(problem, self.cutoff_ns)
        shortest, order = _shortest_pace(problem, planner, self._order)
        if order is None:
            return
        self._order = order
        for factor in _PACES[:1] if self.effort.quick else _PACES:
            pace = int(shortest * factor)
            if pace * problem.num_micro_batches >= self.cutoff_ns:
                return
            self._with_step_ends(problem_idx, problem, planner, pace, order)

    def _raise(self, cases: dict[int, Casework]) -> None:
        """Raises each bound to about the largest time that can be shown, at most that of the best plan."""
        for idx in self._by_bound(self.cutoff_ns):
            low, high = self.lower_bounds_ns[idx], min(self.cutoff_ns, self._not_shown.get(idx, FAR_NS))
            low, failed = cases[idx].largest_shown_ns(low, high, _RAISED_FRAC, _MOST_CASES)
            if failed <= high:
                self._not_shown[idx] = failed
            self.close(idx, low, proven=low >= self.cutoff_ns)

    def _walk(self, cases: dict[int, Casework]) -> None:
        """Walks from many plans a little, and from those that do best some more."""
        contenders = []
        for idx, count in zip(self._by_bound(self.cutoff_ns), _STARTS, strict=False):
            contenders += self._contenders(idx, cases[idx], count)
        for number, (count, steps) in enumerate(_ESTIMATED):
            chosen = _quickest(contenders, count)
            contenders = [self._walked(c, steps, number, simulated=False) for c in chosen]
        contenders = [c for c in contenders if not c.is_estimated_well]
        for number, (count, tasks, most) in enumerate(_JUDGED, start=len(_ESTIMATED)):
            chosen = _quickest(contenders, count)
            contenders = [
                self._walked(c, min(most, tasks // c.num_tasks), number, simulated=True) for c in chosen
            ]

    def _contenders(self, problem_idx: int, cases: Casework, count: int) -> list[_Contender]:
        """The best block plan of a size, and plans near what cannot be shown of times up to the best plan."""
        problem, bound, best = cases.problem, self.lower_bounds_ns[problem_idx], self.cutoff_ns
        walk, left = Walk(problem, best), []
        for factor in _TARGETS:
            cases.proves(min(int(bound * factor), best), _FEW_CASES)
            left += cases.left
        places = starts(walk, left)[:count]
        own = [c for c in self.candidates if c.problem is problem]
        block = walk.start(min(own, key=lambda c: c.rank).chain) if own else None
        places += [block] if block is not None else []
        return [_Contender(problem_idx, walk, place, walk.simulated_ns(place)) for place in places]

    def _walked(self, contender: _Contender, steps: int, seed: int, *, simulated: bool) -> _Contender:
        """Walks on from a plan, and simulates the best plans on the way."""
        walk = contender.walk
        steps = min(steps, _STEPS_PER_PAIR * walk.num_pairs)
        better = walk.go(contender.place, steps, seed, simulated=simulated)
        for place in reversed(better[-_WALKED:]):
            self._simulate(contender.problem_idx, walk.problem, walk.chain(place))
            time_ns = walk.simulated_ns(place)
            if time_ns < contender.time_ns:
                contender = replace(contender, place=place, time_ns=time_ns)
        return contender

    def _by_bound(self, below_ns: int) -> list[int]:
        """Returns the micro-batch sizes whose bounds are below a time, the lowest first."""
        bounds = self.lower_bounds_ns
        below = [idx for idx in self._considered if bounds[idx] < below_ns]
        return sorted(below, key=lambda idx: (bounds[idx], idx))

    def _with_step_ends(
        self, problem_idx: int, problem: Problem, planner: BlockPlanner, pace_ns: int, order: tuple[int, ...]
    ) -> None:
        """Simulates plans of one pace, with step ends as they come, and then ever shorter."""
        pieces, low = problem.pieces, 0
        limit = int(pieces.head_step_ns.max())
        for _ in range(_STEP_ENDS):
            chain, _, _ = planner.plan(pace_ns, limit, order)
            if chain is None:
                low = limit
                if low >= int(pieces.head_step_ns.max()):
                    return
                limit = 2 * low
            else:
                self._simulate(problem_idx, problem, chain)
                limit = min(limit, int(pieces.head_step_ns[list(chain.pieces)].max()))
                high = limit
            limit = (low + high) // 2


def _quickest(contenders: list[_Contender], count: int) -> list[_Contender]:
    """The quickest few, each once."""
    chosen: dict[tuple[int, tuple[Stage, ...]], _Contender] = {}
    for contender in sorted(contenders, key=lambda contender: contender.time_ns):
        chosen.setdefault((contender.problem_idx, contender.place.stages), contender)
    return list(chosen.values())[:count]


def _shortest_pace(
    problem: Problem, planner: BlockPlanner, order: tuple[int, ...] | None
) -> tuple[int, tuple[int, ...] | None]:
    """Returns the shortest pace, within about a per cent, of which there is a block plan, and the order of
    its islands; None when there is none.

    Args:
        problem: What to compose.
        planner: Of that problem.
        order: Of the islands, to begin with; None when nothing is known. Other orders are tried where it
            ends.
    """
    pieces, any_step = problem.pieces, int(problem.pieces.head_step_ns.max())
    slowest = int(pieces.period_ns.max())
    low, high = 0, _least_pace_ns(problem)
    for _ in range(_MOST_DOUBLINGS):
        chain, _, found = planner.plan(high, any_step, order)
        if chain is None and order is not None:
            chain, _, found = planner.plan(high, any_step)
        if chain is not None:
            break
        if high >= slowest:
            return high, None
        low, high = high, high + (high >> 1)
    else:
        return high, None
    high, found = _halved(planner, low, high, found, any_order=False)
    return _halved(planner, high - (high >> _LAST_SHIFT), high, found, any_order=True)


def _halved(
    planner: BlockPlanner, low: int, high: int, order: tuple[int, ...], *, any_order: bool
) -> tuple[int, tuple[int, ...]]:
    """Narrows down the shortest pace between one of which there may be no plan and one of which there is."""
    any_step = int(planner.problem.pieces.head_step_ns.max())
    for _ in range(_ANY_HALVINGS if any_order else _PACE_HALVINGS):
        middle = (low + high) // 2
        chain, _, found = planner.plan(middle, any_step, None if any_order else order)
        if chain is None:
            low = middle
        else:
            high, order = middle, found
    return high, order


def _least_pace_ns(problem: Problem) -> int:
    """A pace about which to begin: what all GPUs together need, were every piece as good as the best."""
    pieces = problem.pieces
    effort = pieces.time_ns * pieces.gpus / (pieces.stop - pieces.start)
    rate = 0.0
    for island, capacity in enumerate(problem.capacity):
        own = effort[pieces.island == island]
        if len(own):
            rate += capacity / max(float(np.quantile(own, 0.1)), 1.0)
    return max(int(problem.num_atoms / rate), 1) if rate else int(pieces.period_ns.max())
