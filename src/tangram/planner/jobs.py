"""Pieces as jobs: what one micro-batch does on its way through a pipeline, whatever pieces it consists of.

A micro-batch takes ``p = t + X`` for each piece, one piece after the other, with the least ``X`` that may be
behind it. ``D`` of a piece, the sum of ``p`` in front of it, is when its job begins; ``L``, the sum of all,
is when the last one ends. No two jobs overlap. What a piece needs besides says when its job may begin and
end.

Here a piece is what counts for that: which atoms it covers is forgotten but for how many of each kind, and
whether the first or the last one is among them. Thousands of pieces of a uniform model are a few hundred
jobs.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, fields

import numpy as np

from tangram.cost.types import BoolArray, FloatArray, IntArray
from tangram.planner.groups import begins
from tangram.planner.problem import Problem


@dataclass(frozen=True, slots=True, eq=False)
class Jobs:
    """What pieces need of one micro-batch's trip; arrays ``(num_jobs,)`` unless stated.

    Attributes:
        island, units: What a job takes.
        counts: Atoms of each kind; ``(num_jobs, num_kinds)``.
        is_first, is_last: Whether it holds the first atom, and the last one.
        is_single: Whether it is one stage, whose idle time is counted.
        window: Micro-batches that it holds; ``m`` stands for any number.
        trip_ns: ``p``; of the last job ``t``.
        busy_ns: ``occupied_ns``.
        forward_ns, backward_ns: ``f`` and ``b``.
        step_ns: ``u`` of the plan's first stage: its own, or the least there is.
    """

    island: IntArray
    units: IntArray
    counts: IntArray
    is_first: BoolArray
    is_last: BoolArray
    is_single: BoolArray
    window: IntArray
    trip_ns: IntArray
    busy_ns: IntArray
    forward_ns: IntArray
    backward_ns: IntArray
    step_ns: IntArray

    def __len__(self) -> int:
        return len(self.island)

    def take(self, idx: IntArray) -> Jobs:
        """Returns the jobs at these positions."""
        return Jobs(**{field.name: getattr(self, field.name)[idx] for field in fields(self)})

    @staticmethod
    def of(problem: Problem, below_ns: int) -> Jobs:
        """Returns the distinct jobs of the pieces that a plan below a time may have.

        A job that another one with the same use makes needless is left out: one that is no longer in any way
        and holds as many micro-batches. Every condition on a plan is then no harder to meet.
        """
        m, pieces = problem.num_micro_batches, problem.pieces.take(problem.able_below(below_ns))
        is_first, is_last = pieces.start == 0, pieces.stop == problem.num_atoms
        both, _ = problem.least_waits_ns()
        least_step = int(pieces.head_step_ns[is_first].min(initial=np.iinfo(np.int64).max // 4))
        ahead = kinds_ahead(problem)
        found = Jobs(
            island=pieces.island,
            units=pieces.gpus,
            counts=ahead[pieces.stop] - ahead[pieces.start],
            is_first=is_first,
            is_last=is_last,
            is_single=pieces.num_stages == 1,
            window=np.minimum(pieces.max_in_flight, m),
            trip_ns=pieces.time_ns + np.where(is_last, 0, both[pieces.tail_class]),
            busy_ns=pieces.occupied_ns,
            forward_ns=pieces.tail_forward_ns,
            backward_ns=pieces.tail_time_ns - pieces.tail_forward_ns,
            step_ns=np.where(is_first, pieces.head_step_ns, least_step),
        )
        return found._needed()

    def _needed(self) -> Jobs:
        """Leaves out copies, and jobs that another one makes needless."""
        uses = np.column_stack([self.island, self.units, self.is_first, self.is_last, self.is_single])
        uses = np.column_stack([uses, self.counts])
        costs = np.column_stack(
            [self.trip_ns, self.busy_ns, self.forward_ns, self.backward_ns, self.step_ns, -self.window]
        )
        order = np.lexsort((*costs.T[::-1], *uses.T[::-1]))
        uses, costs = uses[order], costs[order]
        other_use = begins(*uses.T)
        distinct = np.flatnonzero(begins(*uses.T, *costs.T))
        kept: list[int] = []
        front: list[list[int]] = []
        rows, is_new = costs[distinct].tolist(), other_use[distinct].tolist()
        for row, new_use, at in zip(rows, is_new, distinct.tolist(), strict=True):
            if new_use:
                front = []
            _, busy, forward, backward, step, window = row  # none of the front has a longer trip
            for _, a, b, c, d, e in front:
                if a <= busy and b <= forward and c <= backward and d <= step and e <= window:
                    break
            else:
                front.append(row)
                kept.append(at)
        return self.take(order[np.array(kept, dtype=np.int64)])


def kinds_ahead(problem: Problem) -> IntArray:
    """Returns how many atoms of each kind are in front of each cut; ``(num_atoms + 1, num_kinds)``."""
    kinds = np.array(problem.atom_kinds or (0,) * problem.num_atoms, dtype=np.int64)
    each = (kinds[:, None] == np.unique(kinds)).astype(np.int64)
    return np.concatenate([np.zeros((1, each.shape[1]), dtype=np.int64), np.cumsum(each, axis=0)])


@dataclass(frozen=True, slots=True, eq=False)
class Timed:
    """Jobs with the times between which each has to be done, in plans whose trips are in an interval.

    Attributes:
        jobs: Those that such a plan may have.
        release_ns: None begins earlier.
        due_ns: None ends later.
    """

    jobs: Jobs
    release_ns: FloatArray
    due_ns: FloatArray

    @staticmethod
    def of(jobs: Jobs, num_micro_batches: int, below_ns: int, low_ns: float, high_ns: float) -> Timed:
        """Returns the jobs of plans below a time whose trips take ``low_ns`` to ``high_ns``.

        Docs: composition.md, *Cases*.
        """
        m, last = num_micro_batches, jobs.is_last
        trip, own = jobs.trip_ns.astype(np.float64), (jobs.forward_ns + jobs.backward_ns).astype(np.float64)
        left = below_ns - jobs.step_ns  # for what is between the first forward and the first step end
        due = np.minimum(left - jobs.busy_ns + trip, high_ns)
        able = due >= trip
        waits = jobs.is_single & ~last
        others = jobs.window - 1
        for one_way in (jobs.forward_ns, jobs.backward_ns):
            able &= ~waits | ((m - 1) * own + low_ns - others * one_way <= left)
        behind = _most_behind(trip[able], due[able], low_ns, m)
        bound = jobs.window < m
        release = np.where(bound, low_ns - trip - behind[np.minimum(others, m)], 0.0)
        idle = 2 * low_ns + (m - 1 - jobs.window) * own - left
        release = np.maximum(np.where(bound & waits, np.maximum(release, idle), release), 0.0)
        release = np.where(last, np.maximum(release, low_ns - trip), release)
        able &= (release + trip <= due) & (~jobs.is_first | (release <= 0))
        chosen = np.flatnonzero(able)
        return Timed(jobs.take(chosen), release[chosen], due[chosen])


def _most_behind(trip_ns: FloatArray, due_ns: FloatArray, low_ns: float, most: int) -> FloatArray:
    """Returns the most that the last ``0, 1, .. most`` jobs of a trip of at least ``low_ns`` may take: the
    one in front of them ends at least that much before the end, and only jobs that may end so late can.
    """
    order = np.argsort(due_ns, kind="stable")
    due: list[float] = due_ns[order].tolist()
    longest = np.append(np.maximum.accumulate(trip_ns[order][::-1])[::-1], 0.0).tolist()
    taken = [0.0]
    while len(taken) <= most and taken[-1] < low_ns:
        taken.append(taken[-1] + longest[bisect_left(due, low_ns - taken[-1])])
    # More than the whole trip need not be told apart.
    return np.array(taken + [taken[-1]] * (most + 1 - len(taken)))
