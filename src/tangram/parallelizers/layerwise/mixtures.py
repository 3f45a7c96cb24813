"""Which atoms of a stage take which strategy, for all slices and numbers in flight at once.

All that a stage's atoms hold together must fit, so a strategy that is slower but leaner is taken by as many
atoms as it must be. With a price per byte every class of atoms would take one strategy; as the price rises
from nothing, one class after the other goes on to a leaner one, along the lower hull of its strategies in
time and bytes. The stage needs a certain number of bytes less than at price zero, and the steps along the
hulls, cheapest byte first, are gone until they are saved; of the last step only as many atoms go as must.
That is the optimum of the relaxation in which atoms may be divided, rounded up, hence within one atom of the
best. What the last atom saved too much is spent again: on whichever change of atoms gains most.

The knapsack of ``galvatron`` does better by a part of one atom, at some hundred times the cost.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from tangram.cost.types import BoolArray, FloatArray, IntArray

_SPENDING = 2  # Rounds.
_MAX_CELLS = 1 << 19  # Windows times ways times steps times contents at once: arrays of 4 MiB.


@dataclass(frozen=True, slots=True, eq=False)
class Offers:
    """What atoms may take: one row for every way to arrange a stage.

    Attributes:
        value_s: What is minimised, per atom; ``inf`` where a strategy is not to be had; ``(num_ways,
            num_classes, num_strategies)``.
        room_bytes: For what atoms hold; ``(num_ways, num_contents)``.
        held_bytes: By one atom, per window; ``(num_windows, num_classes, num_strategies)``.
        counts: Atoms per class; ``(num_contents, num_classes)``.
        fixed_s: What a stage takes besides; ``inf`` for contents that cannot be arranged like that; shape of
            ``room_bytes``.
    """

    value_s: FloatArray
    room_bytes: FloatArray
    held_bytes: FloatArray
    counts: IntArray
    fixed_s: FloatArray


@dataclass(frozen=True, slots=True, eq=False)
class Mixtures:
    """The best mixture per window and content.

    Attributes:
        value_s: ``(num_windows, num_contents)``; ``inf`` where nothing fits.
        way: Of the offers; same shape.
        numbers: Atoms per class and strategy; ``(num_windows, num_contents, num_classes, num_strategies)``.
    """

    value_s: FloatArray
    way: IntArray
    numbers: IntArray


@dataclass(frozen=True, slots=True, eq=False)
class _Steps:
    """Hulls walked from the fastest strategies to the leanest, cheapest byte first.

    Shape ``(num_windows, num_ways, num_steps)``; ``start`` has one strategy per class instead.
    """

    start: IntArray
    held_class: IntArray
    origin: IntArray
    target: IntArray
    seconds: FloatArray
    saved_bytes: FloatArray


class _Move(NamedTuple):
    """From one strategy to the next one on the hull; ``(num_windows, num_ways, num_classes)``."""

    rate: FloatArray
    origin: IntArray
    target: IntArray
    seconds: FloatArray
    saved_bytes: FloatArray


def best_mixtures(offers: Offers) -> Mixtures:
    """Returns the best mixtures of all windows and contents."""
    steps = _hull_steps(offers)
    parts = [_best_of_block(block, steps) for block in _blocks(offers, steps)]
    return Mixtures(
        np.concatenate([part.value_s for part in parts], axis=1),
        np.concatenate([part.way for part in parts], axis=1),
        np.concatenate([part.numbers for part in parts], axis=1),
    )


def relaxed_values(offers: Offers) -> FloatArray:
    """Returns the least values if atoms could be divided, ``(num_windows, num_contents)``: a lower bound."""
    steps = _hull_steps(offers)
    return np.concatenate(
        [_walked(block, steps, divided=True)[0].min(axis=1) for block in _blocks(offers, steps)], axis=1
    )


def _blocks(offers: Offers, steps: _Steps) -> Iterator[Offers]:
    """Takes so many contents at once that arrays stay small."""
    size = max(1, _MAX_CELLS // max(1, steps.seconds.size))
    for begin in range(0, len(offers.counts), size):
        here = slice(begin, begin + size)
        yield Offers(
            offers.value_s,
            offers.room_bytes[:, here],
            offers.held_bytes,
            offers.counts[here],
            offers.fixed_s[:, here],
        )


def _best_of_block(offers: Offers, steps: _Steps) -> Mixtures:
    value, first, moved = _walked(offers, steps)
    way = value.argmin(axis=1)
    windows, contents = np.indices(way.shape)
    numbers = _numbers(offers, steps, way, first[windows, way, contents], moved[windows, way, contents])
    value_s = value[windows, way, contents]
    numbers[~np.isfinite(value_s)] = 0
    for _ in range(_SPENDING):
        value_s = value_s - _spend(offers, way, numbers)
    return Mixtures(value_s, way, numbers)


def _at(array: FloatArray, idx: IntArray) -> FloatArray:
    """Picks along the last axis, which stays."""
    return np.take_along_axis(array, idx[..., None], axis=-1)


def _hull_steps(offers: Offers) -> _Steps:
    """Walks along the lower hull of every class, way and window."""
    offered, strategy = _packed(np.isfinite(offers.value_s))
    shape = (len(offers.held_bytes), *strategy.shape)
    value = np.take_along_axis(offers.value_s, strategy, axis=2)
    held = np.take_along_axis(offers.held_bytes[:, None], strategy[None], axis=3)
    fastest = (value == np.where(offered, value, np.inf).min(axis=-1, keepdims=True)) & offered
    at = np.where(fastest, held, np.inf).argmin(axis=-1)
    start = np.take_along_axis(np.broadcast_to(strategy, shape), at[..., None], axis=-1)[..., 0]
    value = np.broadcast_to(np.where(offered, value, 0.0), shape)
    names = np.broadcast_to(strategy, shape)
    rows: list[_Move] = []
    while True:
        slower, saved = value - _at(value, at), _at(held, at) - held
        rate = np.divide(slower, saved, out=np.full(shape, np.inf), where=(saved > 0) & offered)
        least = rate.min(axis=-1)
        goes = np.isfinite(least)
        if not goes.any():
            break
        to = np.where(rate == least[..., None], saved, -np.inf).argmax(axis=-1)
        origin, target = (np.take_along_axis(names, i[..., None], axis=-1)[..., 0] for i in (at, to))
        rows.append(_Move(least, origin, target, _at(slower, to)[..., 0], _at(saved, to)[..., 0]))
        at = np.where(goes, to, at)
    return _sorted_steps(start, rows)


def _packed(offered: BoolArray) -> tuple[BoolArray, IntArray]:
    """Moves what is offered to the front of the last axis; returns where that is, and which it was."""
    width = max(1, int(offered.sum(axis=-1).max()))
    strategy = np.argsort(~offered, axis=-1, kind="stable")[..., :width]
    return np.take_along_axis(offered, strategy, axis=-1), strategy


def _sorted_steps(start: IntArray, moves: Sequence[_Move]) -> _Steps:
    """Orders the moves of all classes by what a byte costs; moves that there are not come last."""
    if not moves:
        none = np.zeros((*start.shape[:2], 0), dtype=np.int64)
        return _Steps(start, none, none, none, none.astype(np.float64), none.astype(np.float64))
    rate, seconds, saved = (
        np.concatenate([getattr(move, name) for move in moves], axis=-1)
        for name in ("rate", "seconds", "saved_bytes")
    )
    origin, target = (
        np.concatenate([getattr(move, name) for move in moves], axis=-1) for name in ("origin", "target")
    )
    held_class = np.broadcast_to(np.tile(np.arange(start.shape[2]), len(moves)), rate.shape)
    order = np.argsort(rate, axis=-1, kind="stable")
    is_move = np.isfinite(np.take_along_axis(rate, order, axis=-1))
    return _Steps(
        start,
        np.take_along_axis(held_class, order, axis=-1),
        np.take_along_axis(origin, order, axis=-1),
        np.take_along_axis(target, order, axis=-1),
        np.where(is_move, np.take_along_axis(seconds, order, axis=-1), 0.0),
        np.where(is_move, np.take_along_axis(saved, order, axis=-1), 0.0),
    )


def _walked(offers: Offers, steps: _Steps, *, divided: bool = False) -> tuple[FloatArray, IntArray, IntArray]:
    """Returns the value, how many whole steps are gone, and how many atoms go the one behind them.

    Shape ``(num_windows, num_ways, num_contents)``. Of ``divided`` atoms parts may go.
    """
    value, need = _fastest(offers, steps.start)
    if not steps.seconds.shape[2]:
        none = np.zeros(value.shape, dtype=np.int64)
        return np.where(need <= 0, value, np.inf), none, none
    atoms = offers.counts.T[steps.held_class].astype(np.float64)  # (windows, ways, steps, contents)
    saved = np.cumsum(atoms * steps.saved_bytes[..., None], axis=2)
    seconds = np.cumsum(atoms * steps.seconds[..., None], axis=2)
    reached = saved >= need[:, :, None]
    first = np.where(need <= 0, 0, reached.argmax(axis=2))
    here = first[:, :, None]
    each_s = np.take_along_axis(steps.seconds, first, axis=2)
    each_bytes = np.take_along_axis(steps.saved_bytes, first, axis=2)
    number = np.take_along_axis(atoms, here, axis=2)[:, :, 0]
    missing = need - (np.take_along_axis(saved, here, axis=2)[:, :, 0] - number * each_bytes)
    moved = np.divide(missing, each_bytes, out=np.zeros_like(missing), where=each_bytes > 0)
    moved = moved if divided else np.ceil(moved)
    moved = np.where(need <= 0, 0.0, np.minimum(moved, number))
    before_s = np.take_along_axis(seconds, here, axis=2)[:, :, 0] - number * each_s
    found = value + np.where(need <= 0, 0.0, before_s + moved * each_s)
    fits = (need <= 0) | reached[:, :, -1]
    return np.where(fits, found, np.inf), first, moved.astype(np.int64)


def _fastest(offers: Offers, start: IntArray) -> tuple[FloatArray, FloatArray]:
    """Returns the value with every class at its fastest, and how many bytes too many that takes."""
    shape = (*start.shape[:2], len(offers.counts))
    value = np.broadcast_to(offers.fixed_s, shape).copy()
    need = np.broadcast_to(-offers.room_bytes, shape).copy()
    for held, number in enumerate(offers.counts.T.astype(np.float64)):
        own = start[:, :, held, None]
        seconds = np.take_along_axis(offers.value_s[None, :, held], own, axis=2)
        size = np.take_along_axis(offers.held_bytes[:, None, held], own, axis=2)
        there = number > 0
        value += np.where(there, number * np.where(there, seconds, 0.0), 0.0)
        need += number * size
    return value, need


def _numbers(offers: Offers, steps: _Steps, way: IntArray, first: IntArray, moved: IntArray) -> IntArray:
    """Returns how many atoms of each class take which strategy."""
    windows, contents = np.indices(way.shape)
    numbers = np.zeros((*way.shape, *offers.value_s.shape[1:]), dtype=np.int64)
    for held in range(offers.counts.shape[1]):
        numbers[windows, contents, held, steps.start[windows, way, held]] = offers.counts[None, :, held]
    for idx in range(steps.seconds.shape[2]):
        held = steps.held_class[windows, way, idx]
        amount = np.where(first > idx, offers.counts[contents, held], np.where(first == idx, moved, 0))
        amount = np.where(steps.saved_bytes[windows, way, idx] > 0, amount, 0)
        numbers[windows, contents, held, steps.origin[windows, way, idx]] -= amount
        numbers[windows, contents, held, steps.target[windows, way, idx]] += amount
    return numbers


def _spend(offers: Offers, way: IntArray, numbers: IntArray) -> FloatArray:
    """Spends what is left of the room on the one change of atoms that gains most; returns the gains.

    Args:
        offers, way: Of the mixtures.
        numbers: Changed in place.
    """
    windows, contents = np.indices(way.shape)
    left = offers.room_bytes[way, contents]
    for held in range(numbers.shape[2]):
        left = left - (numbers[:, :, held] * offers.held_bytes[:, None, held]).sum(axis=2)
    gained = np.zeros(way.shape)
    best = [np.zeros(way.shape, dtype=np.int64) for _ in range(4)]  # Class, origin, target, amount.
    for held in range(numbers.shape[2]):
        for origin in np.flatnonzero(numbers[:, :, held].any(axis=(0, 1))).tolist():
            gain, target, amount = _change(offers, way, numbers, left, held, origin)
            better = gain > gained
            gained = np.where(better, gain, gained)
            new = np.full_like(target, held), np.full_like(target, origin), target, amount
            best = [np.where(better, now, old) for now, old in zip(new, best, strict=True)]
    held_class, origin_at, target_at, amount_at = best
    numbers[windows, contents, held_class, origin_at] -= amount_at
    numbers[windows, contents, held_class, target_at] += amount_at
    return gained


def _change(
    offers: Offers, way: IntArray, numbers: IntArray, left_bytes: FloatArray, held: int, origin: int
) -> tuple[FloatArray, IntArray, IntArray]:
    """Returns the most that atoms of a class gain by leaving a strategy, where they go, and how many go; all
    ``(num_windows, num_contents)``.
    """
    value_s = offers.value_s[way][:, :, held]
    size = np.broadcast_to(offers.held_bytes[:, None, held], value_s.shape)
    more = size - size[..., origin, None]
    number = numbers[:, :, held, origin, None]
    fits = np.where(more > 0, np.floor(left_bytes[..., None] / np.where(more > 0, more, 1.0)), number)
    amount = np.clip(fits, 0, number)
    able = (amount > 0) & np.isfinite(value_s)
    less_s = np.where(able, value_s[..., origin, None], 0.0) - np.where(able, value_s, 0.0)
    gain = np.where(able, amount * less_s, 0.0)
    target = gain.argmax(axis=-1)
    return _at(gain, target)[..., 0], target, _at(amount, target)[..., 0].astype(np.int64)
