"""What upper estimates of memory are made of: how far measured peaks exceed best estimates.

Model states are counted, by dtype and degrees; what may be short is the estimate of all else: activations,
workspace, reserve. So a row is put in one figure, the least factor on all else with which the estimate covers
it, and a stack's ``upper_memory_ratio`` is what 98 of 100 of its rows stay below, each predicted by a fit
that has not seen it.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tangram.cost.types import FloatArray
from tangram.validation.calibration import NUM_FOLDS, fits_without
from tangram.validation.fit import Fitted, Target, measured
from tangram.validation.folds import assign_folds
from tangram.validation.pipelines import RunBatch, largest_of_ranks, peak_parts
from tangram.validation.run import Run
from tangram.validation.slots import Base, Shelves, Slot

UPPER_COVERED = 0.98
"""Share of the rows that an upper estimate covers."""


def needed_ratios(runs: Sequence[Run], fitted: Sequence[Fitted] = (), base: Base = ()) -> FloatArray:
    """Returns the least factors on all but model states that cover the peaks of runs; nan without a peak.

    Args:
        runs: At least one.
        fitted: Constants.
        base: Values in place of the shipped ones.
    """
    batch = RunBatch.of(runs)
    shelves = Shelves(batch, [entry.slot for entry in fitted], base)
    costs = batch.stages.costs(shelves.constants([entry.value for entry in fitted]))
    states, others = peak_parts(batch, costs, doubtful=True)
    # One stage that reaches the figure is enough.
    missing: FloatArray = -largest_of_ranks(
        batch, (states - batch.spread(measured(runs, Target.MEMORY))) / others
    )
    return missing


def left_out_ratios(
    runs: Sequence[Run], slots: Sequence[Slot], num_splits: int, base: Base = ()
) -> FloatArray:
    """Returns them out of fold; shape ``(num_splits, num_runs)``.

    Args:
        runs: With a peak.
        slots: What is fitted.
        num_splits: Splits into five folds by configuration.
        base: Values in place of the shipped ones.
    """
    found, keys = np.full((num_splits, len(runs)), np.nan), [run.key for run in runs]
    for split in range(num_splits):
        folds = assign_folds(keys, NUM_FOLDS, split)
        for inside, fitted in fits_without(runs, Target.MEMORY, slots, folds, base):
            found[split, inside] = needed_ratios([runs[idx] for idx in inside], fitted, base)
    return found
