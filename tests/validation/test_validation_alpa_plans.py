from __future__ import annotations

import pytest

from tangram.validation.alpa_plans import alpa_columns
from tangram.validation.cells import RowError


def columns(plan: str, n_gpus: int = 8, micro_batch: str = "8", experts: str = "") -> dict[str, str]:
    row = {
        "plan": plan,
        "n_gpus": str(n_gpus),
        "micro_batch": micro_batch,
        "experts": experts,
        "hidden": "768",
    }
    return dict(alpa_columns(row))


@pytest.mark.parametrize(
    ("plan", "gpus", "degrees"),
    [
        ("megatron-lm: DP2 PP2; 128 micro-batches", 4, ("2", "1", "2")),
        ("megatron-lm: TP2 PP8; 256 micro-batches", 16, ("1", "2", "8")),
        ("megatron-lm: single GPU", 1, ("1", "1", "1")),
        ("uniform DP2 x TP2 x PP2; 4 micro-batches", 8, ("2", "2", "2")),
        ("plain DP, logical mesh (4,1)", 4, ("4", "1", "1")),
        ("alpa auto: 2 stages x 12 layers; each 1 GPU; 128 micro-batches", 2, ("1", "1", "2")),
        ("alpa auto: 4 stages x 12 layers; logical (2,4) batch-dim forced", 32, ("2", "4", "4")),
        ("alpa auto: 16 stages x 3 layers; submesh (1,4) logical (1,4) TP4", 64, ("1", "4", "16")),
    ],
)
def test_plans(plan: str, gpus: int, degrees: tuple[str, str, str]) -> None:
    found = columns(plan, gpus)
    assert (found["dp"], found["tp"], found["pp"]) == degrees
    assert int(found["micro_batch"]) * int(found["dp"]) == 8


def test_sharding_and_experts() -> None:
    found = columns("ZeRO-3 style, logical mesh (8,1)", experts="16")
    assert (found["zero_or_fsdp"], found["dp"], found["ffn_hidden"], found["top_k"]) == (
        "ZeRO-3",
        "8",
        "6144",
        "2",
    )
    assert columns("deepspeed: ZeRO-2 DP8 EP2; 16 micro-batches")["ep"] == "2"


@pytest.mark.parametrize(
    "plan",
    [
        "alpa ILP, logical mesh (4, 2)",
        "megatron",
        "shard-largest heuristic",
        "alpa auto: 3 stages of 8/8/16 layers; submeshes (1,2)(1,2)(1,4)",
        "alpa auto: 8 stages x 2 layers; submesh (1,4) logical (4,1) ILP mix; 128 micro-batches",
    ],
)
def test_plans_that_are_not_stated(plan: str) -> None:
    with pytest.raises(RowError, match="does not fix the degrees") as caught:
        columns(plan)
    assert caught.value.code == "plan-not-stated"


def test_micro_batches_that_do_not_divide() -> None:
    with pytest.raises(RowError, match="4 samples do not divide over 8 replicas"):
        columns("plain DP", micro_batch="4")
    assert "micro_batch" not in columns("plain DP", micro_batch="")
