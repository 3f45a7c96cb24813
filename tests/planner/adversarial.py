"""Composition problems made to confuse dominance: few atoms, many ways to plan the same atoms on few GPUs.

Pieces of one size have unrelated forward, backward and step-end times, windows are tight, and the same
portion comes in several link classes with very unequal links. So labels of one place in the search
differ in one value only, or in their class or window only.
"""

from __future__ import annotations

import random

import numpy as np

from tangram.planner.problem import Edges, Pieces, Problem, single_stage_pieces

_CLASSES = 3


def adversarial_problem(seed: int) -> Problem:
    """A problem of at most 5 atoms, 2 islands and 8 GPUs."""
    rng = random.Random(seed)
    num_atoms, num_islands = rng.randint(3, 5), rng.randint(1, 2)
    capacity = tuple(rng.randint(2, 4) for _ in range(num_islands))
    m = rng.choice([2, 4, 8, 16])
    parts = []
    for island in range(num_islands):
        for gpus in (1, 2, 1):
            columns = np.array(_rows(rng, num_atoms), dtype=np.int64).T
            parts.append(
                single_stage_pieces(
                    start=columns[0],
                    stop=columns[1],
                    island=island,
                    gpus=gpus,
                    link_class=rng.randrange(_CLASSES),
                    max_in_flight=columns[2],
                    forward_ns=columns[3],
                    backward_ns=columns[4],
                    step_ns=columns[5],
                    num_micro_batches=m,
                    payload=np.arange(columns.shape[1]),
                )
            )
    slow = rng.choice([10, 60, 150])
    one_way = np.array(
        [[rng.randint(0, slow) for _ in range(_CLASSES)] for _ in range(_CLASSES)], dtype=np.int64
    )
    occupancy = (one_way * rng.choice([0.0, 0.5, 1.0])).astype(np.int64)
    nic = np.where(np.array(rng.choices([0, 1], k=_CLASSES**2)).reshape(one_way.shape), occupancy, 0)
    edges = Edges(one_way, 2 * one_way, occupancy, nic)
    return Problem(num_atoms, capacity, m, Pieces.concatenate(parts), edges, edges, rng.choice([0, 1, 2]))


def _rows(rng: random.Random, num_atoms: int) -> list[tuple[int, ...]]:
    """Start, stop, window, forward, backward, step end of one or two pieces per slice."""
    return [
        (
            start,
            stop,
            rng.randint(1, 5),
            rng.randint(5, 30) * (stop - start),
            rng.randint(5, 40) * (stop - start),
            rng.choice([0, 0, 50, 200, 400]),
        )
        for start in range(num_atoms)
        for stop in range(start + 1, num_atoms + 1)
        for _ in range(rng.randint(1, 2))
    ]


def nic_problem(seed: int) -> Problem:
    """A problem of five atoms, at most two to a stage, whose NICs are the bottleneck: with enough warm-up
    every edge is hidden, and what counts is which two edges meet at a stage.
    """
    rng = random.Random(f"nics {seed}")
    capacity = (rng.randint(3, 4),)
    parts = []
    for link_class in range(_CLASSES):
        rows = [row for row in _rows(rng, 5) if row[1] - row[0] <= 2]
        columns = np.array(rows, dtype=np.int64).T
        parts.append(
            single_stage_pieces(
                start=columns[0],
                stop=columns[1],
                island=0,
                gpus=1,
                link_class=link_class,
                max_in_flight=columns[2] + 8,
                forward_ns=columns[3],
                backward_ns=columns[4],
                step_ns=columns[5],
                num_micro_batches=40,
                payload=np.arange(columns.shape[1]),
            )
        )
    one_way = np.array(
        [[rng.randint(5, 60) for _ in range(_CLASSES)] for _ in range(_CLASSES)], dtype=np.int64
    )
    edges = Edges(one_way, 2 * one_way, one_way, one_way)
    return Problem(5, capacity, 40, Pieces.concatenate(parts), edges, edges, 2)
