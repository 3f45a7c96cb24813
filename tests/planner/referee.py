"""The simulator as the referee of abstract problems."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from instances import PlainStage

from tangram.planner.problem import Chain, Problem
from tangram.simulate.fast import iteration_ns
from tangram.simulate.pipeline import SimEdge, SimPipeline, SimStage


def _edge(problem: Problem, tail: int, head: int) -> SimEdge:
    occupancy = int(problem.edges.occupancy_ns[tail, head])
    return SimEdge(int(problem.edges.one_way_ns[tail, head]) - occupancy, occupancy, occupancy)


def plain_simulation(problem: Problem, stages: Sequence[PlainStage]) -> int:
    windows, window = [], 0
    for stage in reversed(stages):
        window += 1 + stage.extra
        windows.append(window)
    sim = [SimStage(s.f, s.b, s.u, w) for s, w in zip(stages, reversed(windows), strict=True)]
    edges = [_edge(problem, a.link_class, b.link_class) for a, b in pairwise(stages)]
    return iteration_ns(SimPipeline(tuple(sim), tuple(edges), problem.num_micro_batches))


def referee(problem: Problem, chain: Chain) -> int:
    """Simulates a chain of pieces, runs of several stages included."""
    pieces = problem.pieces
    sim: list[SimStage] = []
    edges: list[SimEdge] = []
    for place, (piece, window) in enumerate(zip(chain.pieces, chain.windows, strict=True)):
        stages = problem.stages_of(piece)
        own, mine = window, []
        for stage in reversed(stages):
            if mine:
                own += 1 + stage.extra_in_flight
            mine.append(SimStage(stage.forward_ns, stage.backward_ns, stage.step_ns, own))
        sim += reversed(mine)
        edges += [SimEdge(s.one_way_ns - s.occupancy_ns, s.occupancy_ns, s.occupancy_ns) for s in stages[:-1]]
        if place + 1 < len(chain.pieces):
            at = int(pieces.tail_class[piece]), int(pieces.head_class[chain.pieces[place + 1]])
            edges.append(_edge(problem, *at))
    return iteration_ns(SimPipeline(tuple(sim), tuple(edges), problem.num_micro_batches))
