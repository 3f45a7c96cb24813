"""The result of a calibration as a file: values, uncertainty, rows, errors, bands."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass

import numpy as np

from tangram.cost.calibration import FORMAT, VERSION
from tangram.cost.constants import Shelf
from tangram.cost.types import FloatArray
from tangram.validation.bands import MeasuredBand, bands
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


def time_bands(scores: Sequence[Scores]) -> list[MeasuredBand]:
    """Returns the bands of times; none without times."""
    times = [part for part in scores if part.target is Target.TIME]
    return [band for part in times for band in bands(part.runs, part.folds, part.source)]


def calibration_text(scores: Sequence[Scores], made: Sequence[MeasuredBand]) -> str:
    """Returns the file of ``tangram calibrate -o``.

    Args:
        scores: Constants and errors, at most one per target.
        made: Bands that go with them (:func:`time_bands`).
    """
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
    document = {
        "format": FORMAT,
        "version": VERSION,
        **shelves,
        "bands": [{**asdict(band), "half_width_frac": _rounded(band.half_width_frac)} for band in made],
        "errors": [_error(part.target, group) for part in scores for group in group_errors(part)],
    }
    return json.dumps(document, indent=2, ensure_ascii=False) + "\n"


def groups_of(runs: Sequence[Run]) -> dict[tuple[str, str, bool, bool], list[int]]:
    """Returns positions of runs by file, GPU, experts and 8 (or 4) bit."""
    found: dict[tuple[str, str, bool, bool], list[int]] = {}
    for idx, run in enumerate(runs):
        gpu = "mixed" if run.is_mixed else run.origin.gpu
        found.setdefault((run.origin.file, gpu, run.is_moe, run.numbers.fp8 != "none"), []).append(idx)
    return dict(sorted(found.items()))


@dataclass(frozen=True, slots=True)
class GroupErrors:
    """Absolute relative errors of the runs of one file on one GPU; means unless said otherwise.

    Attributes:
        file, gpu, moe, fp8: As in :func:`groups_of`.
        where: Positions of its runs.
        in_sample: On the rows that were fitted on.
        five_fold, five_fold_spread: Over all splits; standard deviation over splits.
        five_fold_median: Mean over splits of the median.
        five_fold_worst: Of any run in any split.
        model_left_out, source_left_out: With the run's model or source left out.
    """

    file: str
    gpu: str
    moe: bool
    fp8: bool
    where: tuple[int, ...]
    in_sample: float
    five_fold: float
    five_fold_spread: float
    five_fold_median: float
    five_fold_worst: float
    model_left_out: float
    source_left_out: float

    @property
    def rows(self) -> int:
        """How many runs."""
        return len(self.where)

    @property
    def kind(self) -> str:
        """What is printed behind the GPU."""
        return " MoE" * self.moe + " 8 bit" * self.fp8


def group_errors(scores: Scores) -> list[GroupErrors]:
    """Returns the errors of every group of runs, sorted."""
    found = []
    for key, where in groups_of(scores.runs).items():
        folds = np.abs(scores.folds[:, where])
        found.append(
            GroupErrors(
                *key,
                where=tuple(where),
                in_sample=float(np.abs(scores.inside[where]).mean()),
                five_fold=float(folds.mean()),
                five_fold_spread=float(folds.mean(axis=1).std()),
                five_fold_median=float(np.median(folds, axis=1).mean()),
                five_fold_worst=float(folds.max()),
                model_left_out=float(np.abs(scores.model[where]).mean()),
                source_left_out=float(np.abs(scores.source[where]).mean()),
            )
        )
    return found


def _error(target: Target, group: GroupErrors) -> dict[str, object]:
    return {
        "target": target.value,
        "file": group.file,
        "gpu": group.gpu,
        "moe": group.moe,
        "fp8": group.fp8,
        "rows": group.rows,
        "in_sample": _rounded(group.in_sample),
        "five_fold": _rounded(group.five_fold),
        "five_fold_spread": _rounded(group.five_fold_spread),
        "five_fold_median": _rounded(group.five_fold_median),
        "model_left_out": _rounded(group.model_left_out),
        "source_left_out": _rounded(group.source_left_out),
    }


def _rows_of(scores: Scores) -> dict[tuple[Shelf, str], int]:
    counts: dict[tuple[Shelf, str], int] = {}
    for run in scores.runs:
        for key in owners_of(run).items():
            counts[key] = counts.get(key, 0) + 1
    return counts


def _rounded(value: float) -> float:
    return float(f"{value:.{DIGITS}g}")
