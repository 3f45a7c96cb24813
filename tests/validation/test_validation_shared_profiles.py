"""Sailor's measured runs with its published layer profiles in place of formulas; the aims that were set."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from tangram.cost.constants import Shelf
from tangram.cost.types import FloatArray
from tangram.job import Precision
from tangram.profiles.importers.formats import import_files
from tangram.profiles.importers.harvest import Given
from tangram.profiles.measured import MeasuredLayers
from tangram.validation.calibration import cross_validate, errors_of
from tangram.validation.fit import Target
from tangram.validation.measured import RowBasis, measured_batch
from tangram.validation.pipelines import RunBatch
from tangram.validation.predict import predict
from tangram.validation.reading import read_runs
from tangram.validation.run import Run
from tangram.validation.slots import EVERYBODY, Slot

PROFILED = (
    ("OPT-350", "GH-96", Precision.TF32),
    ("GPT-Neo-2.7", "GH-96", Precision.TF32),
    ("OPT-350", "RTX-3090", Precision.TF32),
    ("OPT-350", "RTX-2080", Precision.FP32),
    ("OPT-350", "Titan-RTX", Precision.FP32),
)


def shared(name: str) -> Path:
    path = Path(os.environ.get("TANGRAM_SHARED", Path(__file__).parents[3] / "shared")) / "data" / name
    if not path.exists():
        pytest.skip(f"the shared data are not at {path}")
    return path


@pytest.fixture(scope="module")
def layers() -> MeasuredLayers:
    path = shared("profiles") / "sailor" / "simulator_profiles.json"
    records = []
    for model, gpu, precision in PROFILED:
        given = Given(model=model, gpu=gpu, precision=precision)
        records += import_files("sailor", [path], given).records
    return MeasuredLayers.of(records)


def runs(*, mixed: bool) -> list[Run]:
    results = read_runs([str(shared("measured") / "sailor_validation.csv")])
    return [result.run for result in results if result.run is not None and result.run.is_mixed is mixed]


def off(found: list[Run], layers: MeasuredLayers) -> FloatArray:
    return np.abs(errors_of(found, Target.TIME, [], batch_of=lambda some: measured_batch(some, layers)[0]))


def test_mixed_runs_with_nothing_fitted(layers: MeasuredLayers) -> None:
    found = runs(mixed=True)
    errors = off(found, layers)
    assert len(errors) == 5
    assert errors.mean() <= 0.10
    assert np.median(errors) <= 0.03
    assert errors.mean() < 0.25 * np.abs(errors_of(found, Target.TIME, [])).mean()


def test_gh200_runs_left_out(layers: MeasuredLayers) -> None:
    """Five folds by configuration, one constant."""
    found = runs(mixed=False)

    def batch_of(some: list[Run]) -> RunBatch:
        return measured_batch(some, layers)[0]

    slots = [Slot(Shelf.STACK, EVERYBODY, "kernel_ratio")]
    left_out = cross_validate(found, Target.TIME, slots, num_splits=3, batch_of=batch_of)
    assert left_out.mean(range(len(found)))[0] <= 0.0525  # 20 splits: 5.0 +- 0.1 %
    assert left_out.median(range(len(found))) <= 0.02


def test_every_row_rests_on_measurements(layers: MeasuredLayers) -> None:
    for run in [*runs(mixed=False), *runs(mixed=True)]:
        found = predict(run, layers)
        assert found.basis is RowBasis.MEASURED, run.origin
        assert found.peak_memory_bytes == predict(run).peak_memory_bytes
