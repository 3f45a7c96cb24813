"""Searches one problem, with the guide that it takes."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from tangram.planner.frontier import FrontierSearch, Objective, SearchResult
from tangram.planner.lattice import PrefixBound, prefix_bound
from tangram.planner.problem import FAR_NS, Chain, Problem

_FIRST_CUTOFFS = (1.005, 1.02, 1.06, 1.2, 1.6, 3.0, None)


@dataclass(frozen=True, slots=True)
class Effort:
    """How hard to try; every limit is a count, so that the same input gives the same plan on any machine.

    Attributes:
        beam: Labels per cut of the first, quick search.
        finalists: Plans of the closed-form search that are simulated, per micro-batch size.
        margin_frac: How far above the best closed form a finalist may be.
        easy_labels: Labels of a search with the quick guide before the guide with windows is made.
        levels: Windows that the better guide tells apart.
        label_limit: Labels of one search before it gives up (its bound is then the guide's).
        listing_labels: Labels of the exhaustive listing before it gives up.
        listing_plans: Plans of the listing that are simulated at most.
        quick: Only the beam search: a good plan, no bound. For comparisons and what-ifs.
    """

    beam: int = 160
    finalists: int = 8
    margin_frac: float = 0.004
    easy_labels: int = 12_000
    levels: int = 8
    label_limit: int = 300_000
    listing_labels: int = 6_000
    listing_plans: int = 48
    quick: bool = False


@dataclass(slots=True)
class Prober:
    """Searches over one problem.

    The quick guide (one level) is tried first; once a search gives up with it, memory is tight, and all later
    searches use the guide that tells windows apart.

    Attributes:
        problem: What to compose.
        effort: Limits.
        num_labels: Labels of all searches.
    """

    problem: Problem
    effort: Effort
    num_labels: int = 0
    _levels: int = 1
    _guides: dict[tuple[int, int], PrefixBound] = field(default_factory=dict)

    def guide(self, cutoff_ns: int) -> PrefixBound:
        """Returns the relaxed programme over pieces that a plan below the cut-off may contain."""
        max_period_ns = cutoff_ns // max(self.problem.num_micro_batches - 1, 1) + 1
        key = (self._levels, max_period_ns)
        if key not in self._guides:
            self._guides[key] = prefix_bound(self.problem, max_period_ns, self._levels)
        return self._guides[key]

    def promise(self, cutoff_ns: int) -> tuple[int, int]:
        """Returns what the relaxed programme alone says: ``m`` times the least period, and the least fill.

        The first is a valid lower bound by itself, for when a search gives up; ``FAR_NS`` when nothing fits.
        """
        guide, pieces, m = self.guide(cutoff_ns), self.problem.pieces, self.problem.num_micro_batches
        tail = np.flatnonzero(pieces.stop == self.problem.num_atoms)
        everything = np.array(self.problem.capacity, dtype=np.int64) @ guide.lattice.strides
        left = everything - guide.lattice.strides[pieces.island[tail]] * pieces.gpus[tail]
        at = (guide.level(1 + pieces.span[tail]), pieces.start[tail], left)
        fill = guide.time_ns[at] + pieces.time_ns[tail]
        fits = fill < FAR_NS
        pace = m * guide.period_ns[at][fits]
        least = np.maximum(pace, pieces.occupied_ns[tail][fits])
        return int(least.min(initial=FAR_NS)), int(fill[fits].min(initial=FAR_NS))

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
        while True:
            easy = self._levels == 1 and self.effort.levels > 1
            search = FrontierSearch(
                self.problem,
                self.guide(cutoff_ns),
                objective,
                cutoff_ns,
                margin_frac=margin_frac,
                beam=beam,
                label_limit=self.effort.easy_labels if easy else self.effort.label_limit,
                must_use=must_use,
            )
            found = search.run()
            self.num_labels += found.num_labels
            if not (found.gave_up and easy):
                return found
            self._levels = self.effort.levels

    def list_all(self, cutoff_ns: int) -> SearchResult:
        """Lists every plan whose lower bound is below a cut-off, up to the limits."""
        search = FrontierSearch(
            self.problem,
            self.guide(cutoff_ns),
            Objective.LOWER_BOUND,
            cutoff_ns,
            dominance=False,
            label_limit=self.effort.listing_labels,
            max_chains=self.effort.listing_plans + 1,
        )
        found = search.run()
        self.num_labels += found.num_labels
        return found

    def first_chains(self, must_use: int | None = None) -> list[Chain]:
        """Finds good plans from nothing: just above the relaxed optimum first, as a low cut-off keeps labels few."""
        for factor in _FIRST_CUTOFFS:
            pace, fill = self.promise(FAR_NS)
            if fill >= FAR_NS:
                return []
            cutoff = FAR_NS if factor is None else min(int((pace + fill) * factor), FAR_NS)
            chains = self.search(
                Objective.CLOSED_FORM, cutoff, beam=self.effort.beam, must_use=must_use
            ).chains
            if chains:
                return chains
        return []
