"""Jobs: every plan keeps to their times in the case that holds it, and copies are left out."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
from listed_plans import alone, jobs_of, listed, trips_ns, with_kinds

from tangram.planner.jobs import Jobs, Timed
from tangram.planner.problem import single_stage_pieces


def test_every_plan_keeps_to_the_times_of_the_cases_that_hold_it_just_below_its_time() -> None:
    tried = left_out = 0
    for seed, problem, plans in listed(240):
        rng = random.Random(seed)
        # The fastest are those whose bounds are tight.
        for time_ns, plan in sorted(plans, key=lambda known: known[0])[:8]:
            jobs = Jobs.of(problem, time_ns + 1)
            stages = jobs_of(problem, jobs, plan)
            own = [int(jobs.trip_ns[job]) for job in stages]
            whole = sum(own)  # Of the plan of these jobs, which is at most as long.
            spread = rng.choice([0.0, 0.1, 0.5])
            low, high = whole * (1 - rng.random() * spread), whole * (1 + rng.random() * spread)
            timed = Timed.of(jobs, problem.num_micro_batches, time_ns + 1, low, high)
            left_out += len(jobs) - len(timed.jobs)
            begin = 0
            for job, trip in zip(stages, own, strict=True):
                there = [
                    at
                    for at in range(len(timed.jobs))
                    if all(
                        np.array_equal(getattr(timed.jobs, name)[at], getattr(jobs, name)[job])
                        for name in Jobs.__slots__
                    )
                ]
                assert len(there) == 1
                assert timed.release_ns[there[0]] <= begin * (1 + 1e-9)
                assert begin + trip <= timed.due_ns[there[0]] * (1 + 1e-9) + 1e-6
                begin += trip
            tried += 1
    assert tried > 400
    assert left_out > tried  # cases do leave jobs out


def test_jobs_are_distinct_and_none_makes_another_needless() -> None:
    fewer = 0
    for seed, problem, plans in listed(60):
        longest = max(time_ns for time_ns, _ in plans) + 1
        jobs = Jobs.of(replace(problem, atom_kinds=with_kinds(problem, seed)), longest)
        fewer += len(jobs) < len(problem.pieces)
        uses = np.column_stack([jobs.island, jobs.units, jobs.is_first, jobs.is_last, jobs.counts])
        costs = np.column_stack(
            [jobs.trip_ns, jobs.busy_ns, jobs.forward_ns, jobs.backward_ns, jobs.step_ns, -jobs.window]
        )
        for one in range(len(jobs)):
            for other in range(len(jobs)):
                if one != other and (uses[one] == uses[other]).all():
                    assert not (costs[one] <= costs[other]).all()
    assert fewer > 10


def test_the_trips_of_a_plan_are_those_of_its_jobs_or_longer() -> None:
    for _, problem, plans in listed(40):
        longest = max(time_ns for time_ns, _ in plans) + 1
        jobs = Jobs.of(problem, longest)
        for _, plan in plans[:5]:
            for job, trip in zip(jobs_of(problem, jobs, plan), trips_ns(problem, plan), strict=True):
                assert jobs.trip_ns[job] <= trip


def test_a_uniform_model_has_a_job_per_number_of_atoms() -> None:
    num = 12
    cuts = [(start, stop) for start in range(num) for stop in range(start + 1, num + 1)]
    start, stop = (np.array(column) for column in zip(*cuts, strict=True))
    pieces = single_stage_pieces(
        start=start,
        stop=stop,
        island=0,
        gpus=1,
        link_class=0,
        max_in_flight=np.full(len(cuts), 4),
        forward_ns=10 * (stop - start),
        backward_ns=20 * (stop - start),
        step_ns=np.zeros(len(cuts), dtype=np.int64),
        num_micro_batches=8,
        payload=start,
    )
    jobs = Jobs.of(alone(num, 4, 8, pieces), 10**9)
    # In the middle 1 to 10 atoms, at either end 1 to 11, and all of them.
    assert len(jobs) == 10 + 11 + 11 + 1
