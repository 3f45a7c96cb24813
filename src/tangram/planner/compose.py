"""Composes pieces into the best pipeline: searches, simulates the finalists, and proves how far off the
answer can be.

Per micro-batch size, in this order, each step with the best simulated time so far as its cut-off:

1. a beam search gives a first plan (only while there is none);
2. the *bound* search finds the smallest lower bound of any plan; at or above the cut-off, this size is done;
3. the *closed-form* search finds the best plans by the ranking formula; they are simulated, best first.

When all sizes have been considered, those whose bound is below the best time are looked at harder:

4. more plans by either measure are simulated;
5. the best ones are improved step by step, judged by the referee alone;
6. if few plans remain whose bound is below the best simulated time, all of them are listed and simulated:
   then the answer is optimal in the simulator's eyes, not only near it;
7. three stages in a row of the best plan are searched again, with all others fixed;
8. where much of a gap is left, walks (:mod:`tangram.planner.walk`) lead on from the best plan, judged by the
   referee at every step.

The referee (a simulator) is passed in; it must never report less than the lower bound. There may be two: a
quick one for all plans, and an exact one for those that would be the best so far, as times to beat have to be
real.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from math import inf

import numpy as np

from tangram.cost.types import BoolArray, IntArray
from tangram.planner.candidates import Candidate, Structure, structure, various
from tangram.planner.effort import Effort, Wide
from tangram.planner.frontier import Objective
from tangram.planner.lattice import PrefixBound
from tangram.planner.polish import Neighbourhood, Step, polish, sweep
from tangram.planner.prober import Prober
from tangram.planner.problem import FAR_NS, Chain, Problem, fastest_pieces
from tangram.planner.raising import Raiser

Referee = Callable[[Problem, Chain], int]

_SLACK_SHIFT = (
    7  # the closed form may be this much (1/128) above the simulator and still deserve a simulation
)
_REOPENED = 3  # rounds
_SWEPT = 2  # as many structures are tried with all windows as are improved step by step
_REOPENED_FINALISTS = 32
_INCOMPLETE = 5  # a listing that is not complete proves nothing: fewer of its plans are simulated
_BALANCED = 2  # by what factor stages near the pace are faster or slower than it
_WALKS, _WALK_GAP_FRAC = 3, 0.02  # at most so many, while the gap is larger
_WALK_STEPS, _WALK_JUDGEMENTS = 20_000, 1_500
_WALK_TASKS = 3  # as many plans as that many times improving plans step by step would execute
_THIN_LABELS = 3  # fewer pieces per slice make the labels of a listing worth more


@dataclass(slots=True)
class Composer:
    """Keeps the best plan over several problems (one per micro-batch size).

    Attributes:
        referee: Simulates a chain, in nanoseconds.
        effort: Limits.
        incumbent_ns: A time that plans have to beat, from elsewhere.
        exactly: Simulates a chain that would be the best so far once more, where the referee is quick and may
            report too little; None where it never does.
        best: The best candidate so far.
        candidates: All simulated candidates.
        lower_bounds_ns: Per problem index, what no plan of it can beat.
        stairs_ns: Per problem index, ``m`` times the least period, and the smallest lower bound of a plan
            (with the fill).
        pace_floors_ns: Per problem index, the period below which extra warm-up was not tried to help.
        proven: Per problem index, whether no plan of it beats ``best`` (as it was at the end of that
            problem).
        listed: Per problem index of which everything below a time was listed: the time, and the pieces of all
            plans whose bound is below.
        num_labels: Labels of all searches.
        report: Called when there is a better plan, or a bound of one more problem.
    """

    referee: Referee
    effort: Effort = field(default_factory=Effort)
    incumbent_ns: int | None = None
    exactly: Referee | None = None
    best: Candidate | None = None
    candidates: list[Candidate] = field(default_factory=list)
    lower_bounds_ns: dict[int, int] = field(default_factory=dict)
    stairs_ns: dict[int, tuple[int, int]] = field(default_factory=dict)
    pace_floors_ns: dict[int, int] = field(default_factory=dict)
    proven: dict[int, bool] = field(default_factory=dict)
    listed: dict[int, tuple[int, IntArray]] = field(default_factory=dict)
    num_labels: int = 0
    report: Callable[[], None] | None = None
    _open: dict[int, Prober] = field(default_factory=dict)
    _raiser: Raiser = field(default_factory=Raiser)
    _scouts: dict[int, Prober] = field(default_factory=dict)
    _around: dict[int, Neighbourhood] = field(default_factory=dict)
    _polished: set[tuple[object, ...]] = field(default_factory=set)
    _swept: set[tuple[int, tuple[int, ...]]] = field(default_factory=set)
    _seen: dict[tuple[int, tuple[int, ...], tuple[int, ...]], Candidate] = field(default_factory=dict)

    @property
    def cutoff_ns(self) -> int:
        """Best time so far, of our own or the incumbent's; ``FAR_NS`` without any."""
        known = [t for t in (self.incumbent_ns, self.best.time_ns if self.best else None) if t is not None]
        return min(known, default=FAR_NS)

    @property
    def reach_ns(self) -> int:
        """The cut-off with the slack by which the closed form may exceed the simulator."""
        return min(self.cutoff_ns + (self.cutoff_ns >> _SLACK_SHIFT), FAR_NS)

    def consider(self, problem_idx: int, problem: Problem) -> None:
        """Searches one problem; keeps what beats the best so far and records its bound."""
        prober = Prober(problem, self.effort)
        if self.cutoff_ns >= FAR_NS:
            self._first_plan(problem_idx, prober)
        if self.effort.quick:
            self._quick(problem_idx, prober)
        else:
            self._thorough(problem_idx, prober)
        self.num_labels += prober.num_labels
        self.pace_floors_ns[problem_idx] = prober.pace_floor_ns

    def scout(self, problem_idx: int, problem: Problem) -> None:
        """Looks for a first plan in a problem that may leave useful pieces out; says nothing of bounds."""
        prober = self._scouts.get(id(problem)) or self._scouting(problem)
        self._scouts.clear()
        self._first_plan(problem_idx, prober)
        self.num_labels += prober.num_labels

    def doubt(self, problem_idx: int, problem: Problem, useless: BoolArray) -> None:
        """Searches a problem with all pieces that there are once more, for plans with those that a rule calls
        useless; what is found counts. Nothing is, as long as the rules are right.
        """
        prober = Prober(problem, self.effort)
        for objective, cutoff_ns in (
            (Objective.LOWER_BOUND, self.cutoff_ns),
            (Objective.CLOSED_FORM, self.reach_ns),
        ):
            for chain in prober.search(objective, cutoff_ns).chains:
                if useless[list(chain.pieces)].any():
                    self._simulate(problem_idx, problem, chain)
        self.num_labels += prober.num_labels

    def least_ns(self, problem: Problem, worth_ns: int, known_ns: int) -> tuple[int, PrefixBound | None]:
        """Returns a lower bound of any plan of a problem, at most the cut-off, and the guide of all plans
        below the cut-off; nothing is simulated.

        Args:
            problem: Its pieces.
            worth_ns: Whether anything takes less than that matters.
            known_ns: If so, no more need be shown than that nothing takes less than this.
        """
        cutoff_ns = self.cutoff_ns
        if not len(problem.pieces):
            return cutoff_ns, None
        prober = Prober(problem, self.effort)
        if prober.is_hard(cutoff_ns) and known_ns < cutoff_ns:
            beam = self.effort.scouting().beam
            if prober.search(Objective.LOWER_BOUND, worth_ns, beam=beam).chains:
                cutoff_ns = known_ns
        bound = prober.search(Objective.LOWER_BOUND, cutoff_ns)
        lowest = bound.chains[0].value_ns if bound.chains else cutoff_ns
        if not bound.exhausted:
            lowest = max(min(prober.promise(cutoff_ns)[0], cutoff_ns), prober.merged_bound_ns(cutoff_ns))
        self.num_labels += prober.num_labels
        return lowest, prober.guide(self.cutoff_ns)

    def promise_ns(self, problem: Problem) -> int:
        """Returns about how long a plan of a problem takes at best, by the relaxed programme alone."""
        if not len(problem.pieces):
            return FAR_NS
        prober = self._scouts[id(problem)] = self._scouting(problem)
        pace, fill = prober.promise(FAR_NS)
        return min(pace + fill, FAR_NS)

    def _scouting(self, problem: Problem) -> Prober:
        """A prober whose first guide serves all its searches: they only have to come near."""
        return Prober(problem, self.effort.scouting(), reused_guide=inf)

    def best_with(self, problem_idx: int, problem: Problem, island: int) -> Candidate | None:
        """Returns the best plan found that uses an island; None when there is none.

        The plans found count as candidates like any other.
        """
        found = [
            self._simulate(problem_idx, problem, chain)
            for chain in Prober(problem, self.effort).first_chains(must_use=island)[:4]
        ]
        return min(found, key=lambda candidate: candidate.rank, default=None)

    def settle(self) -> None:
        """Looks harder into the problems that may hold a plan better than the best so far.

        Called once, when all problems have been considered: only then is it known how little time a plan has
        to take to be of interest.
        """
        order = self.open_problems()
        for idx in order:
            self._widen(idx, self._open[idx])
        for idx in order:
            self._polish(idx, self._open[idx])
            self._list(idx, self._open[idx])
        for idx in order:
            self._polish(idx, self._open[idx])  # from what has been found meanwhile
        for _ in range(_REOPENED):
            before = self.best
            if before is None or before.problem_idx not in self._open:
                break
            self._reopen(before, self._open[before.problem_idx])
            if self.best is before:
                break
            self._polish(before.problem_idx, self._open[before.problem_idx], most_starts=1)
        for seed in range(_WALKS):
            before = self.best
            if before is None or before.problem_idx not in self._open:
                break
            self._walk_on(before, self._open[before.problem_idx], seed)
            if self.best is before:
                break
            self._polish(before.problem_idx, self._open[before.problem_idx], most_starts=1)
        self._raise(closely=True)
        self._open.clear()
        self._around.clear()

    def list_rest(self) -> None:
        """Simulates every plan whose bound is below the best time, of all problems considered; instead of
        :meth:`settle`, where nothing but that is of interest. Problems with too many remain for it.
        """
        for idx in self.open_problems():
            prober = self._open[idx]
            if self._is_settled(idx):
                del self._open[idx]
                continue
            wide, problem = self.effort.wide(prober.problem.num_micro_batches), prober.problem
            before, names = prober.num_labels, np.arange(len(problem.pieces))
            if self._list_all(idx, prober, problem, names, wide.listing_labels, wide):
                self.close(idx, self.cutoff_ns, proven=True)
                del self._open[idx]
            self.num_labels += prober.num_labels - before

    def open_problems(self) -> list[int]:
        """Returns the problems that may hold a better plan, the most promising first."""
        return sorted(self._open, key=lambda idx: (self.stairs_ns[idx][1], idx))

    def improve(self, problem_idx: int, problem: Problem, chain: Chain) -> None:
        """Improves a plan of a problem that has been considered, step by step."""
        around = Neighbourhood(problem, self.pace_floors_ns[problem_idx])
        start = self._simulate(problem_idx, problem, chain)
        budget = self.effort.wide(problem.num_micro_batches).polish_tasks

        def execute(step: Chain) -> int:
            return self._simulate(problem_idx, problem, step).time_ns

        sweep(around, _step(start), execute, budget)
        best = self._starts(problem, 1)[0]
        polish(around, _step(best), best.time_ns, execute, budget)

    def lower_bound_ns(self) -> int:
        """The bound over all problems: at most the best simulated time."""
        return min([self.cutoff_ns, *self.lower_bounds_ns.values()])

    def close(self, problem_idx: int, bound_ns: int, *, proven: bool) -> None:
        """Records what is known of a problem once it has been searched, or pruned."""
        self.lower_bounds_ns[problem_idx] = bound_ns
        self.proven[problem_idx] = proven
        if self.report is not None:
            self.report()

    def _raise(self, *, closely: bool = False) -> None:
        """Raises the least of all bounds by cases, where there are any."""

        def raised(idx: int, bound_ns: int) -> None:
            self.close(idx, bound_ns, proven=bound_ns >= self.cutoff_ns)

        self._raiser.raise_least(self.lower_bounds_ns, self.cutoff_ns, raised, closely=closely)

    def _first_plan(self, problem_idx: int, prober: Prober) -> None:
        if not len(prober.problem.pieces):
            return
        for chain in prober.first_chains()[:4]:
            self._simulate(problem_idx, prober.problem, chain)

    def _quick(self, problem_idx: int, prober: Prober) -> None:
        self.close(problem_idx, 0, proven=False)
        if self.cutoff_ns >= FAR_NS:
            return
        found = prober.search(Objective.CLOSED_FORM, self.reach_ns, beam=self.effort.beam)
        for chain in found.chains[:4]:
            self._simulate(problem_idx, prober.problem, chain)

    def _thorough(self, problem_idx: int, prober: Prober) -> None:
        problem, effort = prober.problem, prober.effort
        if prober.is_hard(self.cutoff_ns):
            for chain in prober.first_chains(self.cutoff_ns)[:4]:
                self._simulate(problem_idx, problem, chain)
        bound = prober.search(Objective.LOWER_BOUND, self.cutoff_ns)
        pace = min(prober.promise(self.cutoff_ns)[0], self.cutoff_ns)
        lowest = bound.chains[0].value_ns if bound.chains else self.cutoff_ns
        for chain in bound.chains[:2]:
            self._simulate(problem_idx, problem, chain)
        if not bound.exhausted:
            if self._raiser.proves(problem_idx, problem, self.cutoff_ns):
                lowest = self.cutoff_ns
            else:
                lowest = max(pace, prober.merged_bound_ns(self.cutoff_ns))
        self.stairs_ns[problem_idx] = (min(pace, lowest), lowest)
        if lowest >= self.cutoff_ns:
            self.close(problem_idx, self.cutoff_ns, proven=True)
            return
        found = prober.search(
            Objective.CLOSED_FORM, self.reach_ns, margin_frac=effort.margin_frac, max_chains=effort.finalists
        )
        if found.gave_up:
            found = prober.search(Objective.CLOSED_FORM, self.reach_ns, beam=effort.beam)
        for chain in found.chains[: effort.finalists]:
            self._simulate(problem_idx, problem, chain)
        self.close(problem_idx, min(lowest, self.cutoff_ns), proven=lowest >= self.cutoff_ns)
        self._open[problem_idx] = prober

    def _is_settled(self, problem_idx: int) -> bool:
        """Whether no plan of a problem can beat the best one, as its lowest bound says, or cases show."""
        pace, lowest = self.stairs_ns[problem_idx]
        if lowest < self.cutoff_ns:
            problem = self._open[problem_idx].problem
            has_cases = problem_idx in self._raiser.cases
            if not has_cases or not self._raiser.proves(problem_idx, problem, self.cutoff_ns):
                return False
            self.stairs_ns[problem_idx] = (pace, self.cutoff_ns)
        self.close(problem_idx, self.cutoff_ns, proven=True)
        return True

    def _widen(self, problem_idx: int, prober: Prober) -> None:
        """Simulates more plans: by the closed form up to a wider margin, and by the bound, which ranks better
        where micro-batches are few.
        """
        wide, problem = self.effort.wide(prober.problem.num_micro_batches), prober.problem
        if self._is_settled(problem_idx):
            return
        everything, before = np.arange(len(problem.pieces)), len(self.candidates)
        self._search_wide(problem_idx, prober, problem, everything, wide, wide.finalists)
        if len(self.candidates) > before or not prober.is_too_much(self.cutoff_ns):
            return
        # A beam that comes to nothing was full of stages far from the pace: those near it by themselves.
        floor, period = prober.pace_floor_ns, problem.pieces.period_ns
        near = np.flatnonzero((period * _BALANCED >= floor) & (period <= floor * _BALANCED))
        part = replace(problem, pieces=problem.pieces.take(near))
        balanced = Prober(part, self.effort, pace_floor_ns=floor)
        self._search_wide(problem_idx, balanced, problem, near, wide, wide.finalists)
        self.num_labels += balanced.num_labels

    def _search_wide(
        self,
        problem_idx: int,
        prober: Prober,
        problem: Problem,
        names: IntArray,
        wide: Wide,
        finalists: int,
    ) -> None:
        """Simulates the best plans of a prober by either objective, as plans of ``problem``, whose pieces
        ``names`` are those of the prober.
        """
        for objective in (Objective.CLOSED_FORM, Objective.LOWER_BOUND):
            reach, margin = self.cutoff_ns, 1.0
            if objective is Objective.CLOSED_FORM:
                margin = wide.margin_frac
                reach = max(self.reach_ns, min(int(self.cutoff_ns * (1 + margin)), FAR_NS))
            found = prober.search(objective, reach, margin_frac=margin, max_chains=wide.ranked)
            if found.gave_up:
                found = prober.search(
                    objective, reach, margin_frac=margin, max_chains=wide.ranked, beam=self.effort.beam
                )
            for chain in various(prober.problem, found.chains, wide.per_structure)[:finalists]:
                if objective is Objective.LOWER_BOUND and chain.value_ns >= self.cutoff_ns:
                    break
                self._simulate(problem_idx, problem, _renamed(chain, names))

    def _polish(self, problem_idx: int, prober: Prober, most_starts: int | None = None) -> None:
        """Improves the best candidates of a problem, of different structure, step by step."""
        wide, problem = self.effort.wide(prober.problem.num_micro_batches), prober.problem
        num_starts = wide.polish_starts if most_starts is None else most_starts
        if self._is_settled(problem_idx):
            return
        around = self._around.setdefault(problem_idx, Neighbourhood(problem, prober.pace_floor_ns))

        def execute(chain: Chain) -> int:
            return self._simulate(problem_idx, problem, chain).time_ns

        budget = wide.polish_tasks
        for start in self._starts(problem, _SWEPT * num_starts):
            if (problem_idx, start.chain.pieces) not in self._swept:
                self._swept.add((problem_idx, start.chain.pieces))
                budget = sweep(around, _step(start), execute, budget)
        budget = wide.polish_tasks
        starts = self._starts(problem, num_starts)
        for idx, start in enumerate(starts):
            if start.rank not in self._polished:  # else it has led somewhere already
                self._polished.add(start.rank)
                share = min(budget, 2 * budget // (len(starts) - idx))
                budget += polish(around, _step(start), start.time_ns, execute, share) - share

    def _starts(self, problem: Problem, count: int) -> list[Candidate]:
        """Returns the best candidates of a problem, one per structure."""
        starts: dict[Structure, Candidate] = {}
        for candidate in sorted(self.candidates, key=lambda c: c.rank):
            if candidate.problem is problem:
                starts.setdefault(structure(problem, candidate.chain), candidate)
            if len(starts) == count:
                break
        return list(starts.values())

    def _reopen(self, best: Candidate, prober: Prober) -> None:
        """Searches once more for all that three stages in a row of the best plan could be, the others being
        what they are; of pieces that a better plan may have, where these are known.
        """
        problem, pieces = best.problem, best.problem.pieces
        if problem is not prober.problem or self._is_settled(best.problem_idx):
            return
        wide, chosen = self.effort.wide(problem.num_micro_batches), np.array(best.chain.pieces)
        below_ns, possible = self.listed.get(best.problem_idx, (0, chosen))
        if self.cutoff_ns > below_ns:
            possible = np.arange(len(pieces))
        for first in range(max(1, len(chosen) - 2)):
            inside = chosen[first : first + 3]
            begin, end = pieces.start[inside[0]], pieces.stop[inside[-1]]
            free = possible[(pieces.start[possible] >= begin) & (pieces.stop[possible] <= end)]
            names = np.union1d(free, chosen)
            part = replace(problem, pieces=pieces.take(names))
            reopened = Prober(part, self.effort, pace_floor_ns=prober.pace_floor_ns)
            self._search_wide(best.problem_idx, reopened, problem, names, wide, _REOPENED_FINALISTS)
            self.num_labels += reopened.num_labels

    def _walk_on(self, best: Candidate, prober: Prober, seed: int) -> None:
        """Walks on from the best plan, where a good part of the gap to its bound is left."""
        problem, idx, time_ns = best.problem, best.problem_idx, best.time_ns
        if problem is not prober.problem or time_ns > self.cutoff_ns:
            return
        if time_ns <= (1 + _WALK_GAP_FRAC) * self.lower_bound_ns():
            return
        from tangram.planner.walk import Walk

        walk = Walk(problem, time_ns, lambda chain: self._simulate(idx, problem, chain).time_ns)
        first = walk.start(best.chain)
        if first is not None:
            tasks = problem.num_micro_batches * len(best.chain.pieces)
            most = _WALK_TASKS * self.effort.wide(problem.num_micro_batches).polish_tasks // tasks
            walk.go(first, _WALK_STEPS, seed, judgements=min(most, _WALK_JUDGEMENTS))

    def _list(self, problem_idx: int, prober: Prober) -> None:
        """Simulates every plan whose bound is below the best time, if they are not too many; first those of
        the fastest piece of each slice and portion.
        """
        if self._is_settled(problem_idx):
            return
        wide, problem = self.effort.wide(prober.problem.num_micro_batches), prober.problem
        kept = fastest_pieces(problem.pieces, problem.num_micro_batches)
        thin = prober.of_some(kept)
        self._list_all(problem_idx, thin, problem, kept, _THIN_LABELS * wide.listing_labels, wide)
        before = prober.num_labels
        everything = np.arange(len(problem.pieces))
        if not prober.is_too_much(self.cutoff_ns) and self._list_all(
            problem_idx, prober, problem, everything, wide.listing_labels, wide
        ):
            self.close(problem_idx, self.cutoff_ns, proven=True)
        self.num_labels += thin.num_labels + prober.num_labels - before

    def _list_all(
        self,
        problem_idx: int,
        prober: Prober,
        problem: Problem,
        names: IntArray,
        label_limit: int,
        wide: Wide,
    ) -> bool:
        """Simulates the plans of a prober whose bound is below the best time, as plans of ``problem``, whose
        pieces ``names`` are those of the prober; false when not all of them were.
        """
        cutoff_ns = self.cutoff_ns
        found = prober.list_all(cutoff_ns, label_limit, wide.listing_plans + 1)
        if found.exhausted and found.pieces is not None and len(names) == len(problem.pieces):
            self.listed[problem_idx] = cutoff_ns, found.pieces
        complete = found.exhausted and len(found.chains) <= wide.listing_plans
        most = wide.listing_plans if complete else wide.listing_plans // _INCOMPLETE
        for count, chain in enumerate(found.chains):
            if chain.value_ns >= self.cutoff_ns:
                return found.exhausted
            if count == most:
                return False
            self._simulate(problem_idx, problem, _renamed(chain, names))
        return complete

    def _simulate(self, problem_idx: int, problem: Problem, chain: Chain) -> Candidate:
        key = (id(problem), chain.pieces, chain.extra_in_flight)
        if key in self._seen:
            return self._seen[key]
        pieces, time_ns = list(chain.pieces), self.referee(problem, chain)
        if self.exactly is not None and time_ns < self.cutoff_ns:
            time_ns = self.exactly(problem, chain)
        candidate = Candidate(
            time_ns,
            int(problem.pieces.gpus[pieces].sum()),
            int(problem.pieces.num_stages[pieces].sum()),
            problem_idx,
            problem,
            chain,
        )
        self._seen[key] = candidate
        self.candidates.append(candidate)
        if self.best is None or candidate.rank < self.best.rank:
            self.best = candidate
            if self.report is not None:
                self.report()
        return candidate


def _renamed(chain: Chain, names: IntArray) -> Chain:
    return replace(chain, pieces=tuple(int(names[piece]) for piece in chain.pieces))


def _step(candidate: Candidate) -> Step:
    return Step(candidate.chain.pieces, candidate.chain.extra_in_flight)
