"""Steps that change degrees: more or fewer GPUs for a stage at the cost of others, and another micro-batch.

"More" and "fewer" mean the nearest multiple or fraction of a degree that makes a legal stage: a factor of
two wherever nodes have a power of two of GPUs.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from itertools import pairwise

from tangram.parallelizers.aceso.moves import Resource, best_time
from tangram.parallelizers.aceso.space import Degrees, Judged, Pipeline, Space, StageValue, first_gpus

_MAX_FACTOR = 8


class _Draft:
    """Degrees of a pipeline while they are being changed."""

    def __init__(self, space: Space, pipeline: Pipeline) -> None:
        self.space = space
        self.pipeline = pipeline
        self.degrees = list(pipeline.degrees)
        self._gpus = first_gpus(pipeline)
        self._bounds = list(pairwise((0, *pipeline.stops)))

    def value(self, idx: int, degrees: Degrees) -> StageValue:
        """Returns what a stage would cost; where it stands is that of the pipeline as it was."""
        start, stop = self._bounds[idx]
        behind = len(self._bounds) - 1 - idx
        return self.space.value(self.pipeline.micro_batch, start, stop, degrees, behind, self._gpus[idx])

    def steps(self, *, up: bool, but: set[int], most: int) -> list[tuple[float, int, Degrees]]:
        """Returns single changes of other stages, the one that leaves the quickest stage first.

        Args:
            up: Whether stages get GPUs or give some.
            but: Stages to leave alone.
            most: GPUs that a stage may get.
        """
        found = []
        for idx, (tp, dp) in enumerate(self.degrees):
            if idx in but:
                continue
            for dim in (0, 1):
                changed = stepped(self.space, self.pipeline.micro_batch, (tp, dp), dim, up)
                if changed is None or (up and changed[0] * changed[1] - tp * dp > most):
                    continue
                found.append((best_time(self.value(idx, changed)), idx, changed))
        return sorted(found)

    def settle(self, spare: int, but: set[int]) -> bool:
        """Gives spare GPUs to other stages, or takes what is lacking; returns whether it comes out even."""
        but = set(but)
        while spare != 0:
            steps = self.steps(up=spare > 0, but=but, most=spare)
            if not steps:
                return False
            _, idx, changed = steps[0]
            spare += size(self.degrees[idx]) - size(changed)
            self.degrees[idx] = changed
            if spare > 0:  # Who gave too much gets nothing back.
                but.add(idx)
        return True

    def finished(self) -> Pipeline | None:
        """Returns the pipeline with these degrees; None where they do not stand on the nodes."""
        found = Pipeline(self.pipeline.micro_batch, self.pipeline.stops, tuple(self.degrees))
        return found if self.space.lays_out(found.sizes) else None


def size(degrees: Degrees) -> int:
    """Returns the GPUs of a stage."""
    return degrees[0] * degrees[1]


@lru_cache(maxsize=1 << 14)
def stepped(space: Space, micro_batch: int, degrees: Degrees, dim: int, up: bool) -> Degrees | None:
    """Returns the nearest legal degrees with more, or less, of tp (``dim`` 0) or dp (1)."""
    for factor in range(2, _MAX_FACTOR + 1):
        if not up and degrees[dim] % factor:
            continue
        value = degrees[dim] * factor if up else degrees[dim] // factor
        changed = (value, degrees[1]) if dim == 0 else (degrees[0], value)
        if size(changed) in space.sizes and changed in space.degrees(micro_batch, size(changed)):
            return changed
    return None


def rescaled(
    space: Space, judged: Judged, stage: int, resource: Resource, *, dim: int, up: bool
) -> list[Pipeline]:
    """Gives a stage more or fewer GPUs in one dimension, and settles with the others.

    The first other stage to change is tried in the order of what it would then take; the rest follows
    greedily. The first pipeline that comes out even and stands on the nodes is returned.
    """
    pipeline = judged.pipeline
    old = pipeline.degrees[stage]
    new = stepped(space, pipeline.micro_batch, old, dim, up)
    if new is None:
        return []
    spare = size(old) - size(new)
    for _, idx, changed in _Draft(space, pipeline).steps(up=spare > 0, but={stage}, most=spare):
        draft = _Draft(space, pipeline)
        draft.degrees[stage] = new
        left = spare + size(draft.degrees[idx]) - size(changed)
        draft.degrees[idx] = changed
        if draft.settle(left, {stage, idx} if left > 0 else {stage}):
            found = draft.finished()
            if found is not None:
                return [found]
    return []


def swapped(space: Space, judged: Judged, stage: int, resource: Resource) -> list[Pipeline]:
    """Gives a stage other degrees on the same GPUs: the quickest that fit."""
    pipeline = judged.pipeline
    draft = _Draft(space, pipeline)
    own = pipeline.degrees[stage]
    others = [d for d in space.degrees(pipeline.micro_batch, size(own)) if d != own]
    if not others:
        return []
    draft.degrees[stage] = min(others, key=lambda d: _quickest(draft.value(stage, d)))
    found = draft.finished()
    return [found] if found is not None else []


def repicked(space: Space, judged: Judged, stage: int, resource: Resource, *, up: bool) -> list[Pipeline]:
    """Takes the next micro-batch, and for every stage the quickest degrees on its GPUs."""
    sizes = space.micro_batches
    at = sizes.index(judged.pipeline.micro_batch) + (1 if up else -1)
    if not 0 <= at < len(sizes):
        return []
    found = with_best_degrees(space, sizes[at], judged.pipeline.stops, judged.pipeline.sizes)
    return [found] if found is not None else []


def with_best_degrees(
    space: Space, micro_batch: int, stops: tuple[int, ...], sizes: tuple[int, ...]
) -> Pipeline | None:
    """Returns the pipeline with the quickest degrees for every stage; None where a size has none."""
    choices = [space.degrees(micro_batch, size) for size in sizes]
    if not all(choices):
        return None
    draft = _Draft(space, Pipeline(micro_batch, stops, tuple(c[0] for c in choices)))
    for idx, choice in enumerate(choices):
        draft.degrees[idx] = min(choice, key=lambda d: _quickest(draft.value(idx, d)))
    return draft.finished()


def _quickest(value: StageValue) -> tuple[float, float]:
    """The smaller, the better: what fits first, then time."""
    return max(0.0, value.memory - value.limit), value.time


def starting_sizes(space: Space, num_stages: int) -> Iterator[tuple[int, ...]]:
    """Yields the GPUs of stages to start from.

    Every stage begins with one GPU; they are doubled from left to right, round after round, while GPUs are
    left. Where that does not come out even, equal sizes.
    """
    sizes = [space.sizes[0]] * num_stages
    grown = True
    while grown and sum(sizes) < space.num_gpus:
        grown = False
        for idx, old in enumerate(sizes):
            bigger = next((s for s in space.sizes if s > old and s % old == 0), None)
            if bigger is not None and sum(sizes) - old + bigger <= space.num_gpus:
                sizes[idx], grown = bigger, True
    equal, rest = divmod(space.num_gpus, num_stages)
    for found in dict.fromkeys((tuple(sizes), () if rest else (equal,) * num_stages)):
        legal = sum(found) == space.num_gpus and all(size in space.sizes for size in found)
        if legal and space.lays_out(found):
            yield found
