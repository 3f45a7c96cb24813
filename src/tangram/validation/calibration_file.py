"""The result of a calibration as one JSON-ready object: values, uncertainty, rows, errors, bands."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass

import numpy as np

from tangram.cost.constants import Shelf
from tangram.cost.types import FloatArray
from tangram.validation.bands import MeasuredBand
from tangram.validation.calibration import (
    ROWS_PER_CONSTANT,
    candidates,
    cross_validate,
    errors_of,
    left_out_by,
    select,
)
from tangram.validation.fit import Fitted, Target, fit, measured
from tangram.validation.pipelines import RunBatch
from tangram.validation.predict import REFITTED, REFITTED_MEMORY
from tangram.validation.run import Run
from tangram.validation.slots import Base, Slot, owners_of

FORMAT, VERSION = "tangram-calibration", 1
DIGITS = 4
"""Significant digits of values: fits repeat to fewer."""


@dataclass(frozen=True, slots=True, eq=False)
class Scores:
    """Relative errors of the runs of one target, ``predicted / measured - 1``.

    Attributes:
        target: Time or memory.
        runs: With the figure.
        fitted: Constants.
        inside: With these constants, on the rows that they were fitted on; shape ``(num_runs,)``.
        folds: Five-fold by configuration; shape ``(num_splits, num_runs)``.
        model: The run's model left out; shape ``(num_runs,)``.
        source: The run's source left out.
    """

    target: Target
    runs: tuple[Run, ...]
    fitted: tuple[Fitted, ...]
    inside: FloatArray
    folds: FloatArray
    model: FloatArray
    source: FloatArray


def calibrate(
    runs: Sequence[Run],
    target: Target,
    shelves: Sequence[Shelf],
    num_splits: int,
    progress: Callable[[str], None],
    base: Base = (),
) -> Scores | None:
    """Fits what earns its place (or, with few runs, the named constants of a stack and a cluster) and scores
    it in every way; None without a run of equal GPUs that has the figure.

    Raises:
        InputError: scipy is missing.
    """
    known = np.isfinite(measured(runs, target))
    # Runs on unequal GPUs are for testing: what is fitted to equal ones has to hold there too.
    able = [run for run, has in zip(runs, known, strict=True) if has and not run.is_mixed]
    if not able:
        return None
    slots = [slot for slot in candidates(able, target, base) if slot.shelf in shelves]
    progress(f"{target}: {len(able)} rows, {len(slots)} constants may change a prediction")
    kept = _chosen(able, target, slots, base)
    progress(f"{target}: {len(kept)} constants earn their place")
    fitted = fit(RunBatch.of(able), kept, target, base=base)
    progress(f"{target}: five folds, {num_splits} times")
    folds = cross_validate(able, target, kept, num_splits=num_splits, base=base).errors
    progress(f"{target}: models and sources left out")
    return Scores(
        target,
        tuple(able),
        tuple(fitted),
        errors_of(able, target, fitted, base),
        folds,
        left_out_by(able, target, kept, lambda run: run.model.name, base),
        left_out_by(able, target, kept, lambda run: run.origin.source, base),
    )


def _chosen(runs: Sequence[Run], target: Target, slots: Sequence[Slot], base: Base) -> list[Slot]:
    """Few runs of one stack and cluster re-fit the constants that are named for it; more say themselves
    which.
    """
    named = REFITTED if target is Target.TIME else REFITTED_MEMORY
    few = [slot for slot in slots if slot.constant in {entry.constant for entry in named}]
    if len(runs) < ROWS_PER_CONSTANT * len(named) and 0 < len(few) <= len(named):
        return few
    return select(runs, target, slots, base)


def calibration_document(scores: Sequence[Scores], bands: Sequence[MeasuredBand]) -> dict[str, object]:
    """Returns the file of ``tangram calibrate -o``."""
    shelves: dict[str, dict[str, dict[str, object]]] = {shelf.value: {} for shelf in Shelf}
    for part in scores:
        counts = _rows_of(part)
        for entry in part.fitted:
            slot = entry.slot
            shelves[slot.shelf.value].setdefault(slot.owner, {})[slot.constant] = {
                "value": _rounded(entry.value),
                "low": _rounded(entry.low),
                "high": _rounded(entry.high),
                "rows": counts[slot.shelf, slot.owner],
                "on_bound": entry.on_bound,
                "source": f"fitted to {counts[slot.shelf, slot.owner]} measured runs by tangram calibrate",
            }
    return {
        "format": FORMAT,
        "version": VERSION,
        **shelves,
        "bands": [{**asdict(band), "half_width_frac": _rounded(band.half_width_frac)} for band in bands],
        "errors": [error for part in scores for error in _errors(part)],
    }


def groups_of(runs: Sequence[Run]) -> dict[tuple[str, str, bool, bool], list[int]]:
    """Returns positions of runs by file, GPU, experts and 8 (or 4) bit."""
    found: dict[tuple[str, str, bool, bool], list[int]] = {}
    for idx, run in enumerate(runs):
        gpu = "mixed" if run.is_mixed else run.origin.gpu
        found.setdefault((run.origin.file, gpu, run.is_moe, run.numbers.fp8 != "none"), []).append(idx)
    return dict(sorted(found.items()))


def _errors(scores: Scores) -> list[dict[str, object]]:
    found: list[dict[str, object]] = []
    for (file, gpu, moe, narrow), where in groups_of(scores.runs).items():
        folds = np.abs(scores.folds[:, where])
        found.append(
            {
                "target": scores.target.value,
                "file": file,
                "gpu": gpu,
                "moe": moe,
                "fp8": narrow,
                "rows": len(where),
                "in_sample": _rounded(float(np.abs(scores.inside[where]).mean())),
                "five_fold": _rounded(float(folds.mean())),
                "five_fold_spread": _rounded(float(folds.mean(axis=1).std())),
                "five_fold_median": _rounded(float(np.median(folds, axis=1).mean())),
                "model_left_out": _rounded(float(np.abs(scores.model[where]).mean())),
                "source_left_out": _rounded(float(np.abs(scores.source[where]).mean())),
            }
        )
    return found


def _rows_of(scores: Scores) -> dict[tuple[Shelf, str], int]:
    counts: dict[tuple[Shelf, str], int] = {}
    for run in scores.runs:
        for key in owners_of(run).items():
            counts[key] = counts.get(key, 0) + 1
    return counts


def _rounded(value: float) -> float:
    return float(f"{value:.{DIGITS}g}")
