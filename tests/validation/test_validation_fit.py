"""Fits find constants that made up times, keep what no run says anything about, and report bounds."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from row_samples import run_of

from tangram.cost.constants import Shelf, definition
from tangram.validation.bands import bands
from tangram.validation.calibration import candidates, cross_validate, left_out_by, select
from tangram.validation.fit import Target, fit, predicted
from tangram.validation.pipelines import RunBatch
from tangram.validation.run import Run
from tangram.validation.slots import EVERYBODY, Shelves, Slot, owners_of, slots_for

pytest.importorskip("scipy")

KERNELS = Slot(Shelf.STACK, EVERYBODY, "kernel_ratio")
LAUNCH = Slot(Shelf.STACK, EVERYBODY, "launch_s")
SIZES = [(m, s, b) for m in (1, 2, 4) for s in (512, 2048) for b in (64, 128)]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> list[Run]:
    folder = tmp_path_factory.mktemp("rows")
    cells = {"nic_gbit_per_s": 100, "dp": 16, "tp": 1, "pp": 1}
    return [run_of(folder, micro_batch=m, seq_len=s, global_batch=b, **cells) for m, s, b in SIZES]


def made_up(runs: list[Run], slots: list[Slot], values: list[float]) -> list[Run]:
    """The same runs, timed by the cost model with these constants."""
    batch = RunBatch.of(runs)
    times = predicted(batch, Shelves(batch, slots).constants(values), Target.TIME)
    return [
        replace(run, measured=replace(run.measured, iter_s=float(t)))
        for run, t in zip(runs, times, strict=True)
    ]


def test_a_fit_finds_what_made_up_the_times(runs: list[Run]) -> None:
    found = fit(RunBatch.of(made_up(runs, [KERNELS, LAUNCH], [1.2, 5e-4])), [KERNELS, LAUNCH], Target.TIME)
    assert [entry.slot for entry in found] == [KERNELS, LAUNCH]
    assert [entry.value for entry in found] == pytest.approx([1.2, 5e-4], rel=0.05)
    for entry in found:
        assert entry.low < entry.value < entry.high
        assert not entry.on_bound


def test_bad_rows_pull_little(runs: list[Run]) -> None:
    times = made_up(runs, [KERNELS], [1.2])
    bad = replace(times[0], measured=replace(times[0].measured, iter_s=3 * (times[0].measured.iter_s or 0)))
    found = fit(RunBatch.of([bad, *times[1:]]), [KERNELS], Target.TIME)
    assert found[0].value == pytest.approx(1.2, rel=0.05)


def test_repeats_count_less_than_configurations(runs: list[Run]) -> None:
    """One configuration says 1.3, the others 1.2: repeating it, which says nothing new, moves little."""
    odd, rest = made_up(runs, [KERNELS], [1.3]), made_up(runs, [KERNELS], [1.2])[1:]

    def shift(*more: Run) -> float:
        with_more, without = (
            fit(RunBatch.of(rows), [KERNELS], Target.TIME)[0] for rows in ([*more, *rest], rest)
        )
        return float(np.log(with_more.value / without.value))

    assert 0 < shift(odd[0]) < shift(*[odd[0]] * 12) < 1.5 * shift(odd[0])
    assert shift(*odd[:4]) > 2 * shift(odd[0])


def test_a_constant_on_its_bound_is_reported(runs: list[Run]) -> None:
    """No stack is many times as slow as another: times that want it push against the bound."""
    found = fit(RunBatch.of(made_up(runs, [KERNELS], [9.0])), [KERNELS], Target.TIME)
    assert found[0].on_bound
    assert found[0].value <= definition("kernel_ratio").high


def test_without_the_figure_the_prior_stays(runs: list[Run]) -> None:
    blind = [replace(run, measured=replace(run.measured, iter_s=None)) for run in runs]
    batch = RunBatch.of(blind)
    found = fit(batch, [KERNELS], Target.TIME)
    assert found[0].value == pytest.approx(Shelves(batch, [KERNELS]).shipped()[0])


def test_only_constants_that_matter_are_candidates(runs: list[Run]) -> None:
    names = {slot.constant for slot in candidates(runs, Target.TIME)}
    assert {"gemm_efficiency", "elementwise_ratio", "nic_efficiency"} <= names
    assert not names & {"tp_exposed_frac", "ep_exposed_frac", "fp8_efficiency", "p2p_exposed_frac"}


def test_selection_keeps_what_moved_and_no_more_than_an_eighth(runs: list[Run]) -> None:
    slots = slots_for(runs, {Shelf.STACK: ("kernel_ratio", "launch_s"), Shelf.CLUSTER: ("nic_efficiency",)})
    moved = [slot for slot in slots if slot.constant == "kernel_ratio"]
    kept = select(made_up(runs, moved, [1.3]), Target.TIME, slots)
    assert kept == moved
    assert len(kept) <= len(runs) // 8


def test_left_out_rows_are_not_seen(runs: list[Run]) -> None:
    """Groups of which one is twice as slow: each is predicted from the other, so both are far off."""
    slow = made_up(runs, [KERNELS], [1.0])
    half = [
        replace(
            run,
            origin=replace(run.origin, source=f"s{idx % 2}"),
            measured=replace(run.measured, iter_s=(run.measured.iter_s or 0) * (1 + 0.4 * (idx % 2))),
        )
        for idx, run in enumerate(slow)
    ]
    errors = left_out_by(half, Target.TIME, [KERNELS], lambda run: run.origin.source)
    assert np.median(np.abs(errors)) > 0.15
    folds = cross_validate(slow, Target.TIME, [KERNELS], num_splits=2)
    assert folds.errors.shape == (2, len(runs))
    assert folds.mean(range(len(runs)))[0] < 0.02
    made = bands(half, folds.errors, errors)
    assert [(band.stack is None, band.num_rows) for band in made] == [(False, 12), (True, 12), (True, 12)]
    assert made[0].half_width_frac < made[1].half_width_frac


def test_slots_reach_their_owners_only(runs: list[Run]) -> None:
    other = replace(runs[0], software=replace(runs[0].software, stack="another"))
    slots = [Slot(Shelf.STACK, "another", "kernel_ratio"), Slot(Shelf.STACK, "nobody's", "launch_s")]
    batch = RunBatch.of([runs[0], other])
    shelves = Shelves(batch, slots)
    before = predicted(batch, shelves.constants(shelves.shipped()), Target.TIME)
    after = predicted(batch, shelves.constants([1.5, 1.0]), Target.TIME)
    assert after[0] == before[0]
    assert after[1] > before[1]
    assert shelves.used() == [True, False]


def test_a_method_of_its_own_is_a_stack_of_its_own(runs: list[Run]) -> None:
    placed = replace(runs[0], software=replace(runs[0].software, method="laer"))
    assert owners_of(placed)[Shelf.STACK] == f"{owners_of(runs[0])[Shelf.STACK]}/laer"
