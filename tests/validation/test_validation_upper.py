"""The least factor on all but model states that covers a measured peak."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from row_samples import run_of

from tangram.cost.constants import Shelf
from tangram.units import GIB
from tangram.validation.pipelines import RunBatch, largest_of_ranks, peak_parts
from tangram.validation.run import Run
from tangram.validation.slots import Shelves, Slot
from tangram.validation.upper import left_out_ratios, needed_ratios


def covered_by(run: Run, ratio: float) -> float:
    """Bytes of the largest rank with that factor."""
    batch = RunBatch.of([run])
    states, others = peak_parts(batch, batch.stages.costs(Shelves(batch, []).constants([])), doubtful=True)
    return float(largest_of_ranks(batch, states + ratio * others)[0])


def measured_at(run: Run, peak_bytes: float) -> Run:
    return replace(run, measured=replace(run.measured, peak_memory_gib=peak_bytes / GIB))


@pytest.mark.parametrize("ranks", ["max", "first-stage", "last-stage"])
@pytest.mark.parametrize("ratio", [0.8, 1.0, 1.3, 4.0])
def test_a_peak_needs_the_factor_it_was_made_with(tmp_path: Path, ranks: str, ratio: float) -> None:
    run = run_of(tmp_path, pp=2, vocab=200_000, memory_ranks=ranks)
    run = measured_at(run, covered_by(run, ratio))
    assert needed_ratios([run])[0] == pytest.approx(ratio)


def test_a_run_without_a_peak_needs_nothing_that_is_known(tmp_path: Path) -> None:
    run = run_of(tmp_path)
    with_peak = measured_at(run, 40 * GIB)
    without = replace(run, measured=replace(run.measured, peak_memory_gib=None))
    found = needed_ratios([with_peak, without])
    assert np.isnan(found).tolist() == [False, True]


def test_out_of_fold_factors_come_from_the_other_rows(tmp_path: Path) -> None:
    """Rows of one kind that all need twice the activations: whoever has seen the others knows."""
    pytest.importorskip("scipy")
    slot = Slot(Shelf.STACK, "tangram-runtime", "activation_ratio")
    runs = [run_of(tmp_path, stack="tangram-runtime", attention="flash", micro_batch=b) for b in (1, 2, 4, 8)]
    runs = [measured_at(run, covered_by(run, 1.5)) for run in runs]
    alone = needed_ratios(runs)
    assert alone == pytest.approx(1.5)
    found = left_out_ratios(runs, [slot], 2)
    assert found.shape == (2, 4)
    assert (found < alone).all()
