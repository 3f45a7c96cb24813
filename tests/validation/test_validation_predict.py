from __future__ import annotations

from pathlib import Path

import pytest
from row_samples import run_of

from tangram.errors import InputError
from tangram.validation.predict import predict, refit


def test_more_work_takes_longer(tmp_path: Path) -> None:
    base = predict(run_of(tmp_path))
    assert predict(run_of(tmp_path, global_batch=128)).iter_s > 1.5 * base.iter_s
    assert predict(run_of(tmp_path, recompute="full")).iter_s > base.iter_s
    assert predict(run_of(tmp_path, recompute="full")).peak_memory_bytes < base.peak_memory_bytes
    assert predict(run_of(tmp_path, memory_kind="device")).peak_memory_bytes > base.peak_memory_bytes
    assert all(seconds >= 0 for seconds in base.components.values())


def test_the_last_stage_holds_the_head(tmp_path: Path) -> None:
    cells = {"vocab": 500_000, "layers_per_stage": "7/1"}
    first, last = (predict(run_of(tmp_path, **cells, memory_ranks=r)) for r in ("first-stage", "last-stage"))
    largest = predict(run_of(tmp_path, **cells, memory_ranks="max"))
    assert largest.peak_memory_bytes == max(first.peak_memory_bytes, last.peak_memory_bytes)
    assert first.peak_memory_bytes != last.peak_memory_bytes


def test_refitting_finds_a_slower_stack(tmp_path: Path) -> None:
    """Runs that take half as long again are predicted well once five constants are fitted."""
    runs = [run_of(tmp_path, micro_batch=m, iter_s=0.9) for m in (1, 2, 4)]
    slower = [run_of(tmp_path, micro_batch=r.micro_batch, iter_s=1.5 * predict(r).iter_s) for r in runs]
    fitted = refit(slower)
    for run, slow in zip(runs, slower, strict=True):
        assert fitted(run).iter_s == pytest.approx(slow.measured.iter_s, rel=0.05)
    assert sum(fitted(runs[0]).components.values()) == pytest.approx(fitted(runs[0]).iter_s)


def test_components_add_up_to_the_step(tmp_path: Path) -> None:
    for cells in ({}, {"vpp": 2}, {"recompute": "full"}, {"zero_or_fsdp": "FSDP"}):
        found = predict(run_of(tmp_path, **cells))
        assert sum(found.components.values()) == pytest.approx(found.iter_s)


@pytest.mark.parametrize(
    "cells",
    [
        {"vpp": 2},
        {"precision": "fp8", "gpu": "H100-80GB-SXM", "iter_s": 0.2},
        {"gpu": "mixed: 8xV100-16GB-SXM2+8xT4", "precision": "fp16", "peak_mem_GiB": ""},
        {"experts": 4, "top_k": 1, "ep": 8, "experts_per_rank": 2, "expert_tp": 1},
        {"mtp_layers": 1},
    ],
)
def test_what_rows_need_has_terms(tmp_path: Path, cells: dict[str, object]) -> None:
    found = predict(run_of(tmp_path, **cells))
    assert found.iter_s > 0
    assert found.peak_memory_bytes > 0


def test_chunks_shrink_the_bubble(tmp_path: Path) -> None:
    assert predict(run_of(tmp_path, vpp=2)).iter_s < predict(run_of(tmp_path)).iter_s


def test_more_predicted_tokens_cost_more(tmp_path: Path) -> None:
    assert predict(run_of(tmp_path, mtp_layers=1)).iter_s > predict(run_of(tmp_path)).iter_s


def test_what_has_no_terms_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="weights in host memory"):
        predict(run_of(tmp_path, parameter_offload=True))
