"""One stage on several ranks against the same stage on one: loss, gradients and initial weights, in fp64."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from model_cases import batch_of, module_of, plan_of
from ranks import RankPool
from torch_or_skip import torch
from whole_tensors import Piece, assembled, pieces_of, summed, whole_gradients

from tangram.job import Recompute
from tangram.plan.schema import PlanDocument
from tangram.runtime.models import attention_core

NONE, SELECTIVE, FULL = Recompute.NONE, Recompute.SELECTIVE, Recompute.FULL
SEED = 0.125
"""What gradients are scaled by: the balance loss has to follow."""

DROPOUT = {"resid_pdrop": 0.2, "embd_pdrop": 0.1, "attn_pdrop": 0.3}
CASES: dict[str, dict[str, Any]] = {
    "llama tp2": {"family": "llama", "tp": 2},
    "llama tp2 replicated": {"family": "llama", "tp": 2, "sequence_parallel": False},
    "llama tp2 flash": {"family": "llama", "tp": 2, "kernel": "flash"},
    "llama cp2": {"family": "llama", "cp": 2},
    "llama cp2 contiguous flash": {"family": "llama", "cp": 2, "zigzag": False, "kernel": "flash"},
    "llama cp2 selective": {"family": "llama", "cp": 2, "modes": [NONE, SELECTIVE, NONE, NONE]},
    "llama tp2 cp2": {"family": "llama", "tp": 2, "cp": 2, "kernel": "flash"},
    "llama dp2 uneven, tp2": {"family": "llama", "dp": 2, "tp": 2, "split": (3, 1)},
    "llama tp2 full": {"family": "llama", "tp": 2, "modes": [FULL, FULL, SELECTIVE, FULL]},
    "llama tp2 in blocks": {
        "family": "llama",
        "tp": 2,
        "granularity": "block",
        "modes": [NONE, FULL, NONE, SELECTIVE, FULL, NONE],
    },
    "llama tp2 offloaded": {"family": "llama", "tp": 2, "offload": [1, 2], "modes": [NONE, FULL, NONE, NONE]},
    "llama cp2 heads for tokens, flash": {"family": "llama", "cp": 2, "exchange": "a2a", "kernel": "flash"},
    "gpt2 tp2 cp2 heads for tokens, dropout, selective": {
        "family": "gpt2",
        "tp": 2,
        "cp": 2,
        "exchange": "a2a",
        "modes": [NONE, SELECTIVE, SELECTIVE, NONE],
        **DROPOUT,
    },
    "mistral cp2 contiguous, heads for tokens": {
        "family": "mistral",
        "cp": 2,
        "zigzag": False,
        "exchange": "a2a",
    },
    "mistral cp2 flash": {"family": "mistral", "cp": 2, "kernel": "flash"},
    "mistral cp2 contiguous": {"family": "mistral", "cp": 2, "zigzag": False},
    "qwen2 tp2": {"family": "qwen2", "tp": 2},
    "qwen3 tp2 replicated": {"family": "qwen3", "tp": 2, "sequence_parallel": False},
    "qwen3 tp2": {"family": "qwen3", "tp": 2},
    "gpt2 tp4": {"family": "gpt2", "tp": 4},
    "gpt2 tp2 replicated, dropout": {"family": "gpt2", "tp": 2, "sequence_parallel": False, **DROPOUT},
    "gpt2 tp2 cp2, dropout": {"family": "gpt2", "tp": 2, "cp": 2, "modes": [FULL] * 4, **DROPOUT},
    "gpt2 dp2, dropout": {"family": "gpt2", "dp": 2, "split": (1, 3), **DROPOUT},
    "mixtral ep2": {"family": "mixtral", "dp": 2, "ep": 2},
    "mixtral tp2": {"family": "mixtral", "tp": 2, "expert_tp": 2},
    "mixtral tp2, whole experts": {"family": "mixtral", "tp": 2},
    "mixtral tp2 ep2": {"family": "mixtral", "tp": 2, "ep": 2},
    "mixtral tp2 ep2 replicated": {"family": "mixtral", "tp": 2, "ep": 2, "sequence_parallel": False},
    "mixtral cp2 ep2": {"family": "mixtral", "cp": 2, "ep": 2},
    "mixtral dp2 tp2, ep2 x expert_tp2": {"family": "mixtral", "dp": 2, "tp": 2, "ep": 2, "expert_tp": 2},
    "mixtral dp2 uneven, ep2 full": {
        "family": "mixtral",
        "dp": 2,
        "split": (3, 1),
        "ep": 2,
        "modes": [FULL] * 4,
    },
    "mixtral dp2 tp2 ep4": {"family": "mixtral", "dp": 2, "tp": 2, "ep": 4},
    "qwen3_moe dp2 tp2 ep2": {"family": "qwen3_moe", "dp": 2, "tp": 2, "ep": 2},
    "qwen3_moe dp3 tp2, expert_tp3": {
        "family": "qwen3_moe",
        "dp": 3,
        "tp": 2,
        "ep": 2,
        "expert_tp": 3,
        "split": (1, 2, 1),
        "sequence_parallel": False,
    },
}


def on_rank(rank: int, plan: PlanDocument) -> tuple[float, list[Piece], list[Piece]]:
    module = module_of(plan, rank)
    weights = pieces_of(module, gradients=False)
    loss = module(batch_of(plan, rank, seed=SEED))
    (loss * SEED).backward()
    return loss.item(), weights, pieces_of(module, gradients=True)


def counted_once(found: Sequence[tuple[float, Any, list[Piece]]], tp: int) -> list[list[Piece]]:
    """Leaves out what tp ranks hold alike: whole tensors whose gradients are no sums of shares."""
    kept = []
    for rank, (_, _, pieces) in enumerate(found):
        first = found[rank - rank % tp][2]
        own = []
        for piece, twin in zip(pieces, first, strict=True):
            part, value, partial = piece
            is_copy = part.is_whole and partial is None and "experts" not in part.name
            if is_copy:
                torch.testing.assert_close(value, twin[1], rtol=1e-9, atol=1e-12, msg=part.name)
            if not is_copy or rank % tp == 0:
                own.append(piece)
        kept.append(own)
    return kept


@pytest.mark.parametrize("case", CASES)
def test_as_on_one_rank(ranks: RankPool, case: str) -> None:
    degrees = dict(CASES[case])
    names = ("family", "kernel", *DROPOUT)
    plain = plan_of(**{name: value for name, value in degrees.items() if name in names})
    module = module_of(plain, 0)
    loss = module(batch_of(plain, 0, seed=SEED))
    (loss * SEED).backward()
    expected = whole_gradients([module])

    plan = plan_of(**degrees)
    stage = plan.stages[0]
    found = ranks.run(len(stage.ranks), on_rank, plan)
    assert sum(one[0] for one in found[:: stage.tp]) == pytest.approx(loss.item(), rel=1e-12)
    weights = assembled(piece for one in found for piece in one[1])
    assert weights.keys() == expected.keys()
    for name, tensor in assembled(pieces_of(module, gradients=False)).items():
        assert torch.equal(weights[name], tensor), name
    for name, gradient in summed(counted_once(found, stage.tp)).items():
        scale = expected[name].abs().max().item()
        torch.testing.assert_close(gradient, expected[name], rtol=1e-8, atol=1e-9 * scale, msg=name)


@pytest.mark.parametrize("kernel", ["unfused", "flash"])
def test_queries_of_a_window_in_pieces(kernel: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """16 tokens and a window of 5: pieces of 16, 7 and 5 queries."""
    found = []
    for fewest in (16, 7, 1):
        monkeypatch.setattr(attention_core, "FEWEST_QUERIES", fewest)
        plan = plan_of("mistral", kernel=kernel)
        module = module_of(plan, 0)
        loss = module(batch_of(plan, 0))
        loss.backward()
        found.append((loss.item(), whole_gradients([module])))
    for loss, gradients in found[1:]:
        assert loss == pytest.approx(found[0][0], rel=1e-12)
        for name, gradient in gradients.items():
            torch.testing.assert_close(gradient, found[0][1][name], msg=name)
