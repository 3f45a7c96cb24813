"""Rows with what a predictor says of them; the predictor is passed in, so that any can be scored."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from tangram.errors import InputError
from tangram.validation.folds import spread_choice
from tangram.validation.measured import RowBasis
from tangram.validation.reading import RowResult
from tangram.validation.run import Run

NOT_PREDICTED = "not-predicted"
"""Code of rows whose configuration is complete and that the predictor refuses."""


@dataclass(frozen=True, slots=True)
class Predicted:
    """What is predicted of a run.

    Attributes:
        iter_s: One step.
        peak_memory_bytes: Peak memory in the convention and of the ranks of the run's own measurement.
        upper_peak_memory_bytes: The same at the upper end of its band, against which fit is tested; None
            where there is no band.
        components: Named parts of the step, in seconds; they need not sum to ``iter_s``.
        basis: What the times of its layers rest on.
    """

    iter_s: float
    peak_memory_bytes: float
    upper_peak_memory_bytes: float | None
    components: Mapping[str, float]
    basis: RowBasis = RowBasis.FORMULA


TOO_FEW_ROWS = "too-few-rows"
"""Code of rows whose source would have none left to score."""

Predictor = Callable[[Run], Predicted]

Refit = Callable[[Sequence[Run]], Predictor]
"""Re-fits named constants on some runs of one source, and returns the predictor for the rest."""


@dataclass(frozen=True, slots=True)
class ScoredRow:
    """One row of a table with its prediction.

    Attributes:
        result: The row as it was read.
        predicted: None where it is not used.
        code: Why it is not used, for counting; empty where it is.
        reason: The same as a sentence.
        fitted_on: Whether constants were re-fitted on it: it is predicted, and not scored.
    """

    result: RowResult
    predicted: Predicted | None
    code: str
    reason: str
    fitted_on: bool = False

    @property
    def used(self) -> bool:
        """Whether there is a prediction."""
        return self.predicted is not None

    @property
    def gpu(self) -> str:
        """The group's GPU: ``mixed`` where there are several kinds."""
        run = self.result.run
        text = self.result.origin.gpu
        is_mixed = run.is_mixed if run is not None else text.lower().startswith("mixed")
        return "mixed" if is_mixed else text or "unknown"


def predict_rows(results: Iterable[RowResult], predictor: Predictor) -> list[ScoredRow]:
    """Predicts every row that became a run."""
    return [_predicted(result, predictor) for result in results]


def predict_refitted(results: Sequence[RowResult], refit: Refit, calibrate_on: int) -> list[ScoredRow]:
    """Re-fits on some rows of each source and predicts all of them.

    A source without a row that would be left to score is not used.

    Args:
        results: The rows; their sources may alternate.
        refit: Re-fits the constants.
        calibrate_on: Rows of each source to fit on, spread over its configurations.

    Raises:
        InputError: No source has rows left to score.
    """
    runs_of: dict[str, list[Run]] = {}
    for result in results:
        if result.run is not None:
            runs_of.setdefault(result.origin.source, []).append(result.run)
    enough = {source: runs for source, runs in runs_of.items() if len(runs) > calibrate_on}
    if runs_of and not enough:
        most = max(len(runs) for runs in runs_of.values())
        raise InputError(
            f"no source has more than {calibrate_on} rows that can be used",
            where="--calibrate-on",
            hint=f"legal here: 1 to {most - 1}" if most > 1 else "give more rows",
        )
    predictors, chosen = {}, set()
    for source, runs in enough.items():
        picked = [runs[idx] for idx in spread_choice(runs, calibrate_on)]
        chosen |= {run.origin for run in picked}
        predictors[source] = refit(picked)
    rows = []
    for result in results:
        predictor = predictors.get(result.origin.source)
        if result.run is not None and predictor is None:
            count = len(runs_of[result.origin.source])
            reason = f"{TOO_FEW_ROWS}: source {result.origin.source!r} has {count} rows, all to be fitted on"
            rows.append(ScoredRow(result, None, TOO_FEW_ROWS, reason))
            continue
        row = _predicted(result, predictor) if predictor else _unused(result)
        rows.append(replace(row, fitted_on=result.origin in chosen))
    return rows


def _predicted(result: RowResult, predictor: Predictor) -> ScoredRow:
    if result.run is None:
        return _unused(result)
    try:
        return ScoredRow(result, predictor(result.run), "", "")
    except InputError as error:
        reason = f"{NOT_PREDICTED}: row {result.origin.line}: {error}"
        return ScoredRow(result, None, NOT_PREDICTED, reason)


def _unused(result: RowResult) -> ScoredRow:
    return ScoredRow(result, None, result.code, result.reason)
