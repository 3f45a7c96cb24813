"""Small random composition problems, and the slow, obvious way to solve them."""

from __future__ import annotations

import itertools
import random
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from tangram.planner.problem import FAR_NS, Edges, Nics, Pieces, Problem, SameNode, single_stage_pieces


@dataclass(frozen=True)
class PlainStage:
    f: int
    b: int
    u: int
    link_class: int
    extra: int
    piece: int
    island: int = 0
    on_node: int = 0

    @property
    def t(self) -> int:
        return self.f + self.b


def random_problem(
    seed: int, *, transfers: float = 1.0, max_atoms: int = 8, most_islands: int = 3
) -> Problem:
    """A problem with at most 8 atoms, 3 islands and 8 GPUs: unequal f:b, transfers, large step ends, tight
    memory.
    """
    rng = random.Random(seed)
    num_atoms = rng.randint(2, max_atoms)
    num_islands = rng.randint(1, most_islands)
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
    nic = np.where(np.array(rng.choices([0, 1], k=num_islands**2)).reshape(one_way.shape), occupancy, 0)
    edges = Edges(one_way, 2 * one_way, occupancy, nic)
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
                    island,
                    int(pieces.head_on_node[piece]),
                )
                rest = tuple(n - gpus if k == island else n for k, n in enumerate(left))
                yield from extend(int(pieces.start[piece]), rest, mine, [stage, *behind])

    yield from extend(problem.num_atoms, problem.capacity, 0, [])


