"""Composes plans for clusters whose GPUs are too many to tell all states of the search apart.

1. For the micro-batch size that promises most, block plans (:mod:`tangram.planner.blocks`) are made: first of
   the shortest pace that covers the model, then of paces a little longer with ever shorter step ends; all of
   them are simulated.
2. Of each size it is asked (:mod:`tangram.planner.cases`) whether all its plans take at least as long; then
   it is done, proven.

When all sizes have been considered:

3. the least of the bounds of the others is raised, by halving the distance to the least time that cannot be
   shown, as far as it goes; the size that then has the least gets its block plans;
4. from block plans and from what the cases leave open (:mod:`tangram.planner.starts`), random walks
   (:mod:`tangram.planner.walk`) lead to plans of any shape; the best on the way are simulated;
5. the least bound is raised once more, up to the best plan; where much is left, by prices for GPUs as well
   (:mod:`tangram.planner.dual`).

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
_PROMISE_STEPS, _RELAXED_STEPS = 4, 12  # of the relaxed bound
_GOOD_GAP_SHIFT = 4  # no relaxed bound where what is left is less than 1/16
_ESTIMATED = ((18, 4_000), (3, 40_000))
"""Walks that are judged by estimates, from the best plans there are: how many, and the steps of each."""
_JUDGED = ((3, 24_000_000, 40_000), (1, 72_000_000, 100_000))
"""Walks that are judged by simulation, from the best so far: how many, micro-batches times stages to simulate
for each, and the most steps.
"""
_CLOSE_SHIFT = 8  # estimates are good enough where simulations are no more than 1/256 above them
_RAISED_FRAC, _MOST_CASES = 0.0003, 800  # least distance of times to show, and cases for each
_WIDEST_SHIFT = 3  # the next time to show is no more than 1/8 below one that could not be shown
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

    _cases: dict[int, Casework] = field(default_factory=dict)
    _order: tuple[int, ...] | None = None
    _planned: set[int] = field(default_factory=set)
    _not_shown_ns: dict[int, int] = field(default_factory=dict)

    def consider(self, problem_idx: int, problem: Problem) -> None:
        """Bounds one problem, and looks for plans where it may hold a better one."""
        if not len(problem.pieces):
            self.close(problem_idx, self.cutoff_ns, proven=True)
            return
        if (self.effort.quick or self.cutoff_ns >= FAR_NS) and problem_idx not in self._planned:
            self._plan(problem_idx, problem)
        if self.effort.quick:
            self.close(problem_idx, 0, proven=False)
            return
        cases = Casework.of(problem, self.cutoff_ns)
        proven = cases.proves(self.cutoff_ns, _MOST_CASES)
        self.close(problem_idx, self.cutoff_ns if proven else 0, proven=proven)
        if not proven:
            self._cases[problem_idx], self._not_shown_ns[problem_idx] = cases, self.cutoff_ns

    def scout(self, problem_idx: int, problem: Problem) -> None:
        """Looks for a first plan in a problem that may leave useful pieces out; says nothing of bounds."""
        self._plan(problem_idx, problem)

    def promise_ns(self, problem: Problem) -> int:
        """Returns about how long a plan of a problem takes at best."""
        pieces = problem.pieces
        if not len(pieces):
            return FAR_NS
        slowest = int((pieces.occupied_ns + pieces.head_step_ns).max()) + 1
        return dual_bound_ns(problem, slowest, _PROMISE_STEPS)

    def doubt(self, problem_idx: int, problem: Problem, useless: BoolArray) -> None:
        """Does nothing: what the rules call useless is not looked at again on a large cluster."""

    def best_with(self, problem_idx: int, problem: Problem, island: int) -> Candidate | None:
        """Returns None: what-ifs are not searched on a large cluster."""
        return None

    def settle(self) -> None:
        """Plans the sizes with the lowest bounds, raises these, and improves the best plans."""
        self._raise()
        for idx in self._by_bound()[:_PLANNED]:
            if idx not in self._planned:
                self._plan(idx, self._cases[idx].problem)
        self._walk()
        self._raise()
        self._relax()

    def list_rest(self) -> None:
        """Does nothing: a large cluster has too many plans to list."""

    def improve(self, problem_idx: int, problem: Problem, chain: Chain) -> None:
        """Takes a plan as one of the candidates."""
        self._simulate(problem_idx, problem, chain)

    def _plan(self, problem_idx: int, problem: Problem) -> None:
        """Simulates block plans of paces from the shortest."""
        if not len(problem.pieces):
            return
        planner = BlockPlanner(problem, self.cutoff_ns)
        shortest, order = _shortest_pace(problem, planner, self._order)
        if order is None:
            return
        self._order = order
        self._planned.add(problem_idx)
        for factor in _PACES[:1] if self.effort.quick else _PACES:
            pace = int(shortest * factor)
            if pace * problem.num_micro_batches >= self.cutoff_ns:
                return
            self._with_step_ends(problem_idx, problem, planner, pace, order)

    def _raise(self) -> None:
        """Raises the least of all bounds as far as it can be shown, at most to the time of the best plan.

        What counts is the least: so it is always the size with the least bound whose distance to the least
        time that could not be shown is halved.
        """
        while open_sizes := self._by_bound():
            idx = open_sizes[0]
            low, failed = self.lower_bounds_ns[idx], min(self.cutoff_ns, self._not_shown_ns[idx])
            if failed - low <= _RAISED_FRAC * failed:
                return
            if failed < self._not_shown_ns[idx]:
                target = failed  # the time of a plan that was found since
            else:
                target = max((low + failed) // 2, failed - (failed >> _WIDEST_SHIFT))
            if self._cases[idx].proves(target, _MOST_CASES):
                self.close(idx, target, proven=target >= self.cutoff_ns)
            else:
                self._not_shown_ns[idx] = target

    def _relax(self) -> None:
        """Raises bounds that are still far from the best plan by prices for GPUs: where stages are few, as on
        clusters that are just too large to be counted, they see more.
        """
        done: set[int] = set()
        while left := [idx for idx in self._by_bound()[:1] if idx not in done]:
            idx = left[0]
            done.add(idx)
            low, best = self.lower_bounds_ns[idx], self.cutoff_ns
            if best - low <= best >> _GOOD_GAP_SHIFT:
                return
            low = max(low, min(dual_bound_ns(self._cases[idx].problem, best, _RELAXED_STEPS), best))
            self.close(idx, low, proven=low >= best)

    def _walk(self) -> None:
        """Walks from many plans a little, and from those that do best some more."""
        contenders = []
        for idx, count in zip(self._by_bound(), _STARTS, strict=False):
            # No plans are looked for of a size that can be at most half as good as the bound.
            target = (self.lower_bound_ns() + self.cutoff_ns) // 2
            if self.lower_bounds_ns[idx] < target and not self._cases[idx].proves(target, _MOST_CASES):
                contenders += self._contenders(idx, count)
        for number, (count, steps) in enumerate(_ESTIMATED):
            chosen = self._promising(contenders, count)
            contenders = [self._walked(c, steps, number, simulated=False) for c in chosen]
        contenders = [c for c in contenders if not c.is_estimated_well]
        for number, (count, tasks, most) in enumerate(_JUDGED, start=len(_ESTIMATED)):
            chosen = self._promising(contenders, count)
            contenders = [
                self._walked(c, min(most, tasks // c.num_tasks), number, simulated=True) for c in chosen
            ]

    def _contenders(self, problem_idx: int, count: int) -> list[_Contender]:
        """The best block plan of a size, and plans near what cannot be shown of times up to the best plan."""
        cases, bound, best = self._cases[problem_idx], self.lower_bounds_ns[problem_idx], self.cutoff_ns
        problem = cases.problem
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

    def _promising(self, contenders: list[_Contender], count: int) -> list[_Contender]:
        """The quickest few, each once: none that is half as far behind the best as the bound is ahead."""
        chosen: dict[tuple[int, tuple[Stage, ...]], _Contender] = {}
        for contender in sorted(contenders, key=lambda contender: contender.time_ns):
            chosen.setdefault((contender.problem_idx, contender.place.stages), contender)
        best = min([self.cutoff_ns, *(contender.time_ns for contender in contenders)])
        limit = best + (best - self.lower_bound_ns()) // 2
        return [contender for contender in chosen.values() if contender.time_ns <= limit][:count]

    def _by_bound(self) -> list[int]:
        """Returns the micro-batch sizes whose bounds are below the best time, the lowest first."""
        bounds = self.lower_bounds_ns
        below = [idx for idx in self._cases if bounds[idx] < self.cutoff_ns]
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
        if not low and planner.plan(slowest, any_step)[0] is None:
            return slowest, None
        low, high = high, high + (high >> 1)
    else:
        return high, None
    high, found = _halved(planner, low, high, found, any_order=False)
    if len(found) == 1:
        return high, found
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
