"""Calibration: which constants earn their place, their values, and how far off predictions with them are.

The candidates are all constants on the shelves that the runs use. One whose value changes no prediction, or
that a fit leaves near its prior (``LEAST_SHIFT``) is kept at its prior; and there are never more
fitted constants than an eighth of the rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from tangram.cost.constants import Shelf
from tangram.cost.types import FloatArray
from tangram.validation.fit import Fitted, Target, fit, measured, predicted
from tangram.validation.folds import assign_folds
from tangram.validation.pipelines import RunBatch
from tangram.validation.run import Run
from tangram.validation.slots import Base, Shelves, Slot, slots_for

ROWS_PER_CONSTANT = 8
"""A fit has no more constants than one for so many rows."""

TIME_CONSTANTS = {
    Shelf.GPU: (
        "gemm_efficiency",
        "gemm_overhead_rows",
        "flash_efficiency",
        "unfused_efficiency",
        "score_efficiency",
        "unaligned_ratio",
        "fp8_efficiency",
        "fp8_overhead_rows",
        "fp4_efficiency",
    ),
    Shelf.STACK: (
        "launch_s",
        "moe_launch_ratio",
        "collective_launch_s",
        "elementwise_ratio",
        "kernel_ratio",
        "attention_ratio",
        "exposed_floor_frac",
        "p2p_exposed_frac",
        "tp_exposed_frac",
        "cp_exposed_frac",
        "ep_exposed_frac",
        "ep_overlapped_frac",
        "fused_dispatch_ratio",
        "graph_launch_ratio",
        "expert_imbalance",
    ),
    Shelf.CLUSTER: ("nvlink_efficiency", "pcie_efficiency", "nic_efficiency"),
}
MEMORY_CONSTANTS = {
    Shelf.STACK: (
        "logit_fixed_bytes",
        "activation_ratio",
        "context_bytes",
        "fragmentation_frac",
    ),
}
LEAST_SHIFT = 1.0
"""Standard deviations that a constant has to move from its prior to be kept."""

BatchOf = Callable[[Sequence[Run]], RunBatch]
"""Puts runs side by side: on formulas, or on measured layers (:mod:`tangram.validation.measured`)."""

NUM_FOLDS = 5
"""Of a split: every configuration is predicted from four fifths of the others."""

_LEAST_EFFECT = 1e-4  # a constant ten times as large that changes no prediction by this share is not there


def candidates(runs: Sequence[Run], target: Target, base: Base = ()) -> list[Slot]:
    """Returns the slots that change any prediction."""
    names = TIME_CONSTANTS if target is Target.TIME else MEMORY_CONSTANTS
    slots = slots_for(runs, names)
    batch = RunBatch.of(runs)
    shelves = Shelves(batch, slots, base)
    shipped = shelves.shipped()
    at_first = predicted(batch, shelves.constants(shipped), target)
    found = []
    for idx, slot in enumerate(slots):
        moved = [*shipped]
        moved[idx] *= 0.5
        change = np.abs(predicted(batch, shelves.constants(moved), target) / at_first - 1)
        if change.max() > _LEAST_EFFECT:
            found.append(slot)
    return found


def select(runs: Sequence[Run], target: Target, slots: Sequence[Slot], base: Base = ()) -> list[Slot]:
    """Returns the slots that earn their place on these runs, see the module."""
    batch = RunBatch.of(runs)
    most = int(np.isfinite(measured(runs, target)).sum()) // ROWS_PER_CONSTANT
    kept = list(slots)
    while kept:
        shift = _shifts(batch, kept, fit(batch, kept, target, base=base), base)
        weakest = sorted(range(len(kept)), key=lambda idx: (shift[idx], kept[idx]))
        # A quarter of those that do not count go at a time: the others may take over what they said.
        idle = [idx for idx in weakest if shift[idx] < LEAST_SHIFT]
        surplus = len(kept) - most
        if not idle and surplus <= 0:
            return kept
        count = max((len(idle) + 3) // 4, min(surplus, max(1, len(kept) // 8)))
        gone = set(weakest[:count])
        kept = [slot for idx, slot in enumerate(kept) if idx not in gone]
    return kept


def _shifts(batch: RunBatch, slots: Sequence[Slot], fitted: Sequence[Fitted], base: Base) -> list[float]:
    """How far each slot has moved from its prior, in standard deviations of the fit."""
    priors = Shelves(batch, slots, base).shipped()
    found = []
    for entry, prior in zip(fitted, priors, strict=True):
        deviation = max(float(np.log(entry.high / entry.value)), 1e-6)
        found.append(abs(float(np.log(entry.value / max(prior, 1e-300)))) / deviation)
    return found


@dataclass(frozen=True, slots=True)
class LeftOut:
    """Relative errors of runs that the fit has not seen; ``predicted / measured - 1``.

    Attributes:
        errors: Shape ``(num_splits, num_runs)``; nan where a run has no such figure.
    """

    errors: FloatArray

    def mean(self, where: Sequence[int]) -> tuple[float, float]:
        """Mean absolute error over some runs: the average over splits, and its standard deviation."""
        per_split = np.nanmean(np.abs(self.errors[:, list(where)]), axis=1)
        return float(per_split.mean()), float(per_split.std())

    def median(self, where: Sequence[int]) -> float:
        """Median absolute error over some runs, averaged over splits."""
        return float(np.nanmedian(np.abs(self.errors[:, list(where)]), axis=1).mean())


def cross_validate(
    runs: Sequence[Run],
    target: Target,
    slots: Sequence[Slot],
    *,
    num_folds: int = NUM_FOLDS,
    num_splits: int = 20,
    base: Base = (),
    batch_of: BatchOf = RunBatch.of,
) -> LeftOut:
    """Predicts every run from fits on the other folds; repeats of a configuration are left out together."""
    keys = [run.key for run in runs]
    return LeftOut(
        np.array(
            [
                left_out(runs, target, slots, assign_folds(keys, num_folds, seed), base, batch_of)
                for seed in range(num_splits)
            ]
        )
    )


def left_out(
    runs: Sequence[Run],
    target: Target,
    slots: Sequence[Slot],
    fold_of: Sequence[int],
    base: Base = (),
    batch_of: BatchOf = RunBatch.of,
) -> FloatArray:
    """Predicts the runs of every fold from a fit on all others; relative errors, shape ``(num_runs,)``."""
    errors = np.full(len(runs), np.nan)
    for inside, fitted in fits_without(runs, target, slots, fold_of, base, batch_of):
        errors[inside] = errors_of([runs[idx] for idx in inside], target, fitted, base, batch_of)
    return errors


def fits_without(
    runs: Sequence[Run],
    target: Target,
    slots: Sequence[Slot],
    fold_of: Sequence[int],
    base: Base = (),
    batch_of: BatchOf = RunBatch.of,
) -> Iterator[tuple[list[int], list[Fitted]]]:
    """Yields the positions of every fold's runs, with a fit on all others."""
    everything = fit(batch_of(runs), slots, target, base=base)
    for fold in sorted(set(fold_of)):
        inside = [idx for idx, own in enumerate(fold_of) if own == fold]
        rest = [run for run, own in zip(runs, fold_of, strict=True) if own != fold]
        yield inside, fit(batch_of(rest), slots, target, everything, base) if rest else []


def errors_of(
    runs: Sequence[Run],
    target: Target,
    fitted: Sequence[Fitted],
    base: Base = (),
    batch_of: BatchOf = RunBatch.of,
) -> FloatArray:
    """Relative errors of runs with fitted constants."""
    batch = batch_of(runs)
    shelves = Shelves(batch, [entry.slot for entry in fitted], base)
    values = predicted(batch, shelves.constants([entry.value for entry in fitted]), target)
    errors: FloatArray = values / measured(runs, target) - 1
    return errors


def left_out_by(
    runs: Sequence[Run],
    target: Target,
    slots: Sequence[Slot],
    group: Callable[[Run], str],
    base: Base = (),
) -> FloatArray:
    """Predicts every group of runs (a model, a source) from a fit on all others."""
    names = [group(run) for run in runs]
    order = {name: idx for idx, name in enumerate(sorted(set(names)))}
    return left_out(runs, target, slots, [order[name] for name in names], base)
