"""Predicts measured runs with the cost model, and re-fits named constants of a source on a few of its
rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np

from tangram.cost.constants import Shelf
from tangram.errors import InputError
from tangram.profiles.measured import MeasuredLayers
from tangram.validation.fit import Fitted, Target, fit, measured
from tangram.validation.measured import measured_batch
from tangram.validation.pipelines import predict_batch
from tangram.validation.run import Run
from tangram.validation.scored import Predicted, Predictor
from tangram.validation.slots import EVERYBODY, Shelves, Slot

REFITTED = (
    Slot(Shelf.STACK, EVERYBODY, "kernel_ratio"),
    Slot(Shelf.STACK, EVERYBODY, "exposed_floor_frac"),
    Slot(Shelf.STACK, EVERYBODY, "collective_launch_s"),
    Slot(Shelf.CLUSTER, EVERYBODY, "nvlink_efficiency"),
    Slot(Shelf.CLUSTER, EVERYBODY, "nic_efficiency"),
)
"""What a user re-fits on a handful of runs: how fast the stack's kernels are, what it hides, what links
carry.
"""

REFITTED_MEMORY = (
    Slot(Shelf.STACK, EVERYBODY, "context_bytes"),
    Slot(Shelf.STACK, EVERYBODY, "fragmentation_frac"),
)
"""The same for memory: what is lost to everybody."""


def predict(run: Run, layers: MeasuredLayers | None = None) -> Predicted:
    """Predicts time and peak memory of a run with the shipped constants.

    Args:
        run: The run.
        layers: Measured layers, which come in place of formulas.

    Raises:
        InputError: The cost model has no terms for something that the run does.
    """
    return _predict(run, [], layers)


def refit(runs: Sequence[Run], layers: MeasuredLayers | None = None) -> Predictor:
    """Re-fits at most five named stack and cluster constants on the times of some runs, two on their memory.

    Runs that cannot be predicted are passed over.

    Args:
        runs: Of one source.
        layers: Measured layers, which come in place of formulas.

    Raises:
        InputError: scipy is missing.
    """
    able = [run for run in runs if not _gaps(run)]
    if not able:
        return partial(predict, layers=layers)
    batch, _ = measured_batch(able, layers)
    fitted = [
        entry
        for slots, target in ((REFITTED, Target.TIME), (REFITTED_MEMORY, Target.MEMORY))
        if np.isfinite(measured(able, target)).any()
        for entry in fit(batch, slots, target)
    ]
    return lambda run: _predict(run, fitted, layers)


def _predict(run: Run, fitted: Sequence[Fitted], layers: MeasuredLayers | None) -> Predicted:
    if gaps := _gaps(run):
        raise InputError(f"the cost model has no terms for {gaps}")
    batch, bases = measured_batch([run], layers)
    shelves = Shelves(batch, [entry.slot for entry in fitted])
    found = predict_batch(batch, shelves.constants(entry.value for entry in fitted))
    return Predicted(
        iter_s=float(found.iter_s[0]),
        peak_memory_bytes=float(found.peak_bytes[0]),
        upper_peak_memory_bytes=float(found.upper_peak_bytes[0]),
        components={name: float(seconds[0]) for name, seconds in found.components.items()},
        basis=bases[0],
    )


def _gaps(run: Run) -> str:
    """What the cost model cannot do; empty where it can do all."""
    if run.saving.parameter_offload:
        return "weights in host memory"
    return ""
