"""Small plans and a small text for whole runs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import samples
from samples import FAST_SLOTS, ISLANDS, JOB, Choice, build

from tangram.job import Precision
from tangram.plan.json_io import to_json
from tangram.plan.schema import PlanDocument
from tangram.runtime.data.indexed import write_indexed
from tangram.runtime.data.tokenizer import ByteTokenizer

TEXT = Path(__file__).parents[2] / "LICENSE"


def plan_of(*choices: Choice, micro_batch: int = 4) -> PlanDocument:
    """A plan in fp32 of a model that knows all bytes."""
    model = replace(samples.model(tied=False), vocab_size=257)
    job = replace(JOB, global_batch=12, precision=Precision.FP32)
    doc = build(model, job, choices, micro_batch=micro_batch)
    section = doc.model.model_copy(update={"padded_vocab_size": 384})
    padded = [
        stage.model_copy(update={"padded_vocab_size": 384 if stage.padded_vocab_size else None})
        for stage in doc.stages
    ]
    pipeline = doc.pipelines[0].model_copy(update={"stages": padded})
    hyperparameters = doc.model.hyperparameters | {"hidden_act": "silu"}
    return doc.model_copy(
        update={
            "model": section.model_copy(update={"hyperparameters": hyperparameters}),
            "pipelines": [pipeline],
        }
    )


def alone() -> PlanDocument:
    """All of it on one GPU."""
    return plan_of(Choice((0, 6), ISLANDS[0], FAST_SLOTS[:1], 1), micro_batch=12)


def uneven() -> PlanDocument:
    """Rows 3 and 1 of each micro-batch on two fast GPUs, then one slow GPU."""
    return plan_of(
        Choice((0, 3), ISLANDS[0], FAST_SLOTS[:2], 3, dp=2, zero=1, split=(3, 1)),
        Choice((3, 6), ISLANDS[1], (("slow-0", 0),), 1),
    )


def two_ranks() -> PlanDocument:
    """A fast GPU and a slow one."""
    return plan_of(
        Choice((0, 3), ISLANDS[0], FAST_SLOTS[:1], 2), Choice((3, 6), ISLANDS[1], (("slow-0", 0),), 1)
    )


def write_data(folder: Path) -> str:
    """Tokens of the licence."""
    tokenizer = ByteTokenizer()
    write_indexed(folder / "text", [tokenizer.encode(TEXT.read_text())], tokenizer.vocab_size)
    return str(folder / "text")


def write_plan(folder: Path, plan: PlanDocument) -> str:
    path = folder / "plan.json"
    path.write_text(to_json(plan))
    return str(path)
