"""Searches one problem, with the guide that it takes."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np

from tangram.cost.types import IntArray
from tangram.planner.effort import Effort
from tangram.planner.frontier import FrontierSearch, Objective, SearchResult
from tangram.planner.lattice import PrefixBound, prefix_bound, slice_order, slice_paces_ns
from tangram.planner.problem import FAR_NS, Chain, Problem

_FIRST_CUTOFFS = (1.005, 1.02, 1.06, 1.12, 1.25, 1.6, 3.0, None)
_HURRIED_CUTOFFS = (1.05, 1.3, None)
_AGAIN = 0.97  # a search that gave up gives up at cut-offs down to this much lower too, it is assumed
_REUSED_GUIDE = 1.02  # a guide for periods this much longer serves as well
_REUSED_MORE = 1.03  # so does one of this many more slices


@dataclass(slots=True)
class Prober:
    """Searches over one problem.

    The quick guide (one level) is tried first; once a search gives up with it, memory is tight, and all later
    searches use the guide that tells windows apart.

    Attributes:
        problem: What to compose.
        effort: Limits.
        reused_guide: A guide for periods this much longer serves as well: any does, but the closer the fewer
            labels.
        num_labels: Labels of all searches.
        pace_floor_ns: The least period, as the first guide knows it. Extra warm-up is part of the search
            space only where an edge would be slower than that; see :meth:`settle_floor`.
    """

    problem: Problem
    effort: Effort
    reused_guide: float = _REUSED_GUIDE
    num_labels: int = 0
    pace_floor_ns: int = 0
    _levels: int = 1
    _guides: dict[tuple[int, int], PrefixBound] = field(default_factory=dict)
    _order: IntArray | None = None
    _paces_ns: IntArray | None = None
    _easy_bound: tuple[int, SearchResult] | None = None
    _too_much_ns: dict[Objective | None, int] = field(default_factory=dict)

    def of_some(self, kept: IntArray) -> Prober:
        """Returns a prober of some of the pieces: the guides that there are bound these as well."""
        part = replace(self.problem, pieces=self.problem.pieces.take(kept))
        return Prober(
            part,
            self.effort,
            self.reused_guide,
            pace_floor_ns=self.pace_floor_ns,
            _levels=self._levels,
            _guides=self._guides.copy(),
        )

    def guide(self, cutoff_ns: int) -> PrefixBound:
        """Returns the relaxed programme over pieces that a plan below the cut-off may contain."""
        max_period_ns = cutoff_ns // max(self.problem.num_micro_batches - 1, 1) + 1
        able = [
            ns
            for levels, ns in self._guides
            if levels == self._levels and ns >= max_period_ns and self._is_close(max_period_ns, ns)
        ]
        key = (self._levels, min(able, default=max_period_ns))
        if key not in self._guides:
            self._guides[key] = prefix_bound(self.problem, key[1], self._levels, self._in_order())
        return self._guides[key]

    def _in_order(self) -> IntArray:
        if self._order is None:
            self._order = slice_order(self.problem)
        return self._order

    def _is_close(self, period_ns: int, longer_ns: int) -> bool:
        """Whether a guide for longer periods is hardly worse than one made on purpose: periods are little
        longer, or few more slices have one of these. Slices of equal atoms have few different periods.
        """
        if longer_ns <= period_ns * self.reused_guide:
            return True
        if self._paces_ns is None:
            self._paces_ns = slice_paces_ns(self.problem, self._in_order())
        needed, more = np.searchsorted(self._paces_ns, [period_ns, longer_ns], side="right")
        return bool(more <= needed * _REUSED_MORE)

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
        max_chains: int = 64,
    ) -> SearchResult:
        """Searches for the best plans below a cut-off."""
        self.settle_floor(cutoff_ns)
        plain = objective is Objective.LOWER_BOUND and margin_frac == 0
        if plain and self._easy_bound and self._easy_bound[0] == cutoff_ns:
            return self._easy_bound[1]
        whole = beam is None and must_use is None
        if whole and self._gives_up(objective, cutoff_ns):
            return SearchResult([], None, 0, exhausted=False, gave_up=True)
        while True:
            easy = self._levels == 1 and self.effort.levels > 1
            found = self._run(
                objective,
                cutoff_ns,
                label_limit=self.effort.easy_labels if easy else self.effort.label_limit,
                margin_frac=margin_frac,
                beam=beam,
                must_use=must_use,
                max_chains=max_chains,
            )
            if found.gave_up and easy:
                self._levels = self.effort.levels
                continue
            if found.gave_up and whole:
                self._too_much_ns[objective] = min(cutoff_ns, self._too_much_ns.get(objective, cutoff_ns))
            return found

    def is_too_much(self, cutoff_ns: int) -> bool:
        """Whether a list of all plans below a cut-off is known to be too long."""
        return self._gives_up(Objective.LOWER_BOUND, cutoff_ns) or self._gives_up(None, cutoff_ns)

    def _gives_up(self, objective: Objective | None, cutoff_ns: int) -> bool:
        """Whether a search (None: a list) has given up at no much higher a cut-off."""
        return objective in self._too_much_ns and cutoff_ns >= _AGAIN * self._too_much_ns[objective]

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

    def list_all(self, cutoff_ns: int, label_limit: int, max_chains: int) -> SearchResult:
        """Lists every plan whose lower bound is below a cut-off, up to the limits."""
        self.settle_floor(cutoff_ns)
        found = self._run(
            Objective.LOWER_BOUND,
            cutoff_ns,
            dominance=False,
            label_limit=label_limit,
            max_chains=max_chains,
        )
        if found.gave_up or len(found.chains) == max_chains:
            self._too_much_ns[None] = min(cutoff_ns, self._too_much_ns.get(None, cutoff_ns))
        return found

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
