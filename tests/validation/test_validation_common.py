from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from row_samples import ROW, read, reason_of, row, run_of

from tangram.job import OptimizerSpec, Precision, Recompute
from tangram.validation.run import Attention, MemoryKind, MemoryRanks


def test_a_complete_row(tmp_path: Path) -> None:
    run = run_of(tmp_path)
    d = run.degrees
    assert (d.dp, d.tp, d.pp, d.cp, d.ep, d.vpp, d.expert_tp, d.zero, d.fsdp) == (
        4,
        2,
        2,
        1,
        1,
        1,
        2,
        1,
        False,
    )
    assert (run.global_batch, run.micro_batch, run.num_micro_batches, run.num_gpus) == (64, 2, 8, 16)
    assert run.layers_per_stage == (4, 4)
    assert (run.numbers.precision, run.numbers.optimizer) == (Precision.BF16, OptimizerSpec())
    assert (run.saving.recompute, run.saving.stated) == (Recompute.NONE, True)
    assert (run.software.stack, run.software.attention) == ("unknown", Attention.UNKNOWN)
    assert run.software.sequence_parallel
    assert (run.measured.iter_s, run.measured.peak_memory_gib) == (0.5, 20.0)
    assert (run.measured.memory_kind, run.measured.memory_ranks) == (MemoryKind.ALLOCATOR, MemoryRanks.MAX)
    assert not run.is_moe


def test_what_may_be_left_out(tmp_path: Path) -> None:
    columns = ("vpp", "cp", "ep", "dp", "kv_heads", "recompute", "note", "experts", "peak_mem_GiB")
    run = run_of(tmp_path, **dict.fromkeys(columns))
    assert (run.degrees.dp, run.degrees.cp) == (4, 1)
    assert not run.saving.stated
    assert run.key != run_of(tmp_path).key  # "not stated" is no "none"


def test_a_time_from_the_throughput(tmp_path: Path) -> None:
    run = run_of(tmp_path, iter_s="", tokens_per_s_per_gpu=8192)
    assert run.measured.iter_s == 64 * 2048 / (8192 * 16)


def test_settings_in_columns(tmp_path: Path) -> None:
    cells = {"stack": "mine", "attention": "flash", "sequence_parallel": "0", "gradient_bytes": 2}
    run = run_of(tmp_path, **cells, cuda_graphs="true", memory_kind="device", mtp_layers=1)
    assert (run.software.stack, run.software.attention) == ("mine", Attention.FLASH)
    assert not run.software.sequence_parallel
    assert run.numbers.optimizer.gradient_bytes == run.numbers.reduce_bytes == 2
    assert run.software.cuda_graphs is True
    assert run.measured.memory_kind is MemoryKind.DEVICE
    assert run.model_flop(causal=True) > run_of(tmp_path).model_flop(causal=True)


def test_fp32_keeps_no_master_weight(tmp_path: Path) -> None:
    numbers = run_of(tmp_path, precision="fp32").numbers
    assert (numbers.optimizer.master_bytes, numbers.optimizer.moment_bytes) == (0, 8)


def test_layers_as_stated(tmp_path: Path) -> None:
    assert run_of(tmp_path, layers_per_stage="3/5").layers_per_stage == (3, 5)
    assert run_of(tmp_path, pseudo_layers_per_stage="4/6").layers_per_stage == (3, 5)
    cells = {"pseudo_boundaries": "0, 6, 12", "pseudo_before": 2, "pseudo_after": 2}
    assert run_of(tmp_path, **cells).layers_per_stage == (4, 4)


@pytest.mark.parametrize(
    ("cells", "reason"),
    [
        ({"n_gpus": 32}, "impossible: row 1, column n_gpus: tp 2 x pp 2 x cp 1 x dp 4 is 16, not 32 GPUs"),
        ({"global_batch": 63}, "column global_batch: micro-batch 2 x dp 4 does not divide 63"),
        ({"cp": 3, "n_gpus": 48}, "column cp: 3 does not divide 2048 tokens"),
        ({"ep": 2}, "column ep: ep 2 without experts"),
        ({"experts": 3, "top_k": 1, "ep": 2}, "ep 2 does not divide 3 experts"),
        ({"experts": 8, "top_k": 1, "ep": 8}, "ep 8 x expert tp 2 does not divide the 8 GPUs of a stage"),
        ({"pp": 16, "dp": 1, "tp": 1}, "8 layers are too few for 16 stages"),
        ({"layers_per_stage": "3/6"}, "does not split 8 layers over 2 stages"),
        ({"layers_per_stage": "all"}, "is no split"),
        ({"iter_s": "", "peak_mem_GiB": ""}, "no-measurement: row 1: the row has neither a time nor a peak"),
        ({"iter_s": 500}, "implausible: row 1, column iter_s: 500 s would be"),
        ({"tokens_per_s_per_gpu": 1000}, "column iter_s: 0.5 s, but the throughput implies 8.192 s"),
        ({"iter_s": 0.001}, "times what the GPUs can do; is it in seconds?"),
        ({"peak_mem_GiB": 20480}, "20480 GiB do not fit a GPU of 80 GiB; is it in GiB?"),
        ({"tp": "two"}, "not-a-number: row 1, column tp: 'two' is no whole number above 0"),
        ({"iter_s": "OOM"}, "not-a-number: row 1, column iter_s: 'OOM' is no number above 0"),
        ({"precision": ""}, "missing: row 1, column precision: is empty"),
        ({"seq_len": None}, "missing: row 1, column seq_len: is missing from the table"),
        ({"zero_or_fsdp": "magic"}, "unknown-word: row 1, column zero_or_fsdp"),
        ({"attention": "fast"}, "unknown-word: row 1, column attention: 'fast'"),
        ({"note": "CHECK MISMATCH tps"}, "check-mismatch: row 1: the collector's own arithmetic check"),
        ({"note": "OUT OF MEMORY on 80GB", "iter_s": "", "peak_mem_GiB": ""}, "out-of-memory: row 1"),
    ],
)
def test_rows_that_cannot_be_used(tmp_path: Path, cells: dict[str, object], reason: str) -> None:
    assert reason in reason_of(tmp_path, **cells)


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(
    st.dictionaries(
        st.sampled_from(sorted(ROW)),
        st.text(alphabet=st.characters(exclude_characters="\0", codec="utf-8"), max_size=12)
        | st.sampled_from(
            ["0", "-3", "1e9", "999999999999", "nan", "selective []", "FSDP", "mixed: 1x", "64"]
        ),
        min_size=1,
        max_size=4,
    )
)
def test_any_cells_make_a_run_or_a_reason(tmp_path: Path, cells: dict[str, str]) -> None:
    first, second = read(tmp_path, row(**cells), row())
    assert (first.run is None) == bool(first.code)
    assert second.run is not None  # a bad row does not hurt the next one
