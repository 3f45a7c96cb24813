"""The best pattern of an island against all patterns."""

from __future__ import annotations

import random
from collections.abc import Iterator

import numpy as np
import pytest

from tangram.planner.jobs import Jobs
from tangram.planner.patterns import Patterns


def some_jobs(rng: random.Random, sizes: list[int]) -> Jobs:
    num = rng.randint(1, 7)
    role = [rng.choice([0, 0, 0, 1, 2, 3]) for _ in range(num)]
    zeros = np.zeros(num, dtype=np.int64)
    return Jobs(
        island=np.array([rng.randrange(2) for _ in range(num)]),
        units=np.array([rng.choice(sizes) for _ in range(num)]),
        counts=np.ones((num, 1), dtype=np.int64),
        is_first=np.array([bool(r & 1) for r in role]),
        is_last=np.array([bool(r & 2) for r in role]),
        is_single=np.ones(num, dtype=np.bool_),
        window=zeros,
        trip_ns=zeros,
        busy_ns=zeros,
        forward_ns=zeros,
        backward_ns=zeros,
        step_ns=zeros,
    )


def all_patterns(jobs: Jobs, island: int, room: int, begin: int = 0) -> Iterator[tuple[int, ...]]:
    """All multisets of an island's jobs that fit and have each end of the model at most once."""
    yield ()
    for job in range(begin, len(jobs)):
        if jobs.island[job] == island and jobs.units[job] <= room:
            again = job + 1 if jobs.is_first[job] or jobs.is_last[job] else job
            for rest in all_patterns(jobs, island, room - int(jobs.units[job]), again):
                ends = [jobs.is_first[i] for i in (job, *rest)], [jobs.is_last[i] for i in (job, *rest)]
                if sum(ends[0]) <= 1 and sum(ends[1]) <= 1:
                    yield (job, *rest)


@pytest.mark.parametrize("sizes", [[1, 2, 4, 8], [2, 3, 5], [4, 6], [3, 3, 9]])
def test_nothing_is_worth_more(sizes: list[int]) -> None:
    rng, filled = random.Random(str(sizes)), 0
    for _ in range(120):
        jobs = some_jobs(rng, sizes)
        capacity = (rng.randint(0, 13), rng.randint(1, 9))
        worth = np.array([rng.choice([0.0, -1.0, rng.random(), 3 * rng.random()]) for _ in range(len(jobs))])
        for island, pattern in enumerate(Patterns.of(jobs, capacity).best(worth)):
            best = max(
                sum(worth[job] for job in known) for known in all_patterns(jobs, island, capacity[island])
            )
            assert pattern.worth == pytest.approx(best)
            flat = [job for job, number in pattern.jobs for _ in range(number)]
            assert sum(worth[job] for job in flat) == pytest.approx(best)
            assert sum(int(jobs.units[job]) for job in flat) <= capacity[island]
            assert all(jobs.island[job] == island for job in flat)
            assert sum(bool(jobs.is_first[job]) for job in flat) <= 1
            assert sum(bool(jobs.is_last[job]) for job in flat) <= 1
            filled += len(flat) > 1
    assert filled > 10


def test_without_jobs_patterns_are_empty() -> None:
    nobody = some_jobs(random.Random(0), [1]).take(np.array([], dtype=np.int64))
    assert [pattern.jobs for pattern in Patterns.of(nobody, (4, 2)).best(np.array([]))] == [(), ()]
