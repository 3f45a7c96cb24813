"""Moving atoms out of the stage that holds the others up, toward one that has time or memory to spare.

The bottleneck hands as few atoms as will do to its neighbour, the neighbour as few as will do to the next
one, and so on to the partner: every boundary between the two shifts, and nobody ends above the goal.
"""

from __future__ import annotations

from enum import StrEnum
from math import inf

from tangram.parallelizers.aceso.space import Judged, Pipeline, Space, StageValue, first_gpus, judge

MOST_MOVES = 5
"""Moves in one step, each from the bottleneck that the one before has left."""

MOST_PARTNERS = 3
"""Stages that are tried as partners."""

_GOALS = (0.0, 0.2, 0.4)  # Of the gap between bottleneck and partner: how far below the bottleneck to get.


class Resource(StrEnum):
    """What a bottleneck is short of."""

    TIME = "time"
    MEMORY = "memory"


def bottleneck(judged: Judged) -> tuple[int, Resource]:
    """Returns the stage that lacks most memory, or the slowest one where all fit."""
    return bottlenecks(judged)[0]


def bottlenecks(judged: Judged) -> list[tuple[int, Resource]]:
    """Returns all stages, the worst first: by memory as long as one does not fit, else by time."""
    values = judged.values
    if judged.over > 0:
        order = sorted(range(len(values)), key=lambda i: (values[i].limit - values[i].memory, i))
        return [(i, Resource.MEMORY) for i in order]
    return [(i, Resource.TIME) for i in sorted(range(len(values)), key=lambda i: (-values[i].time, i))]


def move_out(space: Space, judged: Judged, stage: int, resource: Resource) -> list[Pipeline]:
    """Moves atoms out of a stage, and then out of whatever has become the bottleneck.

    Returns:
        The pipeline after the last of up to ``MOST_MOVES`` moves; empty when the first one fails.
    """
    moved: list[Pipeline] = []
    for turn in range(MOST_MOVES):
        if turn:
            judged = judge(space, moved[0])
            stage, resource = bottleneck(judged)
        stops = _moved_once(space, judged, stage, resource)
        if stops is None:
            break
        moved = [Pipeline(judged.pipeline.micro_batch, stops, judged.pipeline.degrees)]
    return moved


def _moved_once(space: Space, judged: Judged, stage: int, resource: Resource) -> tuple[int, ...] | None:
    values, pipeline = judged.values, judged.pipeline
    for partner in _partners(judged, stage, resource)[:MOST_PARTNERS]:
        best = None
        for goal in _goals(values, stage, partner, resource):
            stops = _cascade(space, pipeline, stage, partner, goal, resource)
            if stops is None:
                break
            best = stops
        if best is not None:
            return best
    return None


def _partners(judged: Judged, stage: int, resource: Resource) -> list[int]:
    """Returns the other stages, the one with most to spare first."""
    values = judged.values
    others = [i for i in range(len(values)) if i != stage]
    if resource is Resource.MEMORY:
        return sorted(others, key=lambda i: (values[i].memory - values[i].limit, i))
    sizes = judged.pipeline.sizes
    slowest = values[stage].time

    def spare(i: int) -> float:
        value = values[i]
        return _idle(value, slowest) * sizes[i] * value.ideal / value.time

    return sorted((i for i in others if values[i].time < slowest), key=lambda i: (-spare(i), i))


def _idle(value: StageValue, slowest: float) -> float:
    """Returns the time that a stage can take over: half of it where that costs recomputation."""
    idle = slowest - value.time
    if value.recompute > 0:
        return idle / 2
    roomy = (value.limit - value.memory) / value.memory * value.time
    return idle if roomy > idle else roomy + (idle - roomy) / 2


def _goals(values: tuple[StageValue, ...], stage: int, partner: int, resource: Resource) -> list[float]:
    """Returns what the stages between the two have to get below, the easiest first."""
    value, other = values[stage], values[partner]
    if resource is Resource.MEMORY:
        gap = value.memory - other.memory
        return sorted({max(value.limit, value.memory - _GOALS[-1] * gap), value.limit}, reverse=True)
    return [value.time - part * (value.time - other.time) for part in _GOALS]


def _cascade(
    space: Space, pipeline: Pipeline, stage: int, partner: int, goal: float, resource: Resource
) -> tuple[int, ...] | None:
    """Returns where the stages end after atoms were handed on from stage to partner; None if none will do."""
    starts, stops = [0, *pipeline.stops[:-1]], list(pipeline.stops)
    gpus, last = first_gpus(pipeline), len(stops) - 1
    forward = partner > stage

    def met(idx: int, start: int, stop: int) -> bool:
        value = space.value(pipeline.micro_batch, start, stop, pipeline.degrees[idx], last - idx, gpus[idx])
        if resource is Resource.MEMORY:
            return value.memory <= goal
        return value.memory <= value.limit and value.time < goal

    for idx in range(stage, partner, 1 if forward else -1):
        start, stop = starts[idx], stops[idx]
        if idx == stage:
            start, stop = (start, stop - 1) if forward else (start + 1, stop)
        while start < stop and not met(idx, start, stop):
            start, stop = (start, stop - 1) if forward else (start + 1, stop)
        if start >= stop:
            return None
        if forward:
            stops[idx] = starts[idx + 1] = stop
        else:
            starts[idx] = stops[idx - 1] = start
    return tuple(stops) if met(partner, starts[partner], stops[partner]) else None


def best_time(value: StageValue) -> float:
    """Returns the time of a stage; ``inf`` where it does not fit."""
    return value.time if value.memory <= value.limit else inf
