"""Small problems with all their pipelines, and what these are as jobs."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator

import numpy as np
from adversarial import adversarial_problem
from instances import PlainStage, all_pipelines, random_problem
from referee import plain_simulation

from tangram.planner.jobs import Jobs
from tangram.planner.problem import Edges, Pieces, Problem

MAX_PLANS = 200


def listed(seeds: int) -> Iterator[tuple[int, Problem, list[tuple[int, list[PlainStage]]]]]:
    """Problems with all their pipelines and what each of them takes."""
    for seed in range(seeds):
        problem = adversarial_problem(seed) if seed % 2 else random_problem(seed, max_atoms=6)
        plans = list(itertools.islice(all_pipelines(problem), MAX_PLANS + 1))
        if 0 < len(plans) <= MAX_PLANS:
            yield seed, problem, [(plain_simulation(problem, plan), plan) for plan in plans]


def trips_ns(problem: Problem, plan: list[PlainStage]) -> list[int]:
    """What one micro-batch takes in each stage and on the best link behind it."""
    both, _ = problem.least_waits_ns()
    pieces = [stage.piece for stage in plan]
    waits = [int(both[problem.pieces.tail_class[piece]]) for piece in pieces[:-1]]
    return [stage.t + wait for stage, wait in zip(plan, [*waits, 0], strict=True)]


def jobs_of(problem: Problem, jobs: Jobs, plan: list[PlainStage]) -> list[int]:
    """For each stage the job that stands for it: its own, or one that is no longer in any way."""
    found = []
    trips = trips_ns(problem, plan)
    pieces, m = problem.pieces, problem.num_micro_batches
    for stage, trip in zip(plan, trips, strict=True):
        piece = stage.piece
        same = (jobs.island == pieces.island[piece]) & (jobs.units == pieces.gpus[piece])
        same &= jobs.counts.sum(axis=1) == pieces.stop[piece] - pieces.start[piece]
        same &= jobs.is_first == (pieces.start[piece] == 0)
        same &= jobs.is_last == (pieces.stop[piece] == problem.num_atoms)
        same &= (jobs.trip_ns <= trip) & (jobs.forward_ns <= stage.f) & (jobs.backward_ns <= stage.b)
        same &= jobs.window >= min(int(pieces.max_in_flight[piece]), m)
        same &= (jobs.step_ns <= stage.u) | (pieces.start[piece] > 0)
        found.append(int(np.flatnonzero(same)[0]))
    return found


def with_kinds(problem: Problem, seed: int) -> tuple[int, ...]:
    """Some kinds of atoms: any are right, as nothing of a job depends on them but the counts."""
    return tuple(random.Random(seed).choices(range(3), k=problem.num_atoms))


def alone(num_atoms: int, capacity: int, m: int, pieces: Pieces) -> Problem:
    """A problem of one island, whose transfers take no time."""
    nothing = np.zeros((1, 1), dtype=np.int64)
    edges = Edges(nothing, nothing, nothing, nothing)
    return Problem(num_atoms, (capacity,), m, pieces, edges, edges, 0)
