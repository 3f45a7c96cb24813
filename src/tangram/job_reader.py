"""Reads a job file: which model to train, on how much data per step, and in which precision.

name: fig11-gpt3-13b                 # optional; the name of the file otherwise
model: gpt3-13b                      # a preset, or a Hugging Face config.json (file or folder)
num_layers: 20                       # optional: trims the model
global_batch: 1024                   # samples per step
seq_len: 2048
precision: fp16                      # optional; the planner chooses otherwise
optimizer: {gradient_bytes: 4, master_bytes: 4, moment_bytes: 8}   # optional, bytes per parameter
assumed:                             # what the source of this job does not state
  - {what: the batch, why: the paper does not state it}
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from tangram.cluster.spec import Assumption
from tangram.errors import UnknownNameError
from tangram.job import OptimizerSpec, Precision
from tangram.yaml_reader import Value, read_assumed, read_yaml

MAX_LAYERS = 100_000


@dataclass(frozen=True, slots=True)
class JobFile:
    """A job as a file states it; what the file leaves open is None.

    Attributes:
        name: For print.
        model: A preset's name or a path, as the file gives it.
        num_layers: Trims the model to its first layers.
        global_batch: Samples per optimizer step.
        seq_len: Tokens per sample.
        precision: Arithmetic of the whole job.
        optimizer: AdamW, with the storage that the file gives.
        assumptions: What the file marks as assumed.
    """

    name: str
    model: str
    num_layers: int | None
    global_batch: int
    seq_len: int
    precision: Precision | None
    optimizer: OptimizerSpec
    assumptions: tuple[Assumption, ...] = ()


def load_job_file(path: str | Path) -> JobFile:
    """Loads a job file.

    Raises:
        InputError: There is no such file, or it does not describe a job; the error names file, line and
            field.
        UnknownNameError: A key or the precision has an unknown name.
    """
    return job_from_yaml(read_yaml(path, "job file"), Path(path).stem)


def job_from_yaml(root: Value, default_name: str) -> JobFile:
    """Builds a job from a parsed file; ``default_name`` is its name when the file gives none.

    Raises:
        InputError: As :func:`load_job_file`.
        UnknownNameError: Likewise.
    """
    fields = root.mapping(
        required=("model", "global_batch", "seq_len"),
        optional=("name", "num_layers", "precision", "optimizer", "assumed"),
    )
    return JobFile(
        name=fields["name"].text() if "name" in fields else default_name,
        model=fields["model"].text("a model: a preset or a path"),
        num_layers=fields["num_layers"].integer(1, MAX_LAYERS) if "num_layers" in fields else None,
        global_batch=fields["global_batch"].integer(1, 10_000_000),
        seq_len=fields["seq_len"].integer(1, 100_000_000),
        precision=_precision(fields["precision"]) if "precision" in fields else None,
        optimizer=_optimizer(fields["optimizer"]) if "optimizer" in fields else OptimizerSpec(),
        assumptions=tuple(Assumption(what, why) for what, why in read_assumed(fields.get("assumed"))),
    )


def _precision(value: Value) -> Precision:
    text = value.text("a precision such as bf16")
    if text not in [p.value for p in Precision]:
        raise UnknownNameError("precision", text, [p.value for p in Precision], where=value.where)
    return Precision(text)


def _optimizer(value: Value) -> OptimizerSpec:
    """Reads bytes per parameter; 8 is fp64, 16 both moments in fp64: nothing is stored wider."""
    fields = value.mapping(optional=("name", "gradient_bytes", "master_bytes", "moment_bytes"))
    default = OptimizerSpec()
    name = fields["name"].text() if "name" in fields else default.name
    if name != default.name:
        raise UnknownNameError("optimizer", name, [default.name], where=fields["name"].where)
    return OptimizerSpec(
        name=name,
        gradient_bytes=fields["gradient_bytes"].integer(1, 8)
        if "gradient_bytes" in fields
        else default.gradient_bytes,
        master_bytes=fields["master_bytes"].integer(0, 8)
        if "master_bytes" in fields
        else default.master_bytes,
        moment_bytes=fields["moment_bytes"].integer(0, 16)
        if "moment_bytes" in fields
        else default.moment_bytes,
    )
