"""Runs predicted from measured layers."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from layer_times import layer_times, seconds
from row_samples import run_of

from tangram.cost.atoms import STEP_COMPONENTS
from tangram.profiles.measured import MeasuredLayers
from tangram.profiles.records import LayerTime
from tangram.profiles.shapes import LayerKind
from tangram.validation.measured import RowBasis, measured_batch
from tangram.validation.pipelines import RunBatch
from tangram.validation.predict import predict, refit
from tangram.validation.run import Run
from tangram.validation.scored import Predicted

A100 = "A100-80GB-SXM"


def one_stage(folder: Path, **cells: object) -> Run:
    return run_of(folder, **{"pp": 1, "dp": 8, **cells})


def from_layers(run: Run, records: list[LayerTime]) -> Predicted:
    return predict(run, MeasuredLayers.of(records))


def without_step(found: Predicted) -> float:
    return found.iter_s - sum(found.components[name] for name in STEP_COMPONENTS)


@pytest.mark.parametrize("cells", [{}, {"tp": 1, "dp": 16, "micro_batch": 1}, {"zero_or_fsdp": "DDP"}])
def test_what_was_measured_is_predicted_as_measured(tmp_path: Path, cells: dict[str, object]) -> None:
    run = one_stage(tmp_path, **cells)
    records = layer_times(run)
    found = from_layers(run, records)
    times = [seconds(records, A100, kind, run.micro_batch) for kind in (LayerKind.EMBEDDING, LayerKind.HEAD)]
    times.append(run.model.num_layers * seconds(records, A100, LayerKind.LAYER, run.micro_batch))
    assert without_step(found) == pytest.approx(run.num_micro_batches * sum(times))
    assert found.basis is RowBasis.MEASURED
    assert sum(found.components.values()) == pytest.approx(found.iter_s)


def test_between_two_micro_batches_times_lie_between(tmp_path: Path) -> None:
    run = one_stage(tmp_path)
    records = layer_times(run, micro_batches=(1, 4))
    found = from_layers(run, records)
    expected = 0.0
    for kind, number in ((LayerKind.EMBEDDING, 1), (LayerKind.LAYER, 8), (LayerKind.HEAD, 1)):
        low, high = (seconds(records, A100, kind, m) for m in (1, 4))
        expected += number * (2 * low + high) / 3  # 2 samples lie a third of the way from 1 to 4
    assert without_step(found) == pytest.approx(run.num_micro_batches * expected)
    assert found.basis is RowBasis.MEASURED


def test_ranks_timed_alone_leave_collectives_to_formulas(tmp_path: Path) -> None:
    run = one_stage(tmp_path)
    formula = predict(run)
    found = from_layers(run, layer_times(run, with_comm=False))
    assert found.components["tp"] == pytest.approx(formula.components["tp"])
    assert found.components["matmul"] != pytest.approx(formula.components["matmul"])


def test_some_layers_are_a_mixed_basis(tmp_path: Path) -> None:
    run = one_stage(tmp_path)
    for kinds in ((LayerKind.LAYER,), (LayerKind.HEAD,), (LayerKind.LAYER, LayerKind.HEAD)):
        assert from_layers(run, layer_times(run, kinds=kinds)).basis is RowBasis.MIXED
    beyond = from_layers(run, layer_times(run, micro_batches=(4, 8)))
    assert beyond.basis is RowBasis.MIXED  # a formula that was scaled


@pytest.mark.parametrize(
    "cells",
    [{"cp": 2, "dp": 4}, {"tuning": "lora"}, {"experts": 8, "top_k": 2, "ep": 2}, {"precision": "fp16"}],
)
def test_what_was_not_timed_so_rests_on_formulas(tmp_path: Path, cells: dict[str, object]) -> None:
    records = layer_times(one_stage(tmp_path))
    run = one_stage(tmp_path, **cells)
    found = from_layers(run, records)
    assert found == predict(run)
    assert found.basis is RowBasis.FORMULA


def test_another_gpu_says_nothing(tmp_path: Path) -> None:
    run = one_stage(tmp_path)
    assert from_layers(run, layer_times(run, gpus=["H100-80GB-SXM"])) == predict(run)


def test_memory_rests_on_formulas(tmp_path: Path) -> None:
    run = run_of(tmp_path)
    formula, found = predict(run), from_layers(run, layer_times(run))
    assert found.peak_memory_bytes == formula.peak_memory_bytes
    assert found.upper_peak_memory_bytes == formula.upper_peak_memory_bytes


def test_where_there_is_no_head_the_norm_alone_counts(tmp_path: Path) -> None:
    run = one_stage(tmp_path, headless=1)
    records = layer_times(run)
    found = from_layers(run, records)
    times = [seconds(records, A100, kind, 2) for kind in (LayerKind.EMBEDDING, LayerKind.FINAL_NORM)]
    times.append(run.model.num_layers * seconds(records, A100, LayerKind.LAYER, 2))
    assert without_step(found) == pytest.approx(run.num_micro_batches * sum(times))


def test_refitting_scales_what_was_measured(tmp_path: Path) -> None:
    """Runs half as slow again as their layers: the fit says so."""
    runs = [one_stage(tmp_path, micro_batch=m) for m in (1, 2, 4)]
    layers = MeasuredLayers.of(layer_times(runs[0]))
    slower = [
        one_stage(tmp_path, micro_batch=r.micro_batch, iter_s=1.5 * predict(r, layers).iter_s) for r in runs
    ]
    fitted = refit(slower, layers)
    for run, slow in zip(runs, slower, strict=True):
        assert fitted(run).iter_s > 1.3 * predict(run, layers).iter_s
        assert fitted(run).iter_s == pytest.approx(slow.measured.iter_s, rel=0.15)
        assert fitted(run).basis is RowBasis.MEASURED


def test_each_host_is_looked_up_by_itself(tmp_path: Path) -> None:
    cells = {"precision": "fp16", "gpu": "mixed: 8xV100-16GB-SXM2+8xT4", "peak_mem_GiB": ""}
    run = one_stage(tmp_path, **cells, zero_or_fsdp="DDP")
    records = layer_times(run)
    found = from_layers(run, records)
    by_gpu = []
    for gpu in ("V100-16GB-SXM2", "T4"):
        times = [seconds(records, gpu, kind, 2) for kind in (LayerKind.EMBEDDING, LayerKind.HEAD)]
        by_gpu.append(sum(times) + run.model.num_layers * seconds(records, gpu, LayerKind.LAYER, 2))
    step = found.iter_s - run.num_micro_batches * max(by_gpu)
    assert 0 < step < found.iter_s / 2
    # Replicas wait for each other at the end only: a faster fast one changes nothing.
    fast = ("V100-16GB-SXM2", "T4")[by_gpu.index(min(by_gpu))]
    faster = [_faster(r) if r.gpu == fast else r for r in records]
    assert from_layers(run, faster).iter_s == pytest.approx(found.iter_s)


def _faster(record: LayerTime) -> LayerTime:
    assert record.forward_s is not None
    assert record.backward_s is not None
    return replace(record, forward_s=record.forward_s / 2, backward_s=record.backward_s / 2)


def test_without_measurements_a_batch_is_the_plain_one(tmp_path: Path) -> None:
    run = run_of(tmp_path, blocking_transfers=1)
    batch, bases = measured_batch([run], None)
    assert bases == (RowBasis.FORMULA,)
    assert batch.stages.factors is None
    assert not batch.blocking.any()
    assert measured_batch([run], MeasuredLayers.of([]))[0].blocking.all()
    assert RunBatch.of([run], as_engine=True).blocking.all()
