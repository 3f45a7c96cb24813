"""Composes pieces into the best pipeline: searches, simulates the finalists, and proves how far off the answer can be.

Per micro-batch size, in this order, each step with the best simulated time so far as its cut-off:

1. a beam search gives a first plan (only while there is none);
2. the *bound* search finds the smallest lower bound of any plan; at or above the cut-off, this size is done;
3. the *closed-form* search finds the best plans by the ranking formula; they are simulated, best first;
4. if few plans remain whose bound is below the best simulated time, all of them are listed and simulated: then the answer
   is optimal in the simulator's eyes, not only near it.

The referee (a simulator) is passed in; it must never report less than the lower bound.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from tangram.planner.frontier import FrontierSearch, Objective, SearchResult
from tangram.planner.lattice import PrefixBound, prefix_bound
from tangram.planner.problem import FAR_NS, Chain, Problem

Referee = Callable[[Problem, Chain], int]

_FIRST_CUTOFFS = (1.005, 1.02, 1.06, 1.2, 1.6, 3.0, None)

_SLACK_SHIFT = (
    7  # the closed form may be this much (1/128) above the simulator and still deserve a simulation
)


@dataclass(frozen=True, slots=True)
class Effort:
    """How hard to try; every limit is a count, so that the same input gives the same plan on any machine.

    Attributes:
        beam: Labels per cut of the first, quick search.
        finalists: Plans of the closed-form search that are simulated, per micro-batch size.
        margin_frac: How far above the best closed form a finalist may be.
        label_limit: Labels of one search before it gives up (its bound is then the guide's).
        listing_labels: Labels of the exhaustive listing before it gives up.
        listing_plans: Plans of the listing that are simulated at most.
        quick: Only the beam search: a good plan, no bound. For comparisons and what-ifs.
    """

    beam: int = 160
    finalists: int = 8
    margin_frac: float = 0.004
    label_limit: int = 300_000
    listing_labels: int = 6_000
    listing_plans: int = 48
    quick: bool = False


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
        stairs_ns: Per problem index, ``m`` times the least period, and the smallest lower bound of a plan (with the fill).
        proven: Per problem index, whether no plan of it beats ``best`` (as it was at the end of that problem).
        num_labels: Labels of all searches.
    """

    referee: Referee
    effort: Effort = field(default_factory=Effort)
    incumbent_ns: int | None = None
    best: Candidate | None = None
    candidates: list[Candidate] = field(default_factory=list)
    lower_bounds_ns: dict[int, int] = field(default_factory=dict)
    stairs_ns: dict[int, tuple[int, int]] = field(default_factory=dict)
    proven: dict[int, bool] = field(default_factory=dict)
    num_labels: int = 0
    _seen: set[tuple[int, tuple[int, ...], tuple[int, ...]]] = field(default_factory=set)

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
        if not len(problem.pieces):
            self._close(problem_idx, FAR_NS, proven=True)
            return
        if self.effort.quick:
            self._quick(problem_idx, problem)
            return
        if self.cutoff_ns >= FAR_NS:
            self._first_plan(problem_idx, problem)
        guide = self._guide(problem)
        pace = _guide_bound(problem, guide)[0]
        bound = self._search(problem, guide, Objective.LOWER_BOUND)
        for chain in bound.chains[:2]:
            self._simulate(problem_idx, problem, chain)
        lowest = bound.chains[0].value_ns if bound.chains else self.cutoff_ns
        if not bound.exhausted:
            lowest = min(lowest, pace)
        self.stairs_ns[problem_idx] = (min(pace, lowest), lowest)
        if lowest >= self.cutoff_ns:
            self._close(problem_idx, self.cutoff_ns, proven=True)
            return
        closed = self._search(problem, guide, Objective.CLOSED_FORM, margin_frac=self.effort.margin_frac)
        for chain in closed.chains[: self.effort.finalists]:
            self._simulate(problem_idx, problem, chain)
        proven = self._list_all(problem_idx, problem, guide)
        self._close(problem_idx, self.cutoff_ns if proven else min(lowest, self.cutoff_ns), proven=proven)

    def lower_bound_ns(self) -> int:
        """The bound over all problems: at most the best simulated time."""
        return min([self.cutoff_ns, *self.lower_bounds_ns.values()])

    def _close(self, problem_idx: int, bound_ns: int, *, proven: bool) -> None:
        self.lower_bounds_ns[problem_idx] = bound_ns
        self.proven[problem_idx] = proven

    def _guide(self, problem: Problem) -> PrefixBound:
        return prefix_bound(problem, self.reach_ns // max(problem.num_micro_batches - 1, 1) + 1)

    def _quick(self, problem_idx: int, problem: Problem) -> None:
        self._close(problem_idx, 0, proven=False)
        if self.cutoff_ns >= FAR_NS:
            self._first_plan(problem_idx, problem)
            return
        search = FrontierSearch(
            problem,
            self._guide(problem),
            Objective.CLOSED_FORM,
            self.reach_ns,
            beam=self.effort.beam,
            label_limit=self.effort.label_limit,
        )
        for chain in search.run().chains[:4]:
            self._simulate(problem_idx, problem, chain)

    def best_with(self, problem_idx: int, problem: Problem, island: int) -> int | None:
        """Returns the simulated time of the best plan found that uses an island; None when there is none."""
        guide = prefix_bound(problem, FAR_NS)
        pace, fill = _guide_bound(problem, guide)
        for factor in _FIRST_CUTOFFS:
            cutoff = FAR_NS if factor is None else min(int((pace + fill) * factor), FAR_NS)
            search = FrontierSearch(
                problem,
                guide,
                Objective.CLOSED_FORM,
                cutoff,
                beam=self.effort.beam,
                label_limit=self.effort.label_limit,
                must_use=island,
            )
            chains = search.run().chains[:4]
            if chains:
                return min(self.referee(problem, chain) for chain in chains)
        return None

    def _first_plan(self, problem_idx: int, problem: Problem) -> None:
        """Looks just above the relaxed optimum first: the lower the cut-off, the fewer labels there are."""
        guide = prefix_bound(problem, FAR_NS)
        pace, fill = _guide_bound(problem, guide)
        for factor in _FIRST_CUTOFFS:
            cutoff = FAR_NS if factor is None else min(int((pace + fill) * factor), FAR_NS)
            search = FrontierSearch(
                problem,
                guide,
                Objective.CLOSED_FORM,
                cutoff,
                beam=self.effort.beam,
                label_limit=self.effort.label_limit,
            )
            found = search.run()
            self.num_labels += found.num_labels
            for chain in found.chains[:4]:
                self._simulate(problem_idx, problem, chain)
            if found.chains:
                return

    def _search(
        self, problem: Problem, guide: PrefixBound, objective: Objective, margin_frac: float = 0.0
    ) -> SearchResult:
        # The closed form is slightly above the simulator on good plans, so plans a little above the cut-off still count.
        cutoff = self.reach_ns if objective is Objective.CLOSED_FORM else self.cutoff_ns
        search = FrontierSearch(
            problem, guide, objective, cutoff, margin_frac=margin_frac, label_limit=self.effort.label_limit
        )
        found = search.run()
        self.num_labels += found.num_labels
        return found

    def _list_all(self, problem_idx: int, problem: Problem, guide: PrefixBound) -> bool:
        """Simulates every plan whose bound is below the best time; false when there are too many."""
        search = FrontierSearch(
            problem,
            guide,
            Objective.LOWER_BOUND,
            self.cutoff_ns,
            dominance=False,
            label_limit=self.effort.listing_labels,
            max_chains=self.effort.listing_plans + 1,
        )
        found = search.run()
        self.num_labels += found.num_labels
        if not found.exhausted:
            return False
        for count, chain in enumerate(found.chains):
            if chain.value_ns >= self.cutoff_ns:
                break
            if count == self.effort.listing_plans:
                return False
            self._simulate(problem_idx, problem, chain)
        return True

    def _simulate(self, problem_idx: int, problem: Problem, chain: Chain) -> None:
        key = (problem_idx, chain.pieces, chain.extra_in_flight)
        if key in self._seen:
            return
        self._seen.add(key)
        time_ns = self.referee(problem, chain)
        pieces = list(chain.pieces)
        candidate = Candidate(
            time_ns,
            int(problem.pieces.gpus[pieces].sum()),
            int(problem.pieces.num_stages[pieces].sum()),
            problem_idx,
            problem,
            chain,
        )
        self.candidates.append(candidate)
        if self.best is None or candidate.rank < self.best.rank:
            self.best = candidate


def _guide_bound(problem: Problem, guide: PrefixBound) -> tuple[int, int]:
    """Returns what the relaxed programme alone promises: ``m`` times the least period, and the least fill of a pipeline.

    The first is a valid lower bound by itself, for when a search gives up.
    """
    pieces, m = problem.pieces, problem.num_micro_batches
    tail = np.flatnonzero(pieces.stop == problem.num_atoms)
    left = np.array(problem.capacity, dtype=np.int64) @ guide.lattice.strides
    own = guide.lattice.strides[pieces.island[tail]] * pieces.gpus[tail]
    pace = guide.period_ns[pieces.start[tail], left - own].clip(max=FAR_NS // m)
    least = np.maximum(m * pace, pieces.occupied_ns[tail])
    fill = guide.time_ns[pieces.start[tail], left - own] + pieces.time_ns[tail]
    return int(least.min(initial=FAR_NS)), int(fill.min(initial=FAR_NS))
