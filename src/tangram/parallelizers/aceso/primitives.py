"""The steps of Aceso's search, what each does to a bottleneck, and in which order they are tried.

Every step relieves the bottleneck of one resource at the cost of another; those that relieve what it is
shortest of come first. Recomputation is no step: it is derived anew after each.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, partial
from math import inf

from tangram.parallelizers.aceso.degrees import repicked, rescaled, swapped
from tangram.parallelizers.aceso.moves import Resource, move_out
from tangram.parallelizers.aceso.space import Judged, Pipeline, Space

Apply = Callable[[Space, Judged, int, Resource], list[Pipeline]]


@dataclass(frozen=True, slots=True)
class Primitive:
    """One kind of step.

    Attributes:
        name: In words.
        time, memory, efficiency_loss: What it does to the bottleneck's: -1 less, 0 about the same, 1 more.
        apply: Returns the pipelines that it makes; none where it is not possible.
    """

    name: str
    time: int
    memory: int
    efficiency_loss: int
    apply: Apply

    @property
    def effects(self) -> tuple[int, int, int]:
        """What it does to compute, efficiency loss and recomputation: the last one follows memory."""
        return self.time, self.efficiency_loss, self.memory


PRIMITIVES = (
    Primitive("move atoms out", -1, -1, 0, move_out),
    Primitive("increase dp", -1, -1, 1, partial(rescaled, dim=1, up=True)),
    Primitive("increase tp", -1, -1, 1, partial(rescaled, dim=0, up=True)),
    Primitive("decrease dp", 1, 1, -1, partial(rescaled, dim=1, up=False)),
    Primitive("decrease tp", 1, 1, -1, partial(rescaled, dim=0, up=False)),
    Primitive("increase micro-batch", -1, 1, 0, partial(repicked, up=True)),
    Primitive("decrease micro-batch", 1, -1, 0, partial(repicked, up=False)),
    Primitive("swap tp and dp", -1, -1, -1, swapped),
)


_OUT_OF_MEMORY = [[p for p in PRIMITIVES if p.memory < 0]]


def groups(judged: Judged, stage: int, resource: Resource) -> Sequence[Sequence[Primitive]]:
    """Returns the steps to try on a bottleneck, group by group; none twice.

    Out of memory: what takes less of it, and nothing else. Else the bottleneck's shares of compute, of
    efficiency lost and of recomputation, each of the sum over all stages, say what to relieve first; of the
    steps that do, those come first that do not worsen what the bottleneck has more of than others.
    """
    if resource is Resource.MEMORY:
        return _OUT_OF_MEMORY
    shares = _shares(judged, stage)
    average = 1 / len(judged.values)
    tight = (shares[0] > average, shares[1] > average, shares[2] > 0)
    return _ordered(tuple(sorted(range(len(shares)), key=lambda i: -shares[i])), tight)


@cache
def _ordered(order: tuple[int, ...], tight: tuple[bool, ...]) -> Sequence[Sequence[Primitive]]:
    """Returns the groups for shares in this order, of which some are above what others have."""
    found, left = [], list(PRIMITIVES)
    for share in order:
        relieving = [p for p in left if p.effects[share] < 0]
        others = [i for i in order if tight[i] and i != share]
        harmless = [p for p in relieving if all(p.effects[i] <= 0 for i in others)]
        found += [harmless, [p for p in relieving if p not in harmless]]
        left = [p for p in left if p not in relieving]
    return [group for group in (*found, left) if group]


def _shares(judged: Judged, stage: int) -> tuple[float, float, float]:
    """Returns what part of all stages' compute, efficiency loss and recomputation is this stage's."""
    values = judged.values
    ideal = [v.ideal for v in values]
    lost = [max(0.0, v.time - v.recompute - v.ideal) for v in values]
    again = [v.recompute for v in values]
    return ideal[stage] / sum(ideal), lost[stage] / (sum(lost) or inf), again[stage] / (sum(again) or inf)
