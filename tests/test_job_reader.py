"""Job files: the examples, and every refusal."""

from __future__ import annotations

from pathlib import Path

import pytest

from tangram.errors import InputError, UnknownNameError
from tangram.job import OptimizerSpec, Precision
from tangram.job_reader import job_from_yaml, load_job_file
from tangram.yaml_reader import parse_yaml

EXAMPLES = Path(__file__).parents[1] / "examples" / "jobs"


@pytest.mark.parametrize(
    ("name", "model", "num_layers", "global_batch", "seq_len", "precision"),
    [
        ("fig8-gpt3", "gpt3-2.6b", None, 1024, 2048, None),
        ("fig9-gshard-moe", "gshard-moe-2.4b", None, 1024, 1024, None),
        ("fig10-mixtral", "mixtral-8x7b", 16, 256, 4096, None),
        ("fig10-qwen3", "qwen3-30b-a3b", 24, 256, 4096, None),
        ("fig11-gpt3-13b", "gpt3-13b", None, 1024, 2048, Precision.FP16),
    ],
)
def test_examples(
    name: str,
    model: str,
    num_layers: int | None,
    global_batch: int,
    seq_len: int,
    precision: Precision | None,
) -> None:
    job = load_job_file(EXAMPLES / f"{name}.yaml")
    assert (job.name, job.model, job.num_layers) == (name, model, num_layers)
    assert (job.global_batch, job.seq_len, job.precision) == (global_batch, seq_len, precision)
    assert job.optimizer == OptimizerSpec()
    assert any("global batch" in a.what for a in job.assumptions)


def test_every_example_is_tested() -> None:
    assert {p.stem for p in EXAMPLES.glob("*")} == {
        "fig8-gpt3",
        "fig9-gshard-moe",
        "fig10-mixtral",
        "fig10-qwen3",
        "fig11-gpt3-13b",
    }


def test_optimizer_storage() -> None:
    text = "{model: m, global_batch: 8, seq_len: 16, optimizer: {gradient_bytes: 2, master_bytes: 0}}"
    job = job_from_yaml(parse_yaml(text, "j.yaml"), "j")
    assert job.name == "j"
    assert job.optimizer == OptimizerSpec(gradient_bytes=2, master_bytes=0, moment_bytes=8)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{model: m, global_batch: 8}", "'seq_len' is missing"),
        ("{model: m, global_batch: 0, seq_len: 1}", "global_batch: 0 is out of range"),
        ("{model: m, global_batch: 1e3, seq_len: 1}", "expected a whole number, found a number, '1e3'"),
        ("{model: 13, global_batch: 8, seq_len: 1}", "expected a model"),
        ("{model: m, global_batch: 8, seq_len: 1, num_layers: 0}", "num_layers: 0 is out of range"),
        ("{model: m, global_batch: 8, seq_len: 1, optimizer: {moment_bytes: 17}}", "17 is out of range"),
        ("[1]", "expected a mapping"),
    ],
)
def test_refusals(text: str, message: str) -> None:
    with pytest.raises(InputError) as caught:
        job_from_yaml(parse_yaml(text, "j.yaml"), "j")
    assert message in str(caught.value)
    assert "j.yaml:1" in str(caught.value)


@pytest.mark.parametrize(
    ("text", "nearest"),
    [
        ("{model: m, global_batch: 8, seqlen: 1}", "seq_len"),
        ("{model: m, global_batch: 8, seq_len: 1, precision: bf61}", "bf16"),
        ("{model: m, global_batch: 8, seq_len: 1, optimizer: {name: adam}}", "adamw"),
        ("{model: m, global_batch: 8, seq_len: 1, optimizer: {momentbytes: 8}}", "moment_bytes"),
    ],
)
def test_unknown_names_come_with_the_nearest(text: str, nearest: str) -> None:
    with pytest.raises(UnknownNameError) as caught:
        job_from_yaml(parse_yaml(text, "j.yaml"), "j")
    assert nearest in caught.value.nearest
