"""The simulator as the referee of abstract problems."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, pairwise

from instances import PlainStage, edge_between, homes, tied_step

from tangram.planner.problem import Chain, Problem
from tangram.simulate.engine import simulate
from tangram.simulate.fast import iteration_ns
from tangram.simulate.pipeline import SimEdge, SimPipeline, SimStage


def sim_edge(hosts: tuple[int, int], one_way: int, occupancy: int, nic: int) -> SimEdge:
    """The edge between two hosts; with ``nic`` it holds their NICs."""
    assert nic in (0, occupancy)
    forward, backward = ((f"{a}:out", f"{b}:in") for a, b in (hosts, hosts[::-1]))
    return SimEdge(one_way - occupancy, occupancy, occupancy, forward if nic else (), backward if nic else ())


def executed_ns(pipeline: SimPipeline) -> int:
    """The iteration time with shared NICs."""
    shares = any(edge.forward_resources for edge in pipeline.edges)
    return simulate(pipeline).iteration_ns if shares else iteration_ns(pipeline)


def plain_simulation(
    problem: Problem, stages: Sequence[PlainStage], windows: Sequence[int] | None = None
) -> int:
    """The simulated time where neighbours share nodes as is best."""
    if windows is None:
        windows = list(accumulate(1 + stage.extra for stage in reversed(stages)))[::-1]
    times = []
    for nodes in homes(problem, stages):
        first = tied_step(problem, stages, nodes)
        sim = [
            SimStage(s.f, s.b, s.u + (first if i == 0 else 0), w)
            for i, (s, w) in enumerate(zip(stages, windows, strict=True))
        ]
        edges = []
        for (a, b), hosts in zip(pairwise(stages), pairwise(nodes), strict=True):
            one_way, _, occupancy, nic = edge_between(problem, a, b, shared=hosts[0] == hosts[1])
            edges.append(sim_edge(hosts, one_way, occupancy, nic))
        times.append(executed_ns(SimPipeline(tuple(sim), tuple(edges), problem.num_micro_batches)))
    return min(times)


def referee(problem: Problem, chain: Chain) -> int:
    """Simulates a chain of pieces, runs of several stages included."""
    pieces = problem.pieces
    if all(pieces.run[piece] < 0 for piece in chain.pieces):
        return plain_simulation(problem, plain_stages(problem, chain), chain.windows)
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
        for s in stages[:-1]:
            hosts = (len(edges), len(edges) + 1)
            edges.append(sim_edge(hosts, s.one_way_ns, s.occupancy_ns, s.nic_ns))
        if place + 1 < len(chain.pieces):
            at = int(pieces.tail_class[piece]), int(pieces.head_class[chain.pieces[place + 1]])
            known = problem.edges
            hosts = (len(edges), len(edges) + 1)
            edges.append(
                sim_edge(hosts, int(known.one_way_ns[at]), int(known.occupancy_ns[at]), int(known.nic_ns[at]))
            )
    return executed_ns(SimPipeline(tuple(sim), tuple(edges), problem.num_micro_batches))


def plain_stages(problem: Problem, chain: Chain) -> list[PlainStage]:
    """The stages of a chain of pieces of one stage each."""
    pieces = problem.pieces
    return [
        PlainStage(
            int(pieces.forward_ns[piece]),
            int(pieces.time_ns[piece] - pieces.forward_ns[piece]),
            int(pieces.head_step_ns[piece]),
            int(pieces.head_class[piece]),
            extra,
            piece,
            int(pieces.island[piece]),
            int(pieces.head_on_node[piece]),
        )
        for piece, extra in zip(chain.pieces, chain.extra_in_flight, strict=True)
    ]
