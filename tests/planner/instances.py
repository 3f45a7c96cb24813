"""Small random composition problems, and the slow, obvious way to solve them."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from tangram.planner.problem import Edges, Pieces, Problem, single_stage_pieces


@dataclass(frozen=True)
class PlainStage:
    f: int
    b: int
    u: int
    link_class: int
    extra: int
    piece: int

    @property
    def t(self) -> int:
        return self.f + self.b


def random_problem(seed: int, *, transfers: float = 1.0, max_atoms: int = 8) -> Problem:
    """A problem with at most 8 atoms, 3 islands and 8 GPUs: unequal f:b, transfers, large step ends, tight
    memory.
    """
    rng = random.Random(seed)
    num_atoms = rng.randint(2, max_atoms)
    num_islands = rng.randint(1, 3)
    capacity = [1] * num_islands
    for _ in range(rng.randint(0, 8 - num_islands)):
        capacity[rng.randrange(num_islands)] += 1
    m = rng.choice([1, 2, 3, 4, 6, 9, 16, 40])
    weights = [rng.randint(80, 120) if rng.random() < 0.6 else rng.randint(20, 300) for _ in range(num_atoms)]
    parts = []
    for island in range(num_islands):
        pace = rng.uniform(0.5, 3.0)
        for gpus in [g for g in (1, 2, 4) if g <= capacity[island]]:
            parts += _portion_pieces(rng, num_atoms, weights, island, gpus, pace, m)
    pieces = Pieces.concatenate(parts)
    scale = transfers * rng.choice([0.0, 5.0, 40.0, 200.0])
    one_way = np.array(
        [[int(rng.uniform(0.2, 1.0) * scale) for _ in range(num_islands)] for _ in range(num_islands)],
        dtype=np.int64,
    )
    occupancy = (one_way * rng.choice([0.0, 0.5, 1.0])).astype(np.int64)
    edges = Edges(one_way, 2 * one_way, occupancy)
    return Problem(num_atoms, tuple(capacity), m, pieces, edges, edges, rng.choice([0, 1, 2]))


def _portion_pieces(
    rng: random.Random, num_atoms: int, weights: list[int], island: int, gpus: int, pace: float, m: int
) -> list[Pieces]:
    parts = []
    for _ in range(rng.randint(1, 2)):
        ratio, speed = rng.uniform(1.0, 3.0), pace / gpus ** rng.uniform(0.6, 1.0)
        memory, step = rng.randint(3, 40), rng.choice([0, 30, 400])
        rows = []
        for start in range(num_atoms):
            for stop in range(start + 1, num_atoms + 1):
                forward = max(1, round(sum(weights[start:stop]) * speed))
                fit = memory * gpus // (stop - start)
                if fit >= 1 and rng.random() < 0.9:
                    rows.append(
                        (start, stop, fit, forward, round(forward * ratio), step * (stop - start) // 2)
                    )
        if rows:
            columns = np.array(rows, dtype=np.int64).T
            parts.append(
                single_stage_pieces(
                    start=columns[0],
                    stop=columns[1],
                    island=island,
                    gpus=gpus,
                    link_class=island,
                    max_in_flight=columns[2],
                    forward_ns=columns[3],
                    backward_ns=columns[4],
                    step_ns=columns[5],
                    num_micro_batches=m,
                    payload=np.arange(len(rows)),
                )
            )
    return parts


def all_pipelines(problem: Problem, pace_floor_ns: int = 0) -> Iterator[list[PlainStage]]:
    """Lists every pipeline of single-stage pieces with every useful extra warm-up, first stage first."""
    pieces = problem.pieces

    def extend(
        stop: int, left: tuple[int, ...], window: int, behind: list[PlainStage]
    ) -> Iterator[list[PlainStage]]:
        if stop == 0:
            yield behind
            return
        for piece in range(len(pieces.start)):
            island, gpus = int(pieces.island[piece]), int(pieces.gpus[piece])
            if pieces.stop[piece] != stop or gpus > left[island]:
                continue
            for extra in range(problem.max_extra_in_flight + 1 if behind else 1):
                if extra and not _extra_helps(problem, piece, behind[0], extra, pace_floor_ns):
                    continue
                mine = window + 1 + extra
                if min(mine, problem.num_micro_batches) > pieces.max_in_flight[piece]:
                    continue
                f = int(pieces.forward_ns[piece])
                stage = PlainStage(
                    f,
                    int(pieces.time_ns[piece]) - f,
                    int(pieces.head_step_ns[piece]),
                    int(pieces.head_class[piece]),
                    extra,
                    piece,
                )
                rest = tuple(n - gpus if k == island else n for k, n in enumerate(left))
                yield from extend(int(pieces.start[piece]), rest, mine, [stage, *behind])

    yield from extend(problem.num_atoms, problem.capacity, 0, [])


def _extra_helps(problem: Problem, piece: int, behind: PlainStage, extra: int, floor: int) -> bool:
    """The space of windows: one more in flight only while the edge, not the stage itself, sets the pace."""
    at = int(problem.pieces.tail_class[piece]), behind.link_class
    time = int(problem.pieces.tail_time_ns[piece])
    pace = max(time, floor, int(problem.edges.occupancy_ns[at]))
    return -(-(time + int(problem.edges.round_trip_ns[at])) // extra) > pace


def plain_closed_form(problem: Problem, stages: list[PlainStage]) -> int:
    """The ranking formula of the design, written out."""
    edges, m = problem.edges, problem.num_micro_batches
    x, big_x, period = [], [], 0
    for stage, behind in zip(stages, [*stages[1:], None], strict=True):
        at = None if behind is None else (stage.link_class, behind.link_class)
        x.append(0 if at is None else int(edges.one_way_ns[at]))
        big_x.append(0 if at is None else int(edges.round_trip_ns[at]))
        occupied = 0 if at is None else int(edges.occupancy_ns[at])
        period = max(period, stage.t, occupied, -(-(stage.t + big_x[-1]) // (1 + stage.extra)))
    worst = 0
    for i, stage in enumerate(stages):
        ahead = sum(stages[j].f + x[j] for j in range(i))
        behind_sum = sum(stages[j].t + big_x[j] for j in range(i, len(stages)))
        worst = max(worst, ahead + behind_sum + stage.u)
    return worst + (m - 1) * period
