"""Which (slice, portion) pairs are worth a query: enumeration and pruning, with counts.

Rules, in the order in which they are applied (docs/architecture.md, "Pruning"):

* *incompatible*: the parallelizer cannot take the pair (GPU count, experts, slices without ends);
* *infeasible*: model states alone exceed the portion's memory beside its reserve, however they are sharded;
* *unbalanced*: the slice's least conceivable time on the portion exceeds what an incumbent plan allows, or
  it is so small that the GPUs left could not carry the rest of the model in that time (``safe``); or its
  share of the work and the portion's share of the compute differ by more than ``PAPER_FACTOR`` (``paper``);
* *redundant*: another slice with equal content is planned on the same portion.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from tangram.cluster.spec import Portion
from tangram.cost.types import BoolArray, IntArray
from tangram.model.atoms import Atom
from tangram.parallelizers.protocols import Capabilities, whole_ns
from tangram.planner.options import Pruning
from tangram.planner.problem import Pieces, Problem
from tangram.planner.reference import Reference

PAPER_FACTOR = 2.0

Pair = tuple[int, int, int, int]
"""A slice, ``[start, stop)``, an island, and how many GPUs of it."""


@dataclass(frozen=True, slots=True)
class PairRules:
    """What pruning looks at, for one micro-batch size.

    Attributes:
        atoms: The model's atoms.
        has_moe: Whether any atom has experts.
        reference: One GPU alone.
        pruning: Which rules apply.
        max_time_s: Slowest stage that an incumbent plan allows; ``inf`` without one.
        allowed: Slices that the user's own cut allows, or None for all.
        possible: Pairs of which something may be left to find, or None for all.
    """

    atoms: tuple[Atom, ...]
    has_moe: bool
    reference: Reference
    pruning: Pruning
    max_time_s: float
    allowed: frozenset[tuple[int, int]] | None = None
    possible: frozenset[Pair] | None = None

    def slices(
        self, portion: Portion, island: int, capabilities: Capabilities, counts: Counter[str]
    ) -> list[tuple[int, int]]:
        """Returns the slices to plan on a portion (equal contents included), and counts what each rule
        removes.
        """
        alive = self._all_slices()
        counts["pairs"] += int(alive.sum())
        alive = self._apply(alive, self._compatible(portion, capabilities), "removed_incompatible", counts)
        if self.pruning is not Pruning.NONE:
            num_gpus = portion.num_gpus
            alive = self._apply(alive, self._feasible(num_gpus, island), "removed_infeasible", counts)
            alive = self._apply(alive, self._balanced(num_gpus, island), "removed_unbalanced", counts)
        if self.possible is not None:
            mask = np.zeros_like(alive)
            for start, stop, there, number in self.possible:
                mask[start, stop] |= (there, number) == (island, portion.num_gpus)
            alive = self._apply(alive, mask, "removed_settled", counts)
        starts, stops = np.nonzero(alive)
        found = list(zip(starts.tolist(), stops.tolist(), strict=True))
        if self.pruning is not Pruning.NONE:
            contents = _contents(tuple(a.fingerprint for a in self.atoms))[alive]
            counts["removed_redundant"] += len(found) - len(set(contents.tolist()))
        return found

    def _all_slices(self) -> BoolArray:
        num = len(self.atoms)
        starts, stops = np.ogrid[: num + 1, : num + 1]
        alive: BoolArray = starts < stops
        if self.allowed is not None:
            mask = np.zeros_like(alive)
            for start, stop in self.allowed:
                mask[start, stop] = True
            alive = alive & mask
        return alive

    def _compatible(self, portion: Portion, capabilities: Capabilities) -> BoolArray:
        num = len(self.atoms)
        fits = np.ones((num + 1, num + 1), dtype=np.bool_)
        if capabilities.gpu_counts is not None and portion.num_gpus not in capabilities.gpu_counts:
            fits[:] = False
        if not capabilities.moe and self.has_moe:
            fits[:] = False
        if not capabilities.partial_slices:
            whole = np.zeros_like(fits)
            whole[0, num] = True
            fits &= whole
        return fits

    def useful(self, pieces: Pieces, gpus_per_unit: Sequence[int]) -> BoolArray:
        """Returns which pieces are there when only pairs that these rules leave are asked about.

        Args:
            pieces: Of a micro-batch size of which more was asked.
            gpus_per_unit: Of each island's counter.
        """
        keep: BoolArray = np.ones(len(pieces), dtype=np.bool_)
        sizes = int(pieces.gpus.max(initial=0)) + 1
        portion = pieces.island * sizes + pieces.gpus
        for number in np.flatnonzero(np.bincount(portion)).tolist():
            island, units = divmod(number, sizes)
            num_gpus = units * gpus_per_unit[island]
            alive = self._feasible(num_gpus, island) & self._balanced(num_gpus, island)
            at = np.flatnonzero(portion == number)
            keep[at] = alive[pieces.start[at], pieces.stop[at]]
        limit_ns = whole_ns(self.max_time_s)
        if limit_ns is not None:  # Stage tables leave out what is slower; slice planners are not told.
            keep &= (pieces.run >= 0) | (pieces.time_ns <= limit_ns)
        return keep

    def _feasible(self, num_gpus: int, island: int) -> BoolArray:
        fits: BoolArray = self.reference.slice_state_bytes(num_gpus) <= self.reference.usable_bytes[island]
        return fits

    def _balanced(self, num_gpus: int, island: int) -> BoolArray:
        times = self.reference.slice_times_s(island, num_gpus)
        balanced: BoolArray = times <= self.max_time_s
        balanced &= self.reference.leaves_enough(island, num_gpus, self.max_time_s)
        if self.pruning is Pruning.PAPER:
            pace = self.reference.least_period_s()
            balanced &= (times <= PAPER_FACTOR * pace) & (times * PAPER_FACTOR >= pace)
        return balanced

    @staticmethod
    def _apply(alive: BoolArray, rule: BoolArray, name: str, counts: Counter[str]) -> BoolArray:
        kept: BoolArray = alive & rule
        counts[name] += int(alive.sum()) - int(kept.sum())
        return kept


def equal_runs(problem: Problem, idx: IntArray, gpus_per_unit: Sequence[int]) -> frozenset[Pair]:
    """Returns the pairs on which stages on equal numbers of GPUs can follow each other, where some pieces are
    all that there are; one stage by itself counts.

    Args:
        problem: What is composed.
        idx: Its pieces; those of several stages are left out.
        gpus_per_unit: Of each island's counter.
    """
    pieces, found = problem.pieces, set[Pair]()
    idx = idx[pieces.run[idx] < 0]
    for island, units in set(zip(pieces.island[idx].tolist(), pieces.gpus[idx].tolist(), strict=True)):
        own = idx[(pieces.island[idx] == island) & (pieces.gpus[idx] == units)]
        one = np.zeros((problem.num_atoms + 1, problem.num_atoms + 1))
        one[pieces.start[own], pieces.stop[own]] = 1.0
        run = one
        for taken in range(units, problem.capacity[island] + 1, units):
            num_gpus = taken * gpus_per_unit[island]
            found |= {(start, stop, island, num_gpus) for start, stop in np.argwhere(run).tolist()}
            run = np.minimum(run @ one, 1.0)
    return frozenset(found)


@lru_cache(maxsize=8)
def _contents(fingerprints: tuple[str, ...]) -> IntArray:
    """Numbers the contents of all slices ``[start, stop)``: equal atoms in equal order, equal number."""
    num = len(fingerprints)
    known: dict[tuple[str, ...], int] = {}
    table = np.zeros((num + 1, num + 1), dtype=np.int64)
    for start in range(num):
        for stop in range(start + 1, num + 1):
            table[start, stop] = known.setdefault(fingerprints[start:stop], len(known))
    return table
