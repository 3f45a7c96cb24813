"""The shipped calibration against the published runs that it was fitted to, where these are at hand."""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from tangram.cost.constants import calibration_document
from tangram.validation.calibration import errors_of
from tangram.validation.calibration_file import groups_of
from tangram.validation.fit import Target, measured
from tangram.validation.ranking import job_key, top_1_regret
from tangram.validation.reading import read_runs
from tangram.validation.run import Run
from tangram.validation.scores import trivial_errors

FOLDER = Path(os.environ.get("TANGRAM_SHARED", Path(__file__).parents[3] / "shared")) / "data" / "measured"
DOCUMENT = calibration_document()

pytestmark = pytest.mark.skipif(not FOLDER.is_dir(), reason=f"the measured rows are not at {FOLDER}")


@cache
def runs_of(file: str, target: Target = Target.TIME) -> tuple[Run, ...]:
    found = [result.run for result in read_runs([str(FOLDER / file)]) if result.run is not None]
    known = np.isfinite(measured(found, target))
    return tuple(run for run, has in zip(found, known, strict=True) if has and not run.is_mixed)


@pytest.mark.parametrize("target", list(Target))
def test_the_file_states_its_errors_truly(target: Target) -> None:
    """Errors on the rows that were fitted on, again, from the shipped values alone."""
    stated = [entry for entry in DOCUMENT["errors"] if entry["target"] == target]
    assert len(stated) > 5
    for entry in stated:
        runs = runs_of(entry["file"], target)
        where = groups_of(runs)[entry["file"], entry["gpu"], entry["moe"], entry["fp8"]]
        chosen = [runs[idx] for idx in where]
        assert len(chosen) == entry["rows"]
        found = float(np.abs(errors_of(chosen, target, [])).mean())
        assert found == pytest.approx(entry["in_sample"], rel=0.02, abs=0.001), entry


DENSE = [
    ("llm_foundry.csv", "A100", 0.045),
    ("llm_foundry.csv", "H100", 0.045),
    ("bigscience_bloom_a100.csv", "A100", 0.045),
    ("vtrain_multi.csv", "A100", 0.075),
    ("simumax_b200.csv", "B200", 0.035),
    ("dgxc_benchmarking.csv", "H100", 0.055),
]


@pytest.mark.parametrize(("file", "gpu", "within"), DENSE)
def test_dense_steps_are_predicted_and_better_than_one_constant(file: str, gpu: str, within: float) -> None:
    runs = [run for run in runs_of(file) if gpu in run.origin.gpu and not run.is_moe]
    mean = float(np.abs(errors_of(runs, Target.TIME, [])).mean())
    trivial = trivial_errors(runs)
    assert trivial is not None
    assert mean < within
    assert mean < 0.75 * trivial.mape


@pytest.mark.parametrize("file", ["bigscience_bloom_a100.csv", "vtrain_multi.csv", "amp_heterogeneous.csv"])
def test_the_plan_that_is_predicted_best_is_good(file: str) -> None:
    """Choose by prediction, pay the measurement: within 3 % of the best plan in the median."""
    every = [result.run for result in read_runs([str(FOLDER / file)]) if result.run is not None]
    runs = [run for run in every if run.measured.iter_s is not None]
    predicted = (1 + errors_of(runs, Target.TIME, [])) * measured(runs, Target.TIME)
    jobs: dict[object, list[int]] = {}
    for idx, run in enumerate(runs):
        jobs.setdefault(job_key(run), []).append(idx)
    truth = measured(runs, Target.TIME)
    regrets = [top_1_regret(predicted[where], truth[where]) for where in jobs.values() if len(where) >= 3]
    assert regrets
    assert min(regrets) <= 0.03
    assert float(np.median(regrets)) <= (0.06 if "amp" in file else 0.03)


def test_repeats_of_weak_scaling_grow_alike() -> None:
    """From 8 to 512 GPUs of one kind, where only their number differs, predictions keep the measured pace."""
    groups: dict[tuple[object, ...], list[int]] = {}
    runs = runs_of("llm_foundry.csv")
    for idx, run in enumerate(runs):
        key = (
            run.origin.gpu,
            run.model.name,
            run.seq_len,
            run.micro_batch,
            run.degrees.zero,
            run.saving.recompute,
        )
        groups.setdefault(key, []).append(idx)
    truth = measured(runs, Target.TIME)
    guess = (1 + errors_of(runs, Target.TIME, [])) * truth
    off = []
    for where in groups.values():
        first = min(where, key=lambda idx: runs[idx].num_gpus)
        rest = [idx for idx in where if runs[idx].num_gpus != runs[first].num_gpus]
        off += [abs((guess[idx] / guess[first]) / (truth[idx] / truth[first]) - 1) for idx in rest]
    assert len(off) > 20
    assert np.median(off) < 0.05
