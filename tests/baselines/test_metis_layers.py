"""Metis's balancer of layers against a slow one that keeps sets of slices, and against its own promises."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from tangram.baselines.metis.layers import SLICES, LayerBalancer

speeds = st.lists(st.sampled_from([0.3, 1.0, 1.0, 2.0, 4.0]) | st.floats(0.05, 5.0), min_size=1, max_size=9)
demands = st.lists(st.sampled_from([1.0, 1.0, 0.2, 2.0]), min_size=3, max_size=24)


def normal(values: list[float]) -> list[float]:
    total = sum(values)
    return [value / total for value in values]


def slow_bounds(speed: list[float], share: list[float]) -> list[int]:
    """The method in sets: hand out slices, find majorities, move border layers."""
    last, num = len(speed) - 1, len(share) * SLICES
    need = [share[piece // SLICES] / SLICES for piece in range(num)]
    left, held = list(speed), [set[int]() for _ in speed]

    def give(piece: int, stage: int) -> None:
        held[stage].add(piece)
        left[stage] -= need[piece]

    at = 0
    for stage in range(last):
        while at < num - SLICES - 1:
            if left[stage] <= need[at]:
                at += 1
                break
            give(at, stage)
            at += 1
    free = set(range(num)) - set().union(*held)
    for piece in sorted(free, reverse=True):
        mine = held[last]
        if len(mine) < SLICES or (piece + 1 == min(mine) and left[last] > need[piece]):
            give(piece, last)
    for piece in sorted(free - held[last]):
        below = [(max(s), i) for i, s in enumerate(held) if s and max(s) < piece]
        above = [(min(s), i) for i, s in enumerate(held) if s and min(s) > piece]
        ends = sorted((max(below)[1] if below else 0, min(above)[1] if above else last))
        give(piece, max(range(ends[0], ends[1] + 1), key=lambda stage: (left[stage], -stage)))
    layers = [
        [n for n in range(len(share)) if sum(p // SLICES == n for p in mine) * 2 > SLICES] for mine in held
    ]
    return [0, *_moved(layers, speed, share)]


def _moved(layers: list[list[int]], speed: list[float], share: list[float]) -> list[int]:
    spare = [s - (sum(share[h[0] : h[-1] + 1]) if h else 0.0) for s, h in zip(speed, layers, strict=True)]
    for _ in range(3):
        taker = spare.index(max(spare))
        beside = [i for i in (taker - 1, taker + 1) if 0 <= i < len(spare)]
        giver = min(beside, key=lambda i: spare[i], default=None)
        if giver is None or len(layers[giver]) < 2:
            break
        layer = layers[giver][-1 if giver < taker else 0]
        after = list(spare)
        after[taker] -= share[layer]
        after[giver] += share[layer]
        if max(after) > max(spare):
            break
        layers[giver].remove(layer)
        layers[taker] = sorted([*layers[taker], layer])
        spare = after
    return [sum(len(h) for h in layers[: i + 1]) for i in range(len(layers))]


@settings(deadline=None)
@given(speeds, demands)
def test_it_hands_out_as_the_slow_one_does(speed: list[float], demand: list[float]) -> None:
    speed, share = normal(speed), normal(demand)
    assert list(LayerBalancer(share).bounds(speed)) == slow_bounds(speed, share)


@given(speeds, demands)
def test_bounds_never_exceed_the_model(speed: list[float], demand: list[float]) -> None:
    bounds = LayerBalancer(normal(demand)).bounds(normal(speed))
    assert len(bounds) == len(speed) + 1
    assert bounds[0] == 0
    assert all(a <= b for a, b in pairwise(bounds))
    assert bounds[-1] <= len(demand)


def test_equal_stages_get_equal_layers() -> None:
    assert LayerBalancer(normal([1.0] * 24)).bounds([0.25] * 4) == (0, 6, 12, 18, 24)


def test_it_may_lose_a_layer() -> None:
    """Three slices for one stage and three for another: nobody has the greater part of the layer."""
    lost = [
        (speed, layers)
        for layers in range(3, 12)
        for stages in range(2, 7)
        for speed in [normal([1.0] * (stages - 1) + [tail]) for tail in (0.2, 0.5, 1.0, 3.0)]
        if LayerBalancer(normal([1.0] * layers)).bounds(speed)[-1] < layers
    ]
    assert lost
