"""How far predictions are off, by file and GPU: pure arithmetic on scored rows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from tangram.units import GIB
from tangram.validation.ranking import Ranking, score_ranking
from tangram.validation.run import Run
from tangram.validation.scored import ScoredRow


@dataclass(frozen=True, slots=True)
class Errors:
    """Relative errors, ``predicted / measured - 1``, as fractions.

    Attributes:
        count: Rows.
        mape: Mean of the absolute errors.
        median: Their median.
        worst: Their largest.
        bias: Mean of the signed errors: above zero where predictions are too large.
    """

    count: int
    mape: float
    median: float
    worst: float
    bias: float


@dataclass(frozen=True, slots=True)
class UpperErrors:
    """How safe the upper estimate of memory is.

    Attributes:
        count: Rows that have one and a measurement.
        below: Rows whose measurement exceeds it.
        mean_above: Mean of ``upper / measured - 1``.
    """

    count: int
    below: int
    mean_above: float


@dataclass(frozen=True, slots=True)
class GroupScore:
    """One file and GPU.

    Attributes:
        file: Name of the file.
        gpu: The GPU, or ``mixed``.
        rows: Rows read.
        used: Rows predicted.
        fitted_on: Of those, rows that constants were re-fitted on; they are not scored.
        unused: Rows by the code of why they are not used, most frequent first.
        time: Errors of the time; None without a row that has one.
        trivial: Errors on the same rows of one constant: the median model FLOP/s per GPU of the group's rows
            in each precision, taken from the very rows that it is scored on.
        memory: Errors of peak memory.
        upper_memory: Safety of its upper estimate.
        ranking: How well alternatives for one job are ranked; None where the source lists none.
    """

    file: str
    gpu: str
    rows: int
    used: int
    fitted_on: int
    unused: Mapping[str, int]
    time: Errors | None
    trivial: Errors | None
    memory: Errors | None
    upper_memory: UpperErrors | None
    ranking: Ranking | None


def score_groups(rows: Sequence[ScoredRow]) -> list[GroupScore]:
    """Scores every file and GPU, in order of first appearance."""
    groups: dict[tuple[str, str], list[ScoredRow]] = {}
    for row in rows:
        groups.setdefault((row.result.origin.file, row.gpu), []).append(row)
    return [_score(file, gpu, members) for (file, gpu), members in groups.items()]


def errors_of(pairs: Iterable[tuple[float, float]]) -> Errors | None:
    """Returns the errors of pairs (predicted, measured); None without pairs.

    >>> errors_of([(1.25, 1.0), (0.5, 1.0)])
    Errors(count=2, mape=0.375, median=0.375, worst=0.5, bias=-0.125)
    """
    listed = np.array(list(pairs), dtype=np.float64).reshape(-1, 2)
    if not len(listed):
        return None
    signed = listed[:, 0] / listed[:, 1] - 1
    off = np.abs(signed)
    return Errors(
        count=len(listed),
        mape=float(off.mean()),
        median=float(np.median(off)),
        worst=float(off.max()),
        bias=float(signed.mean()),
    )


def trivial_errors(runs: Sequence[Run]) -> Errors | None:
    """Returns the errors of one constant per precision: the median model FLOP/s per GPU of these very runs.

    FLOP are counted with all and with half of the attention square, and the better of the two counts: a
    baseline should be as strong as it can be made.

    Args:
        runs: Runs with a measured time.
    """
    found = [errors_of(_constant_rate(runs, causal=causal)) for causal in (False, True)]
    return min((errors for errors in found if errors), key=lambda errors: errors.mape, default=None)


def _constant_rate(runs: Sequence[Run], *, causal: bool) -> list[tuple[float, float]]:
    """Pairs of the constant's time and the measured one."""
    known = [
        (_precision(run), run.model_flop(causal=causal) / run.num_gpus, run.measured.iter_s)
        for run in runs
        if run.measured.iter_s is not None
    ]
    rates: dict[tuple[str, str], list[float]] = {}
    for precision, flop, iter_s in known:
        rates.setdefault(precision, []).append(flop / iter_s)
    medians = {precision: float(np.median(found)) for precision, found in rates.items()}
    return [(flop / medians[precision], iter_s) for precision, flop, iter_s in known]


def _precision(run: Run) -> tuple[str, str]:
    return run.numbers.precision.value, run.numbers.fp8.value


def _score(file: str, gpu: str, rows: Sequence[ScoredRow]) -> GroupScore:
    scored = [row for row in rows if row.used and not row.fitted_on]
    timed = [(row, run) for row in scored if (run := timed_run(row)) is not None]
    codes = Counter(row.code for row in rows if not row.used)
    is_sweep = any(row.result.alternatives for row in rows)
    return GroupScore(
        file=file,
        gpu=gpu,
        rows=len(rows),
        used=sum(row.used for row in rows),
        fitted_on=sum(row.used and row.fitted_on for row in rows),
        unused=dict(sorted(codes.items(), key=lambda item: (-item[1], item[0]))),
        time=errors_of(
            (row.predicted.iter_s, run.measured.iter_s)
            for row, run in timed
            if row.predicted is not None and run.measured.iter_s is not None
        ),
        trivial=trivial_errors([run for _, run in timed]),
        memory=errors_of(_memory_pairs(scored)),
        upper_memory=_upper(scored),
        ranking=score_ranking(timed) if is_sweep else None,
    )


def timed_run(row: ScoredRow) -> Run | None:
    """Returns the row's run if its time is to be scored."""
    run = row.result.run
    return run if run is not None and run.measured.iter_s is not None and run.measured.scores_time else None


def _memory_pairs(rows: Iterable[ScoredRow]) -> Iterable[tuple[float, float]]:
    for row in rows:
        peak = measured_memory_gib(row)
        if peak is not None and row.predicted is not None:
            yield row.predicted.peak_memory_bytes / GIB, peak


def measured_memory_gib(row: ScoredRow) -> float | None:
    """Returns the row's peak of memory if it is to be scored."""
    run = row.result.run
    return run.measured.peak_memory_gib if run is not None and run.measured.scores_memory else None


def _upper(rows: Iterable[ScoredRow]) -> UpperErrors | None:
    ratios = []
    for row in rows:
        peak = measured_memory_gib(row)
        upper = row.predicted.upper_peak_memory_bytes if row.predicted is not None else None
        if peak is not None and upper is not None:
            ratios.append(upper / GIB / peak)
    if not ratios:
        return None
    return UpperErrors(
        count=len(ratios),
        below=sum(ratio < 1 for ratio in ratios),
        mean_above=float(np.mean(ratios)) - 1,
    )
