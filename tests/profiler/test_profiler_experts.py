"""Experts against a second implementation, and the even dispatch."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from profiler_cases import DEEPSEEK, GSHARD, MIXTRAL, MOONLIGHT, model_of, shard_of, torch

from tangram.model.spec import LayerSpec
from tangram.profiler.experts import Experts, dispatch_order, even_counts


@pytest.mark.parametrize("layer", [MIXTRAL, GSHARD, DEEPSEEK, MOONLIGHT])
def test_experts_equal_a_naive_mixture(layer: LayerSpec) -> None:
    shard = shard_of(model_of(layer), seq_len=5)
    module = Experts(shard, shard.generator(), layer)
    x = module.sample().detach()
    rows, top_k = module.norm(x), layer.moe.top_k
    expected = []
    for token, row in enumerate(rows):
        logits = module.router @ row
        shares = (torch.exp(logits) / torch.exp(logits).sum()).sort(descending=True).values[:top_k]
        shares = shares / shares.sum()
        total = x[token].clone()
        for choice in range(top_k):
            block = module.blocks[(top_k * token + choice) % len(module.blocks)]
            output = block(row.unsqueeze(0))[0]
            output = output if block.down_bias is None else output + block.down_bias
            total += shares[choice] * output
        if module.shared is not None:
            total += module.shared(row.unsqueeze(0))[0]
            total += 0 if module.shared.down_bias is None else module.shared.down_bias
        expected.append(total)
    torch.testing.assert_close(module(x), torch.stack(expected), rtol=1e-4, atol=1e-5)


def test_fewer_rows_than_experts() -> None:
    shard = shard_of(model_of(GSHARD), micro_batch=1, seq_len=1)
    module = Experts(shard, shard.generator(), GSHARD)
    assert module.counts == [1, 1, 0, 0, 0, 0]
    y = module(module.sample())
    y.sum().backward()
    assert [block.up.grad is not None for block in module.blocks] == [True, True, False, False, False, False]


@given(st.integers(1, 300), st.integers(1, 40))
def test_dispatch_is_even(num_rows: int, num_experts: int) -> None:
    counts = even_counts(num_rows, num_experts)
    assert sum(counts) == num_rows
    assert max(counts) - min(counts) <= 1
    order = dispatch_order(num_rows, num_experts)
    assert sorted(order.tolist()) == list(range(num_rows))
    experts = [row % num_experts for row in order.tolist()]
    assert experts == sorted(experts)
    assert [experts.count(expert) for expert in range(num_experts)] == counts


def test_gathered_inputs_are_kept() -> None:
    shard = shard_of(model_of(MIXTRAL), tp=2)
    module = Experts(shard, shard.generator(), MIXTRAL)
    assert module.gathered_bytes == shard.tokens * 2 * 32 * 4
    alone = shard_of(model_of(MIXTRAL))
    assert Experts(alone, alone.generator(), MIXTRAL).gathered_bytes == 0
