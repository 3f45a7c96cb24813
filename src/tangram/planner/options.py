"""How to search: what the user may choose about the planner itself, apart from model, cluster and job."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from tangram.cluster.tolerances import Tolerances
from tangram.errors import InputError
from tangram.model.atoms import Granularity
from tangram.planner.effort import Effort


class Pruning(StrEnum):
    """Which (slice, portion) pairs are left unplanned.

    ``safe`` removes only what a bound proves useless, so it finds what ``none`` finds; ``paper`` also
    removes pairs whose share of work and share of compute differ by more than a factor, which is quicker
    for slow parallelizers and may miss the best plan.
    """

    NONE = "none"
    PAPER = "paper"
    SAFE = "safe"


@dataclass(frozen=True, slots=True)
class PlanOptions:
    """How to search.

    Attributes:
        parallelizers: Names; every pair is put to each, and the best answer counts. ``auto`` is ``exact``
            and, where bounds leave room for that, stages whose layers differ.
        granularity: Size of an atom.
        tolerances: Of islands.
        pruning: See :class:`Pruning`.
        workers: Processes for queries; 0 decides by the estimated work (in-process below about 2 s).
        effort: Limits of the search.
    """

    parallelizers: tuple[str, ...] = ("exact",)
    granularity: Granularity = field(default_factory=Granularity)
    tolerances: Tolerances = field(default_factory=Tolerances)
    pruning: Pruning = Pruning.SAFE
    workers: int = 0
    effort: Effort = field(default_factory=Effort)

    def __post_init__(self) -> None:
        if not self.parallelizers:
            raise InputError("no parallelizer is chosen", where="--parallelizer", hint="for example exact")
        if not 0 <= self.workers <= 1024:
            raise InputError(f"{self.workers} workers", where="--workers", hint="legal: 0 (decide) to 1024")
