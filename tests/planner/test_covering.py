"""How much can be covered: all of it where there is a plan, and what HiGHS says of a programme with all
patterns.
"""

from __future__ import annotations

import itertools

import numpy as np
from listed_plans import jobs_of, listed
from scipy.optimize import linprog
from test_patterns import all_patterns

from tangram.planner.covering import Covering
from tangram.planner.jobs import Jobs, Timed

MOST_PATTERNS = 400


def with_all_patterns(timed: Timed, capacity: tuple[int, ...], num_atoms: int) -> float | None:
    """How often the model can be covered, by a programme with every pattern and every interval."""
    jobs = timed.jobs
    patterns = [
        (island, known)
        for island, room in enumerate(capacity)
        for known in itertools.islice(all_patterns(jobs, island, room), MOST_PATTERNS + 1)
    ]
    if len(patterns) > MOST_PATTERNS:
        return None
    intervals = [(a, b) for a in set(timed.release_ns) for b in set(timed.due_ns) if b > a]
    columns = []
    for island, known in patterns:
        at = np.array(known, dtype=np.int64)
        covers = [jobs.counts[at].sum() / num_atoms, jobs.is_first[at].sum(), jobs.is_last[at].sum()]
        inside = [
            float(jobs.trip_ns[at[(timed.release_ns[at] >= a) & (timed.due_ns[at] <= b)]].sum()) / (b - a)
            for a, b in intervals
        ]
        owner = [float(island == i) for i in range(len(capacity))]
        columns.append([*(-value for value in covers), *covers[1:], *inside, *owner])
    matrix = np.column_stack([[1.0] * 3 + [0.0] * (len(columns[0]) - 3), np.array(columns).T])
    limits = [0.0] * 3 + [1.0] * (len(columns[0]) - 3)
    return float(-linprog([-1.0] + [0.0] * len(columns), A_ub=matrix, b_ub=limits).fun)


def test_the_bound_is_that_of_all_patterns() -> None:
    compared = short = 0
    for _, problem, plans in listed(60):
        best = min(time_ns for time_ns, _ in plans)
        for share in (0.75, 0.9, 1.1):
            jobs = Jobs.of(problem, int(share * best))
            if not len(jobs):
                continue
            whole = 0.8 * best
            timed = Timed.of(jobs, problem.num_micro_batches, int(share * best), 0.3 * whole, whole)
            if not len(timed.jobs):
                continue
            known = with_all_patterns(timed, problem.capacity, problem.num_atoms)
            if known is None:
                continue
            found = Covering(timed, problem.capacity, (problem.num_atoms,)).most(((0.0, whole),))
            assert found.most >= known - 1e-6  # It is a bound.
            if known > 1 - 1e-6:
                assert not found.is_short
            elif not found.is_short:
                assert found.most <= known + 5e-3  # Intervals may be violated by a thousandth.
            compared += 1
            short += found.is_short
    assert compared > 40
    assert 5 < short < compared


def test_the_jobs_of_a_plan_cover_the_model() -> None:
    for _, problem, plans in listed(60):
        time_ns, plan = min(plans, key=lambda known: known[0])
        jobs = Jobs.of(problem, time_ns + 1)
        whole = float(sum(jobs.trip_ns[job] for job in jobs_of(problem, jobs, plan)))
        timed = Timed.of(jobs, problem.num_micro_batches, time_ns + 1, whole, whole)
        found = Covering(timed, problem.capacity, (problem.num_atoms,)).most(((0.0, whole),))
        assert not found.is_short
        assert found.mixture is not None
        assert sum(share for patterns in found.mixture for share, _ in patterns) > 1 - 1e-4
