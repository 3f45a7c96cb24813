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


def test_refitting_takes_out_a_constant_factor(tmp_path: Path) -> None:
    runs = [run_of(tmp_path, micro_batch=m, iter_s=0.9) for m in (1, 2, 4)]
    slower = [run_of(tmp_path, micro_batch=r.micro_batch, iter_s=2 * predict(r).iter_s) for r in runs]
    fitted = refit(slower)
    assert fitted(slower[0]).iter_s == pytest.approx(2 * predict(runs[0]).iter_s)
    assert sum(fitted(slower[0]).components.values()) == pytest.approx(
        2 * sum(predict(runs[0]).components.values())
    )


@pytest.mark.parametrize(
    ("cells", "what"),
    [
        ({"vpp": 2}, "interleaved schedules"),
        ({"precision": "fp8", "gpu": "H100-80GB-SXM", "iter_s": 0.2}, "8-bit products"),
        ({"gpu": "mixed: 8xV100-16GB-SXM2+8xT4", "precision": "fp16", "peak_mem_GiB": ""}, "unequal GPUs"),
        ({"offloaded_layers": 3}, "offloaded layers"),
        ({"experts": 4, "top_k": 1, "ep": 8, "experts_per_rank": 2, "expert_tp": 1}, "replicated experts"),
        ({"mtp_layers": 1}, "multi-token prediction"),
    ],
)
def test_what_has_no_terms_is_refused(tmp_path: Path, cells: dict[str, object], what: str) -> None:
    with pytest.raises(InputError, match=what):
        predict(run_of(tmp_path, **cells))
