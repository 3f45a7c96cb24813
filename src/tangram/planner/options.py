"""How to search: what the user may choose about the planner itself, apart from model, cluster and job."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from tangram.cluster.tolerances import Tolerances
from tangram.errors import InputError
from tangram.executors.choice import MOST_WORKERS, ExecutorChoice, ExecutorKind
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
            and, where bounds leave room for that, stages whose layers differ; it is the command line's
            default. Here ``exact`` alone is, whose space is searched to the gap that the plan states.
        granularity: Size of an atom.
        tolerances: Of islands.
        pruning: See :class:`Pruning`.
        workers: Processes for queries: 1 stays in this one; 0 leaves it to ``executor``.
        executor: Where queries run; by default in this process while their estimated work is below about 2 s.
        effort: Limits of the search.
    """

    parallelizers: tuple[str, ...] = ("exact",)
    granularity: Granularity = field(default_factory=Granularity)
    tolerances: Tolerances = field(default_factory=Tolerances)
    pruning: Pruning = Pruning.SAFE
    workers: int = 0
    executor: ExecutorChoice = field(default_factory=ExecutorChoice)
    effort: Effort = field(default_factory=Effort)

    def __post_init__(self) -> None:
        if not self.parallelizers:
            raise InputError("no parallelizer is chosen", where="--parallelizer", hint="for example exact")
        if not 0 <= self.workers <= MOST_WORKERS:
            raise InputError(
                f"{self.workers} workers", where="--workers", hint=f"legal: 0 (decide) to {MOST_WORKERS}"
            )
        if self.workers and self.executor != ExecutorChoice():
            raise InputError(
                "workers and an executor are both given",
                where="--workers",
                hint=f"--executor processes:{self.workers} says it all",
            )

    @property
    def chosen_executor(self) -> ExecutorChoice:
        """Where queries run, whichever way it was said."""
        if not self.workers:
            return self.executor
        kind = ExecutorKind.INLINE if self.workers == 1 else ExecutorKind.PROCESSES
        return ExecutorChoice(kind, self.workers)