def _extra_helps(problem: Problem, piece: int, behind: PlainStage, extra: int, floor: int) -> bool:
    """The space of windows: one more in flight only while the edge, not the stage itself, sets the pace. A
    stage quicker than any plan counts as one that keeps the pace of the quickest plan.
    """
    at = int(problem.pieces.tail_class[piece]), behind.link_class
    time = max(int(problem.pieces.tail_time_ns[piece]), floor)
    pace = max(time, int(problem.edges.occupancy_ns[at]))
    return -(-(time + int(problem.edges.round_trip_ns[at])) // extra) > pace


def node_problem(seed: int, *, tied: bool, max_atoms: int = 6) -> Problem:
    """A random problem whose islands are made of nodes, so that small stages may share one, on slow NICs that
    only extra warm-up can keep busy.
    """
    rng = random.Random(f"nodes {seed}")
    problem = random_problem(seed, transfers=4.0, max_atoms=max_atoms, most_islands=1 + seed % 2)
    pieces, num = problem.pieces, len(problem.capacity)
    pieces = replace(pieces, max_in_flight=pieces.max_in_flight + 4)
    way = problem.edges.one_way_ns
    edges = Edges(way, 2 * way, way, way if rng.random() < 0.7 else 0 * way)
    problem = replace(problem, max_extra_in_flight=rng.choice([0, 1, 2]), edges=edges, edges_at_best=edges)
    node_gpus = np.array([rng.choice([2, 3, 4]) for _ in range(num)], dtype=np.int64)
    part = np.where(pieces.gpus < node_gpus[pieces.island], pieces.gpus, 0)
    # Inside a node a transfer is quicker than between nodes, and keeps no NIC busy.
    own, share = np.eye(num) > 0, rng.choice([0, 2, 5])
    one_way = problem.edges.one_way_ns * share // 10
    occupancy = np.where(own, problem.edges.occupancy_ns * share // 10, FAR_NS)
    inside = Edges(np.where(own, one_way, FAR_NS), np.where(own, 2 * one_way, FAR_NS), occupancy, 0 * one_way)
    apart = np.array([[rng.choice([40, 400, 900]) for _ in range(num)] for _ in range(num)], dtype=np.int64)
    least = np.where(np.eye(num) > 0, np.minimum(apart, rng.choice([0, 30])), apart)
    return replace(
        problem,
        pieces=replace(pieces, head_on_node=part, tail_on_node=part),
        same_node=SameNode(inside, inside, apart, np.arange(num), node_gpus),
        tied_ns=least if tied else None,
    )


def host_problem(seed: int, *, max_atoms: int = 5) -> Problem:
    """A random problem whose islands are one node each: all transfers of an island share the NICs of that."""
    rng = random.Random(f"hosts {seed}")
    problem = random_problem(seed, transfers=4.0, max_atoms=max_atoms)
    num = len(problem.capacity)
    own = np.eye(num) > 0
    one_way = np.where(own, problem.edges.one_way_ns // 20, problem.edges.one_way_ns)
    edges = Edges(one_way, 2 * one_way, one_way, np.where(own, 0, one_way))
    ones = np.ones(num, dtype=np.int64)
    return replace(
        problem,
        pieces=replace(problem.pieces, max_in_flight=problem.pieces.max_in_flight + 4),
        max_extra_in_flight=rng.choice([1, 2]),
        edges=edges,
        edges_at_best=edges,
        nics=Nics(np.arange(num), ones, ones),
    )


def homes(problem: Problem, stages: Sequence[PlainStage]) -> Iterator[list[int]]:
    """The node of each stage, for every way in which neighbours share one or not; with a tied embedding also
    the last run with the first.
    """
    if problem.nics is not None:
        yield [stage.island for stage in stages]  # every island is one node
        return
    node_gpus = None if problem.same_node is None else problem.same_node.node_gpus

    def room(members: list[PlainStage]) -> bool:
        island = members[0].island
        alike = all(s.on_node and s.island == island for s in members)
        return node_gpus is not None and alike and sum(s.on_node for s in members) <= node_gpus[island]

    for shared in itertools.product((False, True), repeat=len(stages) - 1):
        nodes = [0, *itertools.accumulate(0 if yes else 1 for yes in shared)]
        runs = [[s for s, node in zip(stages, nodes, strict=True) if node == k] for k in range(nodes[-1] + 1)]
        if not all(len(run) == 1 or room(run) for run in runs):
            continue
        yield nodes
        if problem.tied_ns is not None and len(runs) > 1 and room(runs[0] + runs[-1]):
            yield [0 if node == nodes[-1] else node for node in nodes]


def tied_step(problem: Problem, stages: Sequence[PlainStage], nodes: Sequence[int]) -> int:
    """What the first stage adds for a tied embedding."""
    if problem.tied_ns is None or len(stages) == 1:
        return 0
    at = stages[0].link_class, stages[-1].link_class
    apart = problem.tied_ns if problem.same_node is None else problem.same_node.tied_apart_ns
    return int(problem.tied_ns[at] if nodes[0] == nodes[-1] else apart[at])


def edge_between(
    problem: Problem, front: PlainStage, behind: PlainStage, *, shared: bool
) -> tuple[int, int, int, int]:
    """One way, round trip, occupancy and NIC time of an edge."""
    edges = problem.edges
    if shared and problem.nics is None:
        assert problem.same_node is not None
        edges = problem.same_node.edges
    at = front.link_class, behind.link_class
    return (
        int(edges.one_way_ns[at]),
        int(edges.round_trip_ns[at]),
        int(edges.occupancy_ns[at]),
        int(edges.nic_ns[at]),
    )


def plain_closed_form(problem: Problem, stages: list[PlainStage]) -> int:
    """The ranking formula of the design, written out: the best way to share nodes."""
    return min(_closed_form_at(problem, stages, nodes) for nodes in homes(problem, stages))


def _closed_form_at(problem: Problem, stages: list[PlainStage], nodes: list[int]) -> int:
    m, busy = problem.num_micro_batches, Counter[int]()
    x, big_x, period = [], [], 0
    for i, stage in enumerate(stages):
        way, trip, occupied, nic = 0, 0, 0, 0
        if i + 1 < len(stages):
            shared = nodes[i] == nodes[i + 1]
            way, trip, occupied, nic = edge_between(problem, stage, stages[i + 1], shared=shared)
            busy[nodes[i]] += nic
            busy[nodes[i + 1]] += nic
        x.append(way)
        big_x.append(trip)
        period = max(period, stage.t, occupied, -(-(stage.t + trip) // (1 + stage.extra)))
    period = max(period, *busy.values()) if busy else period
    worst = 0
    for i, stage in enumerate(stages):
        ahead = sum(stages[j].f + x[j] for j in range(i))
        behind_sum = sum(stages[j].t + big_x[j] for j in range(i, len(stages)))
        step = stage.u + (tied_step(problem, stages, nodes) if i == 0 else 0)
        worst = max(worst, ahead + behind_sum + step)
    return worst + (m - 1) * period
