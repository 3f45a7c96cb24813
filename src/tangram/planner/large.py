"""Composes plans for clusters whose GPUs are too many to tell all states of the search apart.

1. For the first micro-batch size, and the next ones while there is no plan, block plans
   (:mod:`tangram.planner.blocks`) are made: first of the shortest pace that covers the model, then of paces a
   little longer with ever shorter step ends; all of them are simulated.
2. Of each size it is asked (:mod:`tangram.planner.cases`) whether all its plans take at least as long; then
   it is done, proven.

When all sizes have been considered:

3. the least of the bounds of the others is raised, by halving the distance to the least time that cannot be
   shown, as far as it goes; the sizes that then have the least get block plans too;
4. from block plans and from what the cases leave open (:mod:`tangram.planner.starts`), random walks
   (:mod:`tangram.planner.walk`) lead to plans of any shape; the best on the way are simulated;
5. the least bound is raised once more, up to the best plan; where much is left, by prices for GPUs as well
   (:mod:`tangram.planner.dual`).

There is no listing here, so an answer is proven only where the bound reaches it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import cycle

from tangram.cost.types import BoolArray
from tangram.planner.blocks import BlockPlanner
from tangram.planner.candidates import Candidate
from tangram.planner.compose import Composer
from tangram.planner.contenders import Contender, Round, distinct, promising
from tangram.planner.dual import dual_bound_ns
from tangram.planner.paces import shortest_pace
from tangram.planner.problem import FAR_NS, Chain, Problem
from tangram.planner.starts import halved, starts
from tangram.planner.walk import Place, Walk

_PACES, _FEW_PACES = (1.0, 1.01, 1.02, 1.04, 1.07), (1.0, 1.02)
_STEP_ENDS = 3  # limits on step ends that are tried per pace
_RELAXED_STEPS = 12  # of the relaxed bound
_GOOD_GAP_SHIFT = 4  # no relaxed bound where what is left is less than 1/16
_ROUNDS = (Round(14, 4_000, 26_000_000), Round(2, 30_000, 0))
"""A second walk that is simulated finds nothing more; many first ones do."""
_WALKED = 3  # plans of a walk that are simulated
_STARTS = (9, 5, 4)  # walks from what bounds leave, of the sizes with the lowest bounds
_TARGETS, _PATIENCE = (1.001, 1.004, 1.008, 1.012, 1.02, 1.03), 2
_FEW_CASES = 60
"""Times at which something is left, in bounds; those after which there must be a plan; and cases that are
looked into for each.
"""


@dataclass(slots=True)
class LargeComposer(Composer):
    """Keeps the best plan over several problems, for large clusters."""

    _order: tuple[int, ...] | None = None
    _planned: set[int] = field(default_factory=set)
    _waiting: dict[int, Problem] = field(default_factory=dict)

    def consider(self, problem_idx: int, problem: Problem) -> None:
        """Bounds one problem, and looks for plans where it may hold a better one."""
        if not len(problem.pieces):
            self.close(problem_idx, self.cutoff_ns, proven=True)
            return
        # A plan of one island alone, which may be all there is to beat, is no measure of what all can do.
        if (self.effort.quick or self.best is None) and problem_idx not in self._planned:
            self._plan(problem_idx, problem)
        if self.effort.quick:
            self.close(problem_idx, 0, proven=False)
            return
        self._bound(problem_idx, problem)

    def _bound(self, problem_idx: int, problem: Problem) -> None:
        """Asks whether a problem may have a better plan, as soon as there is one to be better than."""
        proven = False
        if self.cutoff_ns < FAR_NS:
            self._waiting.pop(problem_idx, None)
            proven = self._raiser.proves(problem_idx, problem, self.cutoff_ns)
        else:
            self._waiting[problem_idx] = problem
        self.close(problem_idx, self.cutoff_ns if proven else 0, proven=proven)

    def scout(self, problem_idx: int, problem: Problem) -> None:
        """Looks for a first plan in a problem that may leave useful pieces out; says nothing of bounds."""
        self._plan(problem_idx, problem)

    def doubt(self, problem_idx: int, problem: Problem, useless: BoolArray) -> None:
        """Does nothing: what the rules call useless is not looked at again on a large cluster."""

    def best_with(self, problem_idx: int, problem: Problem, island: int) -> Candidate | None:
        """Returns None: what-ifs are not searched on a large cluster."""
        return None

    def settle(self) -> None:
        """Plans the sizes with the lowest bounds, raises these, and improves the best plans."""
        for idx, problem in list(self._waiting.items()):
            self._bound(idx, problem)
        self._raise()
        for idx in self._by_bound()[: len(_STARTS)]:
            if idx not in self._planned and self._is_worthwhile(idx):
                self._plan(idx, self._raiser.cases[idx].problem, _FEW_PACES)
                self._raise()
        self._walk()
        self._raise(closely=True)
        self._relax()

    def list_rest(self) -> None:
        """Does nothing: a large cluster has too many plans to list."""

    def improve(self, problem_idx: int, problem: Problem, chain: Chain) -> None:
        """Takes a plan as one of the candidates."""
        self._simulate(problem_idx, problem, chain)

    def _plan(self, problem_idx: int, problem: Problem, paces: tuple[float, ...] = _PACES) -> None:
        """Simulates block plans of paces from the shortest."""
        if not len(problem.pieces):
            return
        planner = BlockPlanner(problem, self.cutoff_ns)
        shortest, order = shortest_pace(problem, planner, self._order)
        if order is None:
            return
        self._order = order
        self._planned.add(problem_idx)
        for factor in paces[:1] if self.effort.quick else paces:
            pace = int(shortest * factor)
            if pace * problem.num_micro_batches >= self.cutoff_ns:
                return
            self._with_step_ends(problem_idx, problem, planner, pace, order)

    def _relax(self) -> None:
        """Raises bounds that are still far from the best plan by prices for GPUs: where stages are few, as on
        clusters that are just too large to be counted, they see more.
        """
        done: set[int] = set()
        while (left := self._by_bound()) and left[0] not in done:
            idx = left[0]
            done.add(idx)
            low, best = self.lower_bounds_ns[idx], self.cutoff_ns
            if best - low <= best >> _GOOD_GAP_SHIFT:
                return
            low = max(low, min(dual_bound_ns(self._raiser.cases[idx].problem, best, _RELAXED_STEPS), best))
            self.close(idx, low, proven=low >= best)

    def _walk(self) -> None:
        """Walks from many plans a little, and from those that do best some more."""
        contenders = []
        for idx, count in zip(self._by_bound(), _STARTS, strict=False):
            if self._is_worthwhile(idx):
                contenders += self._contenders(idx, count)
        for number, round_ in enumerate(_ROUNDS):
            chosen = promising(contenders, self.cutoff_ns, self.lower_bound_ns(), round_.walks)
            seeds = range(number * round_.walks, (number + 1) * round_.walks)
            contenders = [
                self._walked(c, round_, seed) for c, seed in zip(cycle(chosen), seeds, strict=False)
            ]

    def _is_worthwhile(self, problem_idx: int) -> bool:
        """Whether a size may have plans in the better half of what is between the bound and the best plan."""
        target = (self.lower_bound_ns() + self.cutoff_ns) // 2
        return self.lower_bounds_ns[problem_idx] < target and not self._raiser.shows(problem_idx, target)

    def _contenders(self, problem_idx: int, count: int) -> list[Contender]:
        """The best block plan of a size, and plans near what cannot be shown of times up to the best plan."""
        cases = self._raiser.cases[problem_idx]
        bound, best = self.lower_bounds_ns[problem_idx], self.cutoff_ns
        walk, places = Walk(cases.problem, best), list[Place]()
        for number, factor in enumerate(_TARGETS):
            if number == _PATIENCE and not places:
                break
            cases.proves(min(int(bound * factor), best), _FEW_CASES)
            # Those that were looked into first are too wide to say when a stage is to be done.
            places += starts(walk, cases.left[len(cases.left) // 2 :])
        places = distinct(places)[:count]
        places = distinct([*places, *halved(walk, places)])[:count]
        own = [c for c in self.candidates if c.problem_idx == problem_idx]
        if own:
            best_own = min(own, key=lambda c: c.rank)
            block = walk.start(best_own.chain, best_own.problem.pieces)
            places += [block] if block is not None else []
        return [Contender.of(problem_idx, walk, place) for place in places]

    def _walked(self, contender: Contender, round_: Round, seed: int) -> Contender:
        """Walks on from a plan, and simulates the best plans on the way."""
        better = contender.walk.go(
            contender.place,
            contender.steps(round_),
            seed,
            simulated=contender.is_simulated,
            gpus_too=seed % 3 == 2,
        )
        for place in reversed(better[-_WALKED:]):
            self._simulate(contender.problem_idx, contender.walk.problem, contender.walk.chain(place))
            contender = contender.or_better(place)
        return contender

    def _by_bound(self) -> list[int]:
        """Returns the micro-batch sizes whose bounds are below the best time, the lowest first."""
        bounds = self.lower_bounds_ns
        below = [idx for idx in self._raiser.cases if bounds[idx] < self.cutoff_ns]
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
