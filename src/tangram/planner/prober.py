"""Searches one problem, with the guide that it takes."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np

from tangram.planner.frontier import FrontierSearch, Objective, SearchResult
from tangram.planner.lattice import PrefixBound, prefix_bound
from tangram.planner.problem import FAR_NS, Chain, Problem

_FIRST_CUTOFFS = (1.005, 1.02, 1.06, 1.12, 1.25, 1.6, 3.0, None)
_HURRIED_CUTOFFS = (1.05, 1.3, None)


@dataclass(frozen=True, slots=True)
class Effort:
    """How hard to try; every limit is a count, so that the same input gives the same plan on any machine.

    Attributes:
        beam: Labels per cut of the first, quick search.
        finalists: Plans of the closed-form search that are simulated, per micro-batch size.
        margin_frac: How far above the best closed form a finalist may be.
        easy_labels: Labels of a search with the quick guide before the guide with windows is made.
        levels: Windows that the better guide tells apart.
        label_limit: Labels of one search before it gives up.
        merged_labels: Labels of the merged bound search, before merging; beyond them the guide's bound
            counts.
        listing_labels: Labels of the exhaustive listing before it gives up.
        listing_plans: Plans of the listing that are simulated at most.
        few_micro_batches: Up to so many micro-batches, start and end of a pipeline weigh so much that the
            closed form ranks poorly, and a simulation costs little: the listing goes further.
        few_finalists: `finalists` for few micro-batches; many, as contention that only the simulation of the
            placed plan sees may reverse the ranking.
        few_margin_frac: `margin_frac` for few micro-batches.
        few_listing_labels: `listing_labels` for few micro-batches.
        few_listing_plans: `listing_plans` for few micro-batches.
        quick: Only the beam search: a good plan, no bound. For comparisons and what-ifs.
        quick_sizes: Micro-batch sizes that a quick search looks at from its first plan on; it looks at
            three times as many before it gives up.
    """

    beam: int = 160
    finalists: int = 8
    margin_frac: float = 0.004
    easy_labels: int = 12_000
    levels: int = 8
    label_limit: int = 150_000
    merged_labels: int = 1_000_000
    listing_labels: int = 2_500
    listing_plans: int = 24
    few_micro_batches: int = 16
    few_finalists: int = 64
    few_margin_frac: float = 0.05
    few_listing_labels: int = 100_000
    few_listing_plans: int = 3_000
    quick: bool = False
    quick_sizes: int = 3

    def for_micro_batches(self, num_micro_batches: int) -> Effort:
        """Returns the effort for a problem with so many micro-batches."""
        if num_micro_batches > self.few_micro_batches:
            return self
        return replace(
            self,
            finalists=self.few_finalists,
            margin_frac=self.few_margin_frac,
            listing_labels=self.few_listing_labels,
            listing_plans=self.few_listing_plans,
        )

    def hurried(self) -> Effort:
        """Returns the effort of a what-if: a good plan, quickly."""
        return replace(self, quick=True, beam=min(48, self.beam), label_limit=min(40_000, self.label_limit))


@dataclass(slots=True)
class Prober:
    """Searches over one problem.

    The quick guide (one level) is tried first; once a search gives up with it, memory is tight, and all later
    searches use the guide that tells windows apart.

    Attributes:
        problem: What to compose.
        effort: Limits.
        num_labels: Labels of all searches.
        pace_floor_ns: The least period, as the first guide knows it. Extra warm-up is part of the search
            space only where an edge would be slower than that; see :meth:`settle_floor`.
    """

    problem: Problem
    effort: Effort
    num_labels: int = 0
    pace_floor_ns: int = 0
    _levels: int = 1
    _guides: dict[tuple[int, int], PrefixBound] = field(default_factory=dict)
    _easy_bound: tuple[int, SearchResult] | None = None

    def guide(self, cutoff_ns: int) -> PrefixBound:
        """Returns the relaxed programme over pieces that a plan below the cut-off may contain."""
        max_period_ns = cutoff_ns // max(self.problem.num_micro_batches - 1, 1) + 1
        key = (self._levels, max_period_ns)
        if key not in self._guides:
            self._guides[key] = prefix_bound(self.problem, max_period_ns, self._levels)
        return self._guides[key]

    def settle_floor(self, cutoff_ns: int) -> None:
        """Fixes the pace floor, once and for all searches of this problem, so that its space is well
        defined.
        """
        if self.pace_floor_ns == 0:
            pace = self.promise(cutoff_ns)[0]
            self.pace_floor_ns = pace // self.problem.num_micro_batches if pace < FAR_NS else 0

    def promise(self, cutoff_ns: int) -> tuple[int, int]:
        """Returns what the relaxed programme alone says: ``m`` times the least period, and the least fill.

        The first is a valid lower bound by itself, for when a search gives up; ``FAR_NS`` when nothing fits.
        """
        guide, pieces, m = self.guide(cutoff_ns), self.problem.pieces, self.problem.num_micro_batches
        tail = np.flatnonzero(pieces.stop == self.problem.num_atoms)
        everything = guide.lattice.capacity @ guide.lattice.strides
        left = everything - guide.lattice.strides[pieces.island[tail]] * pieces.gpus[tail]
        at = (guide.level(1 + pieces.span[tail]), pieces.start[tail], left)
        fill = guide.time_ns[at] + pieces.time_ns[tail]
        fits = fill < FAR_NS
        pace = m * guide.period_ns[at][fits]
        least = np.maximum(pace, pieces.occupied_ns[tail][fits])
        return int(least.min(initial=FAR_NS)), int(fill[fits].min(initial=FAR_NS))

    def is_hard(self, cutoff_ns: int) -> bool:
        """Whether the bound search gives up with the quick guide; all later searches then use the better
        one.
        """
        self.settle_floor(cutoff_ns)
        if self._levels == 1 and self.effort.levels > 1:
            found = self._run(Objective.LOWER_BOUND, cutoff_ns, label_limit=self.effort.easy_labels)
            if found.gave_up:
                self._levels = self.effort.levels
            else:
                self._easy_bound = (cutoff_ns, found)
        return self._levels > 1

    def search(
        self,
        objective: Objective,
        cutoff_ns: int,
        *,
        margin_frac: float = 0.0,
        beam: int | None = None,
        must_use: int | None = None,
    ) -> SearchResult:
        """Searches for the best plans below a cut-off."""
        self.settle_floor(cutoff_ns)
        if objective is Objective.LOWER_BOUND and self._easy_bound and self._easy_bound[0] == cutoff_ns:
            return self._easy_bound[1]
        easy = self._levels == 1 and self.effort.levels > 1
        limit = self.effort.easy_labels if easy else self.effort.label_limit
        found = self._run(
            objective, cutoff_ns, label_limit=limit, margin_frac=margin_frac, beam=beam, must_use=must_use
        )
        if not (found.gave_up and easy):
            return found
        self._levels = self.effort.levels
        return self.search(objective, cutoff_ns, margin_frac=margin_frac, beam=beam, must_use=must_use)

    def _run(
        self,
        objective: Objective,
        cutoff_ns: int,
        *,
        label_limit: int,
        margin_frac: float = 0.0,
        beam: int | None = None,
        must_use: int | None = None,
        dominance: bool = True,
        merge: bool = False,
        max_chains: int = 64,
    ) -> SearchResult:
        search = FrontierSearch(
            self.problem,
            self.guide(cutoff_ns),
            objective,
            cutoff_ns,
            margin_frac=margin_frac,
            beam=beam,
            dominance=dominance,
            merge=merge,
            label_limit=label_limit,
            max_chains=max_chains,
            pace_floor_ns=self.pace_floor_ns,
            must_use=must_use,
        )
        found = search.run()
        self.num_labels += found.num_labels
        return found

    def merged_bound_ns(self, cutoff_ns: int) -> int:
        """Returns a lower bound of any plan, at most the cut-off, from merged labels: for when the bound
        search gives up.
        """
        self.settle_floor(cutoff_ns)
        found = self._run(Objective.LOWER_BOUND, cutoff_ns, label_limit=self.effort.merged_labels, merge=True)
        if found.gave_up:
            return min(self.promise(cutoff_ns)[0], cutoff_ns)
        return cutoff_ns if found.lowest_ns is None else min(found.lowest_ns, cutoff_ns)

    def list_all(self, cutoff_ns: int) -> SearchResult:
        """Lists every plan whose lower bound is below a cut-off, up to the limits."""
        self.settle_floor(cutoff_ns)
        return self._run(
            Objective.LOWER_BOUND,
            cutoff_ns,
            dominance=False,
            label_limit=self.effort.listing_labels,
            max_chains=self.effort.listing_plans + 1,
        )

    def first_chains(self, below_ns: int = FAR_NS, must_use: int | None = None) -> list[Chain]:
        """Finds good plans quickly: just above the relaxed optimum first, as a low cut-off keeps labels
        few.
        """
        for factor in _HURRIED_CUTOFFS if self.effort.quick else _FIRST_CUTOFFS:
            pace, fill = self.promise(below_ns)
            if fill >= FAR_NS:
                return []
            cutoff = below_ns if factor is None else min(int((pace + fill) * factor), below_ns)
            chains = self.search(
                Objective.CLOSED_FORM, cutoff, beam=self.effort.beam, must_use=must_use
            ).chains
            if chains or cutoff >= below_ns:
                return chains
        return []
