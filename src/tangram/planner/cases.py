"""Raises the lower bound of a large cluster by cases: how long one micro-batch's trip takes.

The relaxation of :mod:`tangram.planner.dual` sees the mean of several plans, each of which may use more of an
island than there is. Here the units of every island are kept to, and which atoms a stage holds is forgotten
but for their number: a plan is a set of jobs for one micro-batch (:mod:`tangram.planner.jobs`). How long all
of them take together, ``L``, decides how many stages lie behind one that begins at some time, hence what it
must hold and how long it waits. So in a *case*, an interval for ``L``, jobs have to be done between certain
times; to prove that no plan takes less than a time, it is shown for all cases that the islands cannot cover
the model like that (:mod:`tangram.planner.covering`). A case for which it cannot be shown is split in two.

A counted number of cases limits the effort. Docs: composition.md, *Cases*.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from tangram.planner.covering import Cover, Covering, Interval, Mixture
from tangram.planner.jobs import Jobs, Timed, kinds_ahead
from tangram.planner.problem import Problem

NARROWEST, FINEST = 0.0005, 0.0001
"""Of the time to prove; a case is not split further, where proofs should be quick or should see most."""


@dataclass(slots=True, eq=False)
class Casework:
    """Proves of one problem that no plan is faster than some times. Build it with :meth:`of`.

    Attributes:
        problem: What is bounded.
        jobs: Of the pieces that plans below the longest of the times may have.
        num_atoms: Of each kind.
        num_cases: Looked into so far.
        left: What could not be refuted the last time: jobs, and a mixture of patterns of them.
    """

    problem: Problem
    jobs: Jobs
    num_atoms: tuple[int, ...]
    num_cases: int = 0
    left: list[tuple[Timed, Mixture]] = field(default_factory=list)
    _least_ns: float = field(init=False)

    def __post_init__(self) -> None:
        each = np.where(self.jobs.counts > 0, self.jobs.trip_ns[:, None], np.inf)
        number = self.jobs.counts.sum(axis=1, keepdims=True)
        # A job of several kinds may be all of one: its whole trip by the atom counts for each kind.
        rate = (each / np.maximum(number, 1)).min(axis=0, initial=np.inf)
        self._least_ns = float((rate * np.array(self.num_atoms)).sum())

    @staticmethod
    def of(problem: Problem, longest_ns: int) -> Casework:
        """Prepares for times up to ``longest_ns``."""
        return Casework(problem, Jobs.of(problem, longest_ns), tuple(kinds_ahead(problem)[-1].tolist()))

    def proves(self, below_ns: int, most_cases: int, narrowest: float = NARROWEST) -> bool:
        """Returns whether it is shown, with so many cases, that no plan takes less than a time.

        Args:
            below_ns: The time; at most the longest that was prepared for.
            most_cases: To look into.
            narrowest: Share of the time; a case is not split further.
        """
        self.left = []
        jobs = self.jobs.take(np.flatnonzero(self.jobs.busy_ns + self.jobs.step_ns < below_ns))
        if not len(jobs) or not np.isfinite(self._least_ns):
            return True
        end = self.num_cases + most_cases
        low, high = self._least_ns, float(below_ns)
        cases = [(low, high, self._covered(jobs, below_ns, low, high, ()))] if low < high else []
        while cases:
            low, high, cover = cases.pop()
            if cover.is_short:
                continue
            if high - low < narrowest * below_ns or self.num_cases >= end:
                return False
            middle = (low + high) / 2
            halves = [
                (a, b, self._covered(jobs, below_ns, a, b, cover.intervals))
                for a, b in ((low, middle), (middle, high))
            ]
            # The one that covers more comes first: it is the likelier one to end all this.
            cases += sorted(halves, key=lambda half: (half[2].most, half[0]))
        return True

    def _covered(
        self, jobs: Jobs, below_ns: int, low_ns: float, high_ns: float, known: tuple[Interval, ...]
    ) -> Cover:
        """How much of the model can be covered in a case."""
        self.num_cases += 1
        timed = Timed.of(jobs, self.problem.num_micro_batches, below_ns, low_ns, high_ns)
        if not len(timed.jobs):
            return Cover(0.0, ())
        covering = Covering(timed, self.problem.capacity, self.num_atoms)
        inherited = tuple(dict.fromkeys((a, min(b, high_ns)) for a, b in known if a < high_ns))
        cover = covering.most(inherited or ((0.0, high_ns),))
        if cover.mixture is not None:
            self.left.append((timed, cover.mixture))
        return cover
