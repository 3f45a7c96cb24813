"""What counts once per stage: the largest workspace and reserve of any atom.

The knapsack adds memory up, so a maximum has to be fixed beforehand. A level allows the strategies below one
workspace and one reserve and leaves the room that the largest of those allowed leave. The best stage of any
level is the best stage; most levels are ruled out by a bound: with any price per byte, no choice of
strategies costs less than each atom's cheapest at that price, less the price of the room.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tangram.cost.types import BoolArray, FloatArray, IntArray
from tangram.parallelizers.galvatron.strategies import Strategies


@dataclass(frozen=True, slots=True, eq=False)
class Levels:
    """Levels of one window, for the contents of a model.

    Attributes:
        allowed: Strategies per class, less those that another one of the level makes useless;
            ``(num_levels, num_classes, num_strategies)``.
        room_bytes: For what atoms hold all the time; ``(num_levels, num_contents)``.
        bound_s: Below which no stage of a content costs; ``inf`` where no stage fits;
            ``(num_levels, num_contents)``.
    """

    allowed: BoolArray
    room_bytes: FloatArray
    bound_s: FloatArray


def levels_of(
    strategies: Strategies,
    counts: IntArray,
    capacity_bytes: float,
    held_bytes: FloatArray,
    tied: BoolArray,
    ends: BoolArray,
    grain_bytes: float,
) -> Levels:
    """Returns the levels of a window.

    Args:
        strategies: Of the portion.
        counts: Atoms per class of each content; ``(num_contents, num_classes)``.
        capacity_bytes: What best estimates may take of a GPU.
        held_bytes: Of each class and strategy with the window's micro-batches.
        tied: Which contents hold a matrix twice that exists once.
        ends: Which classes are ends of a tied model: what suits one of them need not suit both.
        grain_bytes: Workspaces closer than this to each other make one level; 0 tells all apart.
    """
    masks = _useful(strategies, _masks(strategies, grain_bytes), held_bytes, ends)
    present = counts > 0
    workspace = np.where(masks, strategies.workspace_bytes, 0.0).max(axis=2)
    reserve = np.where(masks, strategies.reserve_bytes, 0.0).max(axis=2)
    taken = np.where(present, workspace[:, None, :], 0.0).max(axis=2)
    taken += np.where(present, reserve[:, None, :], 0.0).max(axis=2)
    room = capacity_bytes - taken + tied * strategies.tied_bytes.max(initial=0.0)
    bound = _bounds(strategies, masks, counts, room, held_bytes) - tied * strategies.tied_value_s.max(
        initial=0.0
    )
    return Levels(masks, capacity_bytes - taken, bound)


def _masks(strategies: Strategies, grain_bytes: float) -> BoolArray:
    """Distinct sets of strategies below a workspace and a reserve; classes without any keep none."""
    allowed, workspace = strategies.allowed, strategies.workspace_bytes
    rounded = np.ceil(workspace / grain_bytes) * grain_bytes if grain_bytes > 0 else workspace
    reserve = np.broadcast_to(strategies.reserve_bytes, allowed.shape)
    masks = [
        allowed & (rounded <= most) & (reserve <= limit)
        for limit in np.unique(reserve[allowed])
        for most in np.unique(rounded[allowed & (reserve <= limit)])
    ]
    distinct = {mask.tobytes(): mask for mask in masks}
    return np.stack(list(distinct.values()))


def _useful(strategies: Strategies, masks: BoolArray, held_bytes: FloatArray, ends: BoolArray) -> BoolArray:
    """Drops what another strategy of the same layout beats in time and memory; of equals the first stays."""
    same = strategies.layout[:, None] == strategies.layout
    first = np.tri(len(same), k=-1, dtype=np.bool_).T
    useful = masks.copy()
    for held in np.flatnonzero(~ends):
        value, size = strategies.value_s[held], held_bytes[held]
        beats = same & (value[:, None] <= value) & (size[:, None] <= size)
        beats &= ~beats.T | first
        useful[:, held] &= ~(masks[:, held, :, None] & beats).any(axis=1)
    return useful


def _bounds(
    strategies: Strategies, masks: BoolArray, counts: IntArray, room: FloatArray, held_bytes: FloatArray
) -> FloatArray:
    value = strategies.value_s
    prices = _prices(strategies, masks, held_bytes, counts)
    priced = value + prices[:, None, None] * held_bytes
    cheapest = np.where(masks[:, None], priced, np.inf).min(axis=3)
    best = np.full(room.shape, -np.inf)
    for idx, price in enumerate(prices.tolist()):
        total = np.zeros(room.shape)
        for held, number in enumerate(counts.T):
            total += np.where(
                number > 0, number * np.where(number > 0, cheapest[:, idx, held, None], 0.0), 0.0
            )
        np.maximum(best, total - price * room, out=best)
    leanest = np.where(masks, held_bytes, np.inf).min(axis=2)
    least = np.zeros(room.shape)
    for held, number in enumerate(counts.T):
        least += np.where(number > 0, number * np.where(number > 0, leanest[:, held, None], 0.0), 0.0)
    return np.where(least <= room, best, np.inf)


def _prices(strategies: Strategies, masks: BoolArray, held_bytes: FloatArray, counts: IntArray) -> FloatArray:
    """Seconds per byte at which atoms of the commonest class would change their strategy, in any level.

    Were all atoms of that class, the bound would be within one atom of the best.
    """
    held = int(counts.max(axis=0).argmax())
    rates = {0.0}
    for row in {mask.tobytes(): mask for mask in masks[:, held]}.values():
        rates |= _rates(strategies.value_s[held, row], held_bytes[held, row])
    return np.array(sorted(rates))


def _rates(value_s: FloatArray, held_bytes: FloatArray) -> set[float]:
    """Slopes of the lower hull: what memory is worth, from the leanest strategy to the fastest."""
    points = sorted(zip(held_bytes.tolist(), value_s.tolist(), strict=True))
    found: set[float] = set()
    at = 0
    while at < len(points):
        size, value = points[at]
        steeper = [
            ((value - other) / (more - size), idx)
            for idx, (more, other) in enumerate(points)
            if more > size and other < value
        ]
        if not steeper:
            break
        rate, at = max(steeper)
        found.add(rate)
    return found
