"""Chains of pieces of several stages, and the same chains written out stage by stage."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from referee import sim_edge

from tangram.planner.problem import Edges, Pieces, Problem, StageTimes, run_piece
from tangram.simulate.pipeline import SimPipeline, SimStage

NUM_CLASSES = 3


@dataclass
class Written:
    """A pipeline as plain lists: per stage f, b, u, w, per edge x, X, o, e and n."""

    m: int
    f: list[int] = field(default_factory=list)
    b: list[int] = field(default_factory=list)
    u: list[int] = field(default_factory=list)
    w: list[int] = field(default_factory=list)
    x: list[int] = field(default_factory=list)
    X: list[int] = field(default_factory=list)
    o: list[int] = field(default_factory=list)
    e: list[int] = field(default_factory=list)
    n: list[int] = field(default_factory=list)

    def closed_form(self) -> int:
        """The ranking formula of docs/composition.md, as it stands there."""
        t = [f + b for f, b in zip(self.f, self.b, strict=True)]
        last = len(t) - 1
        x, big_x, o, e, n = ([*values, 0] for values in (self.x, self.X, self.o, self.e, self.n))
        period = max(
            max(t[i], o[i], -(-(t[i] + big_x[i]) // (1 + e[i])), (n[i - 1] if i else 0) + n[i])
            for i in range(last + 1)
        )
        fill = max(
            sum(self.f[j] + x[j] for j in range(i))
            + sum(t[j] + big_x[j] for j in range(i, last + 1))
            + self.u[i]
            for i in range(last + 1)
        )
        return fill + (self.m - 1) * period

    def pipeline(self) -> SimPipeline:
        stages = [SimStage(*values) for values in zip(self.f, self.b, self.u, self.w, strict=True)]
        edges = [
            sim_edge((place, place + 1), x, o, n)
            for place, (x, o, n) in enumerate(zip(self.x, self.o, self.n, strict=True))
        ]
        return SimPipeline(tuple(stages), tuple(edges), self.m)


def random_stages(rng: random.Random, count: int) -> tuple[StageTimes, ...]:
    """Stages of a run, with edges between them."""
    stages = []
    for place in range(count):
        forward, ratio = rng.randint(1, 60), rng.uniform(0.5, 3.0)
        one_way = rng.choice([0, rng.randint(0, 80)]) if place + 1 < count else 0
        stages.append(
            StageTimes(
                forward,
                round(forward * ratio),
                rng.choice([0, 20, 300]),
                one_way,
                2 * one_way,
                rng.randint(0, one_way),
                rng.randint(0, 2) if one_way else 0,
            )
        )
        if rng.random() < 0.5:
            stages[-1] = replace(stages[-1], nic_ns=stages[-1].occupancy_ns)
    return tuple(stages)


def random_edges(rng: random.Random) -> Edges:
    slow = rng.choice([0, 10, 80])
    one_way = np.array(
        [[rng.randint(0, slow) for _ in range(NUM_CLASSES)] for _ in range(NUM_CLASSES)], dtype=np.int64
    )
    occupancy = (one_way * rng.choice([0.0, 0.5, 1.0])).astype(np.int64)
    nic = np.where(np.array(rng.choices([0, 1], k=NUM_CLASSES**2)).reshape(one_way.shape), occupancy, 0)
    return Edges(one_way, 2 * one_way, occupancy, nic)


def problem_of_runs(
    runs: Sequence[tuple[StageTimes, ...]], rng: random.Random, edges: Edges, m: int, max_extra: int = 0
) -> Problem:
    """A problem whose only complete pipeline is the runs one after the other, one atom and GPU each."""
    pieces = [
        run_piece(
            start=idx,
            stop=idx + 1,
            island=0,
            gpus=1,
            head_class=rng.randrange(NUM_CLASSES),
            tail_class=rng.randrange(NUM_CLASSES),
            max_in_flight=1000,
            stages=stages,
            num_micro_batches=m,
            run=idx,
            payload=idx,
        )
        for idx, stages in enumerate(runs)
    ]
    together = Pieces.concatenate(pieces)
    return Problem(len(runs), (len(runs),), m, together, edges, edges, max_extra, runs=tuple(runs))


def written_out(problem: Problem, pieces: Sequence[int], extras: Sequence[int]) -> Written:
    """The pipeline of a chain of pieces, from nothing but the stages and edges themselves."""
    plain = Written(problem.num_micro_batches)
    for place, piece in enumerate(pieces):
        for stage in problem.stages_of(piece):
            plain.f.append(stage.forward_ns)
            plain.b.append(stage.backward_ns)
            plain.u.append(stage.step_ns)
            plain.x.append(stage.one_way_ns)
            plain.X.append(stage.round_trip_ns)
            plain.o.append(stage.occupancy_ns)
            plain.e.append(stage.extra_in_flight)
            plain.n.append(stage.nic_ns)
        if place + 1 < len(pieces):
            at = int(problem.pieces.tail_class[piece]), int(problem.pieces.head_class[pieces[place + 1]])
            plain.x[-1] = int(problem.edges.one_way_ns[at])
            plain.X[-1] = int(problem.edges.round_trip_ns[at])
            plain.o[-1] = int(problem.edges.occupancy_ns[at])
            plain.e[-1] = extras[place]
            plain.n[-1] = int(problem.edges.nic_ns[at])
    for values in (plain.x, plain.X, plain.o, plain.e, plain.n):
        values.pop()
    window = 1
    plain.w = [window]
    for extra in reversed(plain.e):
        window += 1 + extra
        plain.w.insert(0, window)
    return plain
