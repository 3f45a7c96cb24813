"""Pairs on which equal stages follow each other, against all sequences of pieces."""

from __future__ import annotations

import random

import numpy as np
from instances import random_problem

from tangram.planner.pairs import Pair, equal_runs
from tangram.planner.problem import Problem


def plain_runs(problem: Problem, idx: list[int], gpus_per_unit: list[int]) -> set[Pair]:
    """Piece after piece, each beginning where the last one ends, on as many GPUs of the same island."""
    pieces, found = problem.pieces, set()
    stages = [p for p in idx if pieces.run[p] < 0]

    def go_on(start: int, stop: int, last: int, taken: int) -> None:
        island = int(pieces.island[last])
        found.add((start, stop, island, taken * gpus_per_unit[island]))
        for piece in stages:
            same = (pieces.island[piece], pieces.gpus[piece]) == (pieces.island[last], pieces.gpus[last])
            more = taken + int(pieces.gpus[piece])
            if same and pieces.start[piece] == stop and more <= problem.capacity[island]:
                go_on(start, int(pieces.stop[piece]), piece, more)

    for piece in stages:
        go_on(int(pieces.start[piece]), int(pieces.stop[piece]), piece, int(pieces.gpus[piece]))
    return found


def test_equal_runs_are_all_sequences_of_equal_pieces() -> None:
    runs = 0
    for seed in range(40):
        problem, rng = random_problem(seed, max_atoms=7), random.Random(seed)
        gpus_per_unit = [rng.choice([1, 2, 8]) for _ in problem.capacity]
        count = len(problem.pieces)
        idx = sorted(rng.sample(range(count), rng.randint(0, count)))
        found = equal_runs(problem, np.array(idx, dtype=np.int64), gpus_per_unit)
        assert found == plain_runs(problem, idx, gpus_per_unit)
        single = {pair for p in idx for pair in plain_runs(problem, [p], gpus_per_unit)}
        runs += len(found) > len(single)
    assert runs
