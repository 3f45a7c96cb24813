"""Simulated plans, and how alike they are."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from tangram.planner.problem import Chain, Problem

Structure = tuple[tuple[int, ...], ...]
"""Per piece: first atom, island, GPUs and number of stages."""


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


def structure(problem: Problem, chain: Chain) -> Structure:
    """Returns the slices of a chain and the GPUs of which islands they are on."""
    pieces, at = problem.pieces, list(chain.pieces)
    columns = (pieces.start, pieces.island, pieces.gpus, pieces.num_stages)
    return tuple(tuple(column[at].tolist()) for column in columns)


def various(problem: Problem, chains: Sequence[Chain], per_structure: int) -> list[Chain]:
    """Returns the first few chains of each structure, in their order."""
    seen: Counter[Structure] = Counter()
    kept = []
    for chain in chains:
        key = structure(problem, chain)
        seen[key] += 1
        if seen[key] <= per_structure:
            kept.append(chain)
    return kept
