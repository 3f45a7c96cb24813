from __future__ import annotations

from pathlib import Path

import pytest
from row_samples import read

from tangram.validation.layouts import COMMON, find_layout
from tangram.validation.run import Run

VTRAIN = {
    "Parameters (billion)": "3.6",
    "# GPUs": "64",
    "global batch": "512",
    "micro batch": "4",
    "hidden size": "3072",
    "attention heads": "32",
    "# layers": "30",
    "sequence length": "2048",
    "tensor parallelism": "2",
    "data parallelism": "32",
    "pipeline parallelism": "1",
    "iteration time (ms)": "3638.3",
}
SAILOR = {
    "source": "Sailor repository cf2c8e3, plan.json",
    "cluster": "MIT",
    "gpu_type(s)": "16xRTX-2080-11GB + 8xTitan-RTX-24GB",
    "n_gpus": "24",
    "model": "OPT-350M",
    "n_layers": "24",
    "hidden": "1024",
    "heads": "16",
    "seq_len": "2048",
    "vocab": "50257",
    "global_batch": "6",
    "micro_batch": "2",
    "pp": "1",
    "tp": "8",
    "dp": "3",
    "layers_per_stage": "26",
    "recompute": "none",
    "precision": "fp32 storage (TF32 allowed where the GPU has it)",
    "optimizer/zero": "AdamW; ZeRO 0 (empty)",
    "measured_iter_s": "83.4",
    "measured_peak_mem_GiB": "8.7",
    "note": "stage by stage (| between stages, + between DP replicas): RTX-2080+Titan-RTX+RTX-2080; rest",
}
GALVATRON = {
    "source": "github PKU-DAIR/Hetu-Galvatron branch laer-moe commit 2704237",
    "hardware": "4 nodes x 8 A100-80GB",
    "gpus": "32",
    "model": "mixtral-8x7b-e16k4",
    "layers": "24",
    "seq_len": "8192",
    "global_batch": "128",
    "microbatches": "2",
    "method": "LAER",
    "parallelism": "Galvatron FSEP: pp=1 tp=1 ep=32(use_fsep) zero3 full ckpt",
    "iter_time_ms": "19113.333",
    "notes": "",
}
ALPA = {
    "source": "alpa repo commit 8350d913",
    "gpu": "V100-SXM2-16GB (AWS p3.16xlarge)",
    "n_gpus": "8",
    "model": "GPT-2.6B",
    "n_layers": "32",
    "hidden": "2560",
    "heads": "32",
    "seq_len": "1024",
    "vocab": "51200",
    "experts": "",
    "global_batch": "32",
    "micro_batch": "8",
    "plan": "uniform DP2 x TP2 x PP2; 4 micro-batches",
    "measured_iter_s": "2.464",
    "tflops_per_gpu": "37",
    "note": "",
}


def run_of(folder: Path, cells: dict[str, str], name: str = "rows.csv") -> Run:
    (result,) = read(folder, cells, name=name)
    assert result.run is not None, result.reason
    return result.run


def test_headers_tell_layouts() -> None:
    names = [find_layout(cells).name for cells in (VTRAIN, SAILOR, GALVATRON, ALPA)]
    assert names == ["vtrain", "sailor", "galvatron", "alpa"]
    assert find_layout(["gpu", "tp"]) is COMMON


def test_vtrain(tmp_path: Path) -> None:
    run = run_of(tmp_path, VTRAIN, name="vtrain_multi.csv")
    assert (run.origin.source, run.origin.gpu, run.model.name) == (
        "vtrain-multi",
        "A100-80GB-SXM",
        "gpt-3.6B",
    )
    assert run.measured.iter_s == pytest.approx(3.6383)
    assert (run.degrees.tp, run.degrees.dp, run.micro_batch, run.num_micro_batches) == (2, 32, 4, 4)
    assert (run.model.num_layers, run.model.hidden_size, run.model.vocab_size) == (30, 3072, 51200)


def test_errors_name_the_columns_of_the_file(tmp_path: Path) -> None:
    bad = VTRAIN | {"tensor parallelism": "x"}, VTRAIN | {"iteration time (ms)": "fast"}, VTRAIN
    results = read(tmp_path, *bad, name="vtrain_multi.csv")
    assert "row 1, column tensor parallelism: 'x'" in results[0].reason
    assert "row 2, column iteration time (ms): 'fast'" in results[1].reason
    assert results[2].run is not None


def test_sailor(tmp_path: Path) -> None:
    run = run_of(tmp_path, SAILOR)
    assert run.is_mixed
    assert [host.gpu.name for host in run.hardware.hosts[0]] == ["RTX-2080", "Titan-RTX", "RTX-2080"]
    assert run.layers_per_stage == (24,)
    assert run.numbers.precision == "fp32"
    single = run_of(tmp_path, SAILOR | {"gpu_type(s)": "24xGH200-96GB", "measured_iter_s": "1", "note": ""})
    assert (single.origin.gpu, single.numbers.precision) == ("GH200-96GB", "tf32")


def test_galvatron(tmp_path: Path) -> None:
    run = run_of(tmp_path, GALVATRON)
    assert (run.degrees.dp, run.degrees.ep, run.degrees.zero, run.micro_batch) == (32, 4, 3, 2)
    assert run.degrees.experts_per_rank == 4
    assert (run.software.method, run.saving.recompute, run.origin.gpu) == ("laer", "full", "A100-80GB-SXM")
    moe = run.model.layers[0].moe
    assert moe is not None
    assert (moe.num_experts, moe.top_k, moe.expert.intermediate_size) == (16, 4, 7168)


def test_galvatron_without_a_plan(tmp_path: Path) -> None:
    (result,) = read(tmp_path, GALVATRON | {"parallelism": "ep=8 tp=4 (pp not set)"})
    assert result.code == "plan-not-stated"
    assert result.origin.gpu == "A100-80GB-SXM"  # what is known of the source is known all the same


def test_alpa(tmp_path: Path) -> None:
    run = run_of(tmp_path, ALPA)
    assert (run.degrees.dp, run.degrees.tp, run.degrees.pp, run.micro_batch) == (2, 2, 2, 4)
    assert run.hardware.host().gpu.name == "V100-16GB-SXM2"
