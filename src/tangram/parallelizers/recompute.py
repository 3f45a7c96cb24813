"""How many atoms must be recomputed in full, for every number of micro-batches in flight.

Atoms are recomputed in a fixed order per configuration: the class that saves most bytes per second first.
With ``k`` atoms recomputed, a stage that holds ``w`` micro-batches fits when

    states + upper_ratio * (reserve + workspace(k) + w * activations(k))  <=  capacity.

Inside a class, ``activations`` falls by the same amount per atom and ``workspace`` is constant, so the
smallest ``k`` is one division: no loop over atoms.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tangram.cost.types import BoolArray, FloatArray, IntArray
from tangram.parallelizers.totals import StageTotals


@dataclass(frozen=True, slots=True, eq=False)
class RecomputeLevels:
    """The least full recomputation that fits; arrays ``(num_pairs, num_windows)``, window ``w = column + 1``.

    Attributes:
        feasible: Whether any number of recomputed atoms fits. Never true to the right of a false.
        num_recomputed: The smallest number that fits; 0 where nothing does. Never falls from left to right.
        recompute_s: What it adds to the backward pass.
    """

    feasible: BoolArray
    num_recomputed: IntArray
    recompute_s: FloatArray


def class_order(totals: StageTotals) -> IntArray:
    """Returns the classes that may be recomputed, in their order; ``(num_recomputable, num_configs)``.

    It is :func:`tangram.cost.stage.recompute_order` for all configurations at once.
    """
    classes = np.flatnonzero(totals.recomputable)
    saved = (totals.costs.stored_bytes - totals.costs.recomputed_stored_bytes)[classes]
    seconds = totals.costs.recompute_s[classes]
    with np.errstate(divide="ignore", invalid="ignore"):
        rate = np.where(seconds > 0, saved / seconds, np.where(saved > 0, np.inf, 0.0))
    order: IntArray = classes[np.argsort(-rate, axis=0, kind="stable")]
    return order


def no_recompute(
    totals: StageTotals, content: IntArray, config: IntArray, num_windows: int
) -> RecomputeLevels:
    """Returns which (content, config) pairs fit as they are; index arrays of shape ``(num_pairs,)``."""
    lacking = _lacking_bytes(totals, content, config, num_windows)
    return RecomputeLevels(lacking <= 0, np.zeros(lacking.shape, dtype=np.int64), np.zeros(lacking.shape))


def least_recompute(
    totals: StageTotals, content: IntArray, config: IntArray, num_windows: int
) -> RecomputeLevels:
    """Returns the least recomputation of (content, config) pairs; index arrays of shape ``(num_pairs,)``."""
    costs = totals.costs
    windows = np.arange(1.0, num_windows + 1.0)
    open_ = _lacking_bytes(totals, content, config, num_windows) > 0
    levels = RecomputeLevels(~open_, np.zeros(open_.shape, dtype=np.int64), np.zeros(open_.shape))
    tight = np.flatnonzero(open_[:, -1])  # The others fit as they are, at every window.
    content, config, open_ = content[tight], config[tight], open_[tight]
    feasible, number, seconds = (
        levels.feasible[tight],
        levels.num_recomputed[tight],
        levels.recompute_s[tight],
    )
    activations = totals.activation_bytes[content, config]
    workspace = totals.workspace_bytes[content, config]
    room = totals.room_bytes[content, config] + workspace
    done = np.zeros(len(tight), dtype=np.int64)
    done_s = np.zeros(len(tight))
    for classes in class_order(totals)[:, config]:
        held = totals.counts[content, classes]
        saved = (costs.stored_bytes - costs.recomputed_stored_bytes)[classes, config]
        each_s = costs.recompute_s[classes, config]
        transient = costs.recompute_workspace_bytes[classes, config]
        workspace = np.where(held > 0, np.maximum(workspace, transient), workspace)
        useful = np.where(saved > 0, held, 0)
        lacking = windows * activations[:, None] - (room - workspace)[:, None]
        needed = np.ceil(lacking / (windows * np.where(saved > 0, saved, 1.0)[:, None]))
        fits = open_ & (needed <= useful[:, None])
        # Where nothing fits yet, the values of this class are overwritten by a later one or never read.
        np.copyto(number, done[:, None] + np.minimum(needed, useful[:, None]).astype(np.int64), where=fits)
        np.copyto(seconds, done_s[:, None] + needed * each_s[:, None], where=fits)
        feasible |= fits
        open_ &= ~fits
        done += held
        done_s += held * each_s
        activations = activations - held * saved
    levels.feasible[tight], levels.num_recomputed[tight], levels.recompute_s[tight] = (
        feasible,
        number,
        seconds,
    )
    return levels


def _lacking_bytes(totals: StageTotals, content: IntArray, config: IntArray, num_windows: int) -> FloatArray:
    """Returns the bytes that each window lacks without recomputation; ``(num_pairs, num_windows)``."""
    windows = np.arange(1.0, num_windows + 1.0)
    activations, room = totals.activation_bytes[content, config], totals.room_bytes[content, config]
    lacking: FloatArray = windows * activations[:, None] - room[:, None]
    return lacking
