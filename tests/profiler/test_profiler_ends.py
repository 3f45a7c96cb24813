"""Embedding and head against second implementations."""

from __future__ import annotations

import pytest
from profiler_cases import GPT, LLAMA, model_of, shard_of, torch

from tangram.profiler.ends import Embedding, Head


def test_embedding_looks_rows_up() -> None:
    shard = shard_of(model_of(GPT, learned=True))
    piece = Embedding(shard, shard.generator())
    tokens = piece.sample()
    assert tokens.shape == (32,)
    assert 0 <= tokens.min() <= tokens.max() < 300
    expected = torch.stack([piece.table[t] + piece.positions[i % 16] for i, t in enumerate(tokens.tolist())])
    assert torch.equal(piece(tokens), expected)


def test_a_rank_embeds_its_own_tokens() -> None:
    shard = shard_of(model_of(LLAMA), tp=2)
    piece = Embedding(shard, shard.generator())
    assert piece.table.shape == (256, 32)  # 300 rows are padded to 512
    tokens = piece.sample()
    output = piece(tokens)
    assert output.shape == (16, 32)
    for row, token in zip(output, tokens.tolist(), strict=False):
        assert torch.equal(row, piece.table[token] if token < 256 else torch.zeros(32))
    output.backward(torch.ones_like(output))
    assert piece.table.grad.count_nonzero() > 0


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_head_is_a_cross_entropy(precision: str) -> None:
    shard = shard_of(model_of(GPT), precision=precision)
    piece = Head(shard, shard.generator())
    x = piece.sample()
    loss = piece(x)
    logits = (piece.norm(x) @ piece.matrix.T).double()
    expected = torch.stack(
        [row.exp().sum().log() - row[target] for row, target in zip(logits, piece.targets, strict=True)]
    ).mean()
    assert loss.dtype == torch.float32
    assert loss.item() == pytest.approx(expected.item(), rel=1e-5 if precision == "fp32" else 1e-2)
    assert logits.numel() == piece.num_logits


def test_head_of_a_rank_has_its_own_rows() -> None:
    shard = shard_of(model_of(LLAMA), tp=2)
    piece = Head(shard, shard.generator())
    assert piece.matrix.shape == (256, 32)
    assert piece.sample().shape == (16, 32)
    assert piece.num_logits == 32 * 256
    piece(piece.sample()).backward()
    assert piece.matrix.grad.isfinite().all()
