"""Peaks of the shared rows: best and upper estimates with the shipped constants.

One or two constants per stack were fitted on some of these rows, so this is no measure of accuracy (that is
docs/accuracy.md's); it holds what was reached.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from tangram.cost.types import FloatArray
from tangram.validation.fit import Target, measured
from tangram.validation.pipelines import RunBatch, predict_batch
from tangram.validation.reading import read_runs
from tangram.validation.run import Attention, Run
from tangram.validation.slots import Shelves


def runs_of(name: str, keep: Callable[[Run], bool] = lambda run: True) -> list[Run]:
    folder = (
        Path(os.environ.get("TANGRAM_SHARED", Path(__file__).parents[3] / "shared")) / "data" / "measured"
    )
    path = folder / f"{name}.csv"
    if not path.is_file():
        pytest.skip(f"the shared rows are not at {path}")
    runs = [result.run for result in read_runs([str(path)]) if result.run is not None]
    figures = measured(runs, Target.MEMORY)
    return [run for run, figure in zip(runs, figures, strict=True) if np.isfinite(figure) and keep(run)]


def ratios(runs: list[Run]) -> tuple[FloatArray, FloatArray]:
    """Best and upper estimates over measurements, less 1."""
    batch = RunBatch.of(runs)
    found = predict_batch(batch, Shelves(batch, []).constants([]))
    truth = measured(runs, Target.MEMORY)
    return found.peak_bytes / truth - 1, found.upper_peak_bytes / truth - 1


def is_stated(run: Run) -> bool:
    return run.software.attention is not Attention.UNKNOWN


def is_whole(run: Run) -> bool:
    return not run.is_mixed


@pytest.mark.parametrize(
    ("name", "keep", "count", "mean", "median"),
    [
        ("simumax_b200", is_whole, 28, 0.005, 0.005),
        ("megatron_lm_ci", is_whole, 279, 0.028, 0.012),
        ("megatron_lm_ci", is_stated, 155, 0.022, 0.012),
        ("sailor_validation", is_whole, 17, 0.025, 0.015),
        ("bigscience_bloom_a100", is_whole, 48, 0.040, 0.025),
    ],
)
def test_peaks(name: str, keep: Callable[[Run], bool], count: int, mean: float, median: float) -> None:
    off, _ = ratios(runs_of(name, keep))
    assert len(off) == count
    assert np.abs(off).mean() <= mean
    assert np.median(np.abs(off)) <= median


def test_fewer_than_1_row_of_50_exceeds_the_upper_estimate() -> None:
    names = ("simumax_b200", "megatron_lm_ci", "sailor_validation", "bigscience_bloom_a100")
    runs = [run for name in names for run in runs_of(name, is_whole)]
    _, upper = ratios(runs)
    assert len(runs) == 372
    assert (upper < 0).sum() <= 372 / 50
    stated = np.array([is_stated(run) for run in runs])
    assert upper[stated].mean() <= 0.12
