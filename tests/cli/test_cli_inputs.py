from __future__ import annotations

from pathlib import Path

import pytest

from tangram.cli.inputs import Inputs, parse_layers, read_inputs, read_tolerances
from tangram.cli.options import ChoiceOptions, IslandOptions, JobOptions
from tangram.errors import InputError
from tangram.job import Precision, Recompute

CLUSTER = "1x4xA100-80GB-SXM+1x8xV100-32GB-SXM2"


def read(model: str = "gpt3-13b", cluster: str | None = CLUSTER, **options: object) -> Inputs:
    return read_inputs(model, cluster, JobOptions(**options), ChoiceOptions())  # type: ignore[arg-type]


@pytest.fixture
def job_file(tmp_path: Path) -> Path:
    path = tmp_path / "job.yaml"
    path.write_text(
        "model: gpt3-2.6b\nnum_layers: 16\nglobal_batch: 64\nseq_len: 1024\nprecision: fp32\n"
        "optimizer: {gradient_bytes: 4, master_bytes: 0}\nassumed: [{what: the batch, why: nobody says}]\n",
        encoding="utf-8",
    )
    return path


def test_defaults_come_with_reasons() -> None:
    inputs = read()
    assert inputs.job.precision is Precision.FP16
    assert "no bf16" in inputs.precision_reason
    stated = [assumption.what for assumption in inputs.assumptions]
    assert stated == [
        f"global batch {inputs.job.global_batch}",
        f"sequence length {inputs.job.seq_len}",
        "gradients of 4 bytes",
        "transfers between stages overlap with compute",
        "a stage may hold more micro-batches in flight than plain 1F1B",
    ]
    assert all(assumption.why for assumption in inputs.assumptions)


def test_a_dictated_pipeline_has_the_warmup_of_plain_1f1b() -> None:
    inputs = read_inputs("gpt3-13b", CLUSTER, JobOptions(), ChoiceOptions(), chooses_warmup=False)
    assert not any("in flight" in assumption.what for assumption in inputs.assumptions)


def test_what_is_stated_is_not_assumed() -> None:
    inputs = read(
        global_batch=64, seq_len=512, gradient_bytes=2, engine_overlap=False, fixed_warmup=True, num_layers=8
    )
    assert inputs.assumptions == ()
    job = inputs.job
    assert (job.global_batch, job.seq_len, job.optimizer.gradient_bytes) == (64, 512, 2)
    assert (job.overlap_p2p, job.free_warmup) == (False, False)
    assert inputs.model.num_layers == 8


def test_a_job_file_may_name_the_model(job_file: Path) -> None:
    inputs = read_inputs(CLUSTER, None, JobOptions(job_file=job_file), ChoiceOptions())
    assert (inputs.model.name, inputs.model.num_layers) == ("gpt3-2.6b[16 layers]", 16)
    assert (inputs.job.global_batch, inputs.job.seq_len, inputs.job.precision) == (64, 1024, Precision.FP32)
    assert inputs.job.optimizer.master_bytes == 0
    assert inputs.assumptions[0].what == "the batch"


def test_options_win_over_the_job_file(job_file: Path) -> None:
    inputs = read(job_file=job_file, global_batch=8, precision=Precision.FP16)
    assert inputs.model.num_layers == 40  # of the model that was named, which the file does not trim
    assert (inputs.job.global_batch, inputs.job.seq_len) == (8, 1024)
    assert inputs.job.precision is Precision.FP16


def test_fp32_needs_no_master_copy() -> None:
    assert read(precision=Precision.FP32).job.optimizer.master_bytes == 0
    assert read(precision=Precision.FP16).job.optimizer.master_bytes == 4


def test_choices_become_pins() -> None:
    choices = ChoiceOptions(
        micro_batch=4, tp=2, zero=1, recompute=Recompute.FULL, layers_per_stage="20, 12,8", offload="auto"
    )
    pins = read_inputs("gpt3-13b", CLUSTER, JobOptions(), choices).job.pins
    assert (pins.micro_batch, pins.tp, pins.zero, pins.offload) == (4, 2, 1, "auto")
    assert pins.recompute is Recompute.FULL
    assert pins.layers_per_stage == (20, 12, 8)
    assert pins.pp is None
    assert not pins.allow_cross_node_tp


def test_tolerances_keep_their_defaults() -> None:
    tolerances = read_tolerances(IslandOptions(memory=0.3, network=float("inf")))
    assert (tolerances.memory, tolerances.network) == (0.3, float("inf"))
    assert tolerances.compute == read_tolerances(IslandOptions()).compute


@pytest.mark.parametrize("text", ["", "20,,8", "20;8", "-1,2", "2.5", "²"])
def test_layers_that_are_none(text: str) -> None:
    with pytest.raises(InputError, match="is no number of layers"):
        parse_layers(text)
