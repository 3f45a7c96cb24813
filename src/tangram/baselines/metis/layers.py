"""Metis's balancer of layers: how many layers every stage of a pipeline gets, by its share of the speed.

Every layer is cut into slices that are handed out as long as shares last: forward from the first stage,
backward to the last one, then one by one what is left between. A layer belongs to the stage that holds most
of its slices. **A layer that no stage holds the greater part of is lost**: the method is published so, and
plans that lack layers have to be told by their sum. At last the stage with most to spare takes layers from a
neighbour, three at most.

Sums run in the order of the slices, so that equal stages meet the same rounding as in the published program.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

SLICES = 7
"""Pieces that a layer is cut into."""

_MOVES = 3
_AMPLE = SLICES + 1
_NOBODY = -1

Span = tuple[int, int]  # First and last slice of a stage.
_EMPTY: Span = (0, -1)


class LayerBalancer:
    """Balances the layers of one model.

    Attributes:
        share: Per layer, its part of the time of all.
    """

    def __init__(self, share: Sequence[float]) -> None:
        self.share = tuple(share)
        self._slices = [part for s in share for part in [s / SLICES] * SLICES]

    def bounds(self, speed: Sequence[float]) -> tuple[int, ...]:
        """Returns the bounds of the stages: stage i has layers ``bounds[i]`` to ``bounds[i + 1] - 1``.

        Args:
            speed: Per stage, its part of the speed of all.

        Returns:
            One bound more than stages. The last one is less than the number of layers where some were lost.
        """
        held = _majorities(_owners(speed, self._slices), len(speed))
        spans = [self.share[layers[0] : layers[-1] + 1] if layers else () for layers in held]
        spare = [has - sum(span) for has, span in zip(speed, spans, strict=True)]
        _adjust(held, spare, self.share)
        return (0, *accumulate(map(len, held)))


def _owners(speed: Sequence[float], slices: Sequence[float]) -> list[int]:
    """Returns the stage that holds each slice."""
    left = list(speed)
    owner = [_NOBODY] * len(slices)
    spans, loose = _forward(left, slices, owner)
    spans.append(_backward(left, slices, owner))
    for piece in loose:
        if owner[piece] == _NOBODY:
            stage = owner[piece] = _between(spans, left, owner, piece)
            left[stage] -= slices[piece]
            low, high = spans[stage]
            spans[stage] = (piece, piece) if high < low else (min(low, piece), max(high, piece))
    return owner


def _forward(
    left: list[float], slices: Sequence[float], owner: list[int]
) -> tuple[list[Span], Sequence[int]]:
    """Fills all stages but the last, keeping back the last layer and a slice.

    A slice that a stage cannot take is skipped. Returns the spans, and the slices without owner, ascending.
    """
    spans: list[Span] = []
    skipped = []
    at, end = 0, len(slices) - 1 - SLICES
    for stage in range(len(left) - 1):
        begin, room = at, left[stage]
        while at < end and room > (part := slices[at]):
            if at % SLICES == 0 and at + SLICES <= end and room > _AMPLE * part:
                # A whole layer, its slices one by one as far as rounding is concerned.
                room = room - part - part - part - part - part - part - part
                at += SLICES
            else:
                room -= part
                at += 1
        left[stage] = room
        owner[begin:at] = [stage] * (at - begin)
        spans.append((begin, at - 1) if at > begin else _EMPTY)
        if at < end:
            skipped.append(at)
            at += 1
    return spans, [*skipped, *range(at, len(slices))]


def _backward(left: list[float], slices: Sequence[float], owner: list[int]) -> Span:
    """Gives the last stage slices from the end: as many as a layer has, then while its share lasts."""
    low, end, last = len(slices), len(slices), len(left) - 1
    while low and owner[low - 1] == _NOBODY and (end - low < SLICES or left[last] > slices[low - 1]):
        low -= 1
        left[last] -= slices[low]
        owner[low] = last
    return low, end - 1


def _between(spans: Sequence[Span], left: Sequence[float], owner: Sequence[int], piece: int) -> int:
    """Returns the stage with most to spare from the nearest one that ends in front of a slice to the nearest
    one that begins behind it. All slices in front have owners.
    """
    at = piece - 1
    while at >= 0 and spans[owner[at]][1] != at:
        at -= 1
    below = owner[at] if at >= 0 else 0
    at, end = piece + 1, len(owner)
    while at < end and (owner[at] == _NOBODY or spans[owner[at]][0] != at):
        at += 1
    above = owner[at] if at < end else len(spans) - 1
    best = min(below, above)
    for stage in range(best + 1, max(below, above) + 1):
        if left[stage] > left[best]:
            best = stage
    return best


def _majorities(owner: Sequence[int], num_stages: int) -> list[list[int]]:
    """Returns the layers of which each stage holds more than half of the slices."""
    held: list[list[int]] = [[] for _ in range(num_stages)]
    half = SLICES // 2
    for layer in range(len(owner) // SLICES):
        owners = owner[layer * SLICES : (layer + 1) * SLICES]
        if owners.count(owners[half]) > half:
            held[owners[half]].append(layer)
            continue
        for stage in dict.fromkeys(owners):
            if owners.count(stage) > half:
                held[stage].append(layer)
    return held


def _adjust(held: list[list[int]], spare: list[float], share: Sequence[float]) -> None:
    """Moves layers at borders to the stage with most to spare, while the most to spare does not grow."""
    for _ in range(_MOVES):
        stage = max(range(len(spare)), key=lambda idx: (spare[idx], -idx))
        near = _fuller_neighbour(held, spare, stage)
        if near is None:
            return
        layer = held[near].pop(-1 if near < stage else 0)
        moved = list(spare)
        moved[stage] -= share[layer]
        moved[near] += share[layer]
        if max(moved) > max(spare):
            held[near].insert(len(held[near]) if near < stage else 0, layer)
            return
        held[stage].append(layer)
        held[stage].sort()
        spare[:] = moved


def _fuller_neighbour(held: Sequence[Sequence[int]], spare: Sequence[float], stage: int) -> int | None:
    """Returns the neighbour with less to spare, if it can give a layer away."""
    beside = [idx for idx in (stage - 1, stage + 1) if 0 <= idx < len(spare)]
    if not beside:
        return None
    near = min(beside, key=lambda idx: spare[idx])
    return near if len(held[near]) > 1 else None
