"""Whether the best of several plans for one job is found: what a planner needs of a cost model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tangram.model.serial import fingerprint
from tangram.validation.run import Run
from tangram.validation.scored import ScoredRow

MIN_ALTERNATIVES = 3
"""A ranking of two plans says little more than a coin."""

FloatArray = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Ranking:
    """Over all jobs with at least three alternatives.

    Attributes:
        jobs: How many there are.
        alternatives: Rows in them.
        correlation: Median over jobs of Spearman's rank correlation; None where no job has unequal times.
        median_regret: Median over jobs of the regret: what the plan with the best prediction takes in truth,
            over what the best plan takes, minus 1.
        worst_regret: The largest.
    """

    jobs: int
    alternatives: int
    correlation: float | None
    median_regret: float
    worst_regret: float


def score_ranking(rows: Sequence[tuple[ScoredRow, Run]]) -> Ranking | None:
    """Ranks the alternatives of every job; None where no job has enough of them.

    Args:
        rows: Predicted rows and their runs, with measured times.
    """
    jobs: dict[object, list[tuple[float, float]]] = {}
    for row, run in rows:
        if row.predicted is not None and run.measured.iter_s is not None:
            jobs.setdefault(job_key(run), []).append((row.predicted.iter_s, run.measured.iter_s))
    tables = [np.array(pairs, dtype=np.float64) for pairs in jobs.values() if len(pairs) >= MIN_ALTERNATIVES]
    if not tables:
        return None
    correlations = [value for table in tables if (value := spearman(table[:, 0], table[:, 1])) is not None]
    regrets = [top_1_regret(table[:, 0], table[:, 1]) for table in tables]
    return Ranking(
        jobs=len(tables),
        alternatives=sum(len(table) for table in tables),
        correlation=float(np.median(correlations)) if correlations else None,
        median_regret=float(np.median(regrets)),
        worst_regret=max(regrets),
    )


def job_key(run: Run) -> object:
    """What alternatives have in common: GPUs, model, batch, sequence, precision and software."""
    parts = tuple(
        sorted({(host.gpu.name, host.nic_bytes_per_s) for row in run.hardware.hosts for host in row})
    )
    return (
        run.origin.file,
        parts,
        run.num_gpus,
        fingerprint(run.model),
        run.seq_len,
        run.global_batch,
        run.numbers.precision,
        run.numbers.fp8,
        run.software.stack,
    )


def spearman(predicted: FloatArray, measured: FloatArray) -> float | None:
    """Returns Spearman's rank correlation, with mean ranks for ties; None where one side is constant."""
    a, b = _ranks(predicted), _ranks(measured)
    if not a.std() or not b.std():
        return None
    return float(np.mean((a - a.mean()) * (b - b.mean())) / (a.std() * b.std()))


def top_1_regret(predicted: FloatArray, measured: FloatArray) -> float:
    """Returns what choosing by prediction costs: 0 where it finds the fastest plan; ties go to the first."""
    return float(measured[int(np.argmin(predicted))] / measured.min() - 1)


def _ranks(values: FloatArray) -> FloatArray:
    """Ranks from 0, the mean rank for equal values."""
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    ends = np.cumsum(counts)
    ranks: FloatArray = (ends - (counts + 1) / 2)[inverse]
    return ranks
