"""Composes pieces into the best pipeline: searches, simulates the finalists, and proves how far off the
answer can be.

Per micro-batch size, in this order, each step with the best simulated time so far as its cut-off:

1. a beam search gives a first plan (only while there is none);
2. the *bound* search finds the smallest lower bound of any plan; at or above the cut-off, this size is done;
3. the *closed-form* search finds the best plans by the ranking formula; they are simulated, best first;
4. if few plans remain whose bound is below the best simulated time, all of them are listed and simulated:
   then the answer is optimal in the simulator's eyes, not only near it.

The referee (a simulator) is passed in; it must never report less than the lower bound.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

from tangram.planner.frontier import Objective
from tangram.planner.prober import Effort, Prober
from tangram.planner.problem import FAR_NS, Chain, Problem

Referee = Callable[[Problem, Chain], int]

_SLACK_SHIFT = (
    7  # the closed form may be this much (1/128) above the simulator and still deserve a simulation
)


@dataclass(frozen=True, slots=True)
class Candidate:
    """A simulated plan; candidates order by time, then by what a person would prefer."""

    time_ns: int
    num_units: int
    num_stages: int
    problem_idx: int
    problem: Problem
    chain: Chain

    @property
    def rank(self) -> tuple[int, int, int, int, tuple[int, ...], tuple[int, ...]]:
        """Time, then fewer GPUs, fewer stages, earlier micro-batch size, earlier pieces."""
        chain = self.chain
        return (
            self.time_ns,
            self.num_units,
            self.num_stages,
            self.problem_idx,
            chain.pieces,
            chain.extra_in_flight,
        )


@dataclass(slots=True)
class Composer:
    """Keeps the best plan over several problems (one per micro-batch size).

    Attributes:
        referee: Simulates a chain, in nanoseconds.
        effort: Limits.
        incumbent_ns: A time that plans have to beat, from elsewhere.
        best: The best candidate so far.
        candidates: All simulated candidates.
        lower_bounds_ns: Per problem index, what no plan of it can beat.
        stairs_ns: Per problem index, ``m`` times the least period, and the smallest lower bound of a plan
            (with the fill).
        pace_floors_ns: Per problem index, the period below which extra warm-up was not tried to help.
        proven: Per problem index, whether no plan of it beats ``best`` (as it was at the end of that
            problem).
        num_labels: Labels of all searches.
    """

    referee: Referee
    effort: Effort = field(default_factory=Effort)
    incumbent_ns: int | None = None
    best: Candidate | None = None
    candidates: list[Candidate] = field(default_factory=list)
    lower_bounds_ns: dict[int, int] = field(default_factory=dict)
    stairs_ns: dict[int, tuple[int, int]] = field(default_factory=dict)
    pace_floors_ns: dict[int, int] = field(default_factory=dict)
    proven: dict[int, bool] = field(default_factory=dict)
    num_labels: int = 0
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
        prober = Prober(problem, self.effort.for_micro_batches(problem.num_micro_batches))
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
        prober = Prober(problem, self.effort)
        self._first_plan(problem_idx, prober)
        self.num_labels += prober.num_labels

    def best_with(self, problem_idx: int, problem: Problem, island: int) -> Candidate | None:
        """Returns the best plan found that uses an island; None when there is none.

        The plans found count as candidates like any other.
        """
        found = [
            self._simulate(problem_idx, problem, chain)
            for chain in Prober(problem, self.effort).first_chains(must_use=island)[:4]
        ]
        return min(found, key=lambda candidate: candidate.rank, default=None)

    def lower_bound_ns(self) -> int:
        """The bound over all problems: at most the best simulated time."""
        return min([self.cutoff_ns, *self.lower_bounds_ns.values()])

    def close(self, problem_idx: int, bound_ns: int, *, proven: bool) -> None:
        """Records what is known of a problem once it has been searched, or pruned."""
        self.lower_bounds_ns[problem_idx] = bound_ns
        self.proven[problem_idx] = proven

    def _first_plan(self, problem_idx: int, prober: Prober) -> None:
        if not len(prober.problem.pieces):
            return
        for ranker in self._rankers(prober):
            for chain in ranker.first_chains()[:4]:
                self._simulate(problem_idx, prober.problem, chain)

    def _rankers(self, prober: Prober) -> list[Prober]:
        """The prober, and one that expects neighbours on one node wherever they may share it.

        Which of them is right shows only once stages are placed, so the finalists of both are simulated.
        """
        problem = prober.problem
        if not problem.placement_matters:
            return [prober]
        return [prober, Prober(replace(problem, edges=problem.edges_at_best), prober.effort)]

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
            lowest = max(pace, prober.merged_bound_ns(self.cutoff_ns))
        self.stairs_ns[problem_idx] = (min(pace, lowest), lowest)
        if lowest >= self.cutoff_ns:
            self.close(problem_idx, self.cutoff_ns, proven=True)
            return
        for ranker in self._rankers(prober):
            closed = ranker.search(Objective.CLOSED_FORM, self.reach_ns, margin_frac=effort.margin_frac)
            for chain in closed.chains[: effort.finalists]:
                self._simulate(problem_idx, problem, chain)
        proven = self._list_all(problem_idx, prober)
        self.close(problem_idx, self.cutoff_ns if proven else min(lowest, self.cutoff_ns), proven=proven)

    def _list_all(self, problem_idx: int, prober: Prober) -> bool:
        """Simulates every plan whose bound is below the best time; false when there are too many."""
        found = prober.list_all(self.cutoff_ns)
        if not found.exhausted:
            return False
        for count, chain in enumerate(found.chains):
            if chain.value_ns >= self.cutoff_ns:
                break
            if count == prober.effort.listing_plans:
                return False
            self._simulate(problem_idx, prober.problem, chain)
        return True

    def _simulate(self, problem_idx: int, problem: Problem, chain: Chain) -> Candidate:
        key = (id(problem), chain.pieces, chain.extra_in_flight)
        if key in self._seen:
            return self._seen[key]
        pieces = list(chain.pieces)
        candidate = Candidate(
            self.referee(problem, chain),
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
        return candidate
