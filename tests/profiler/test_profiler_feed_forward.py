"""The dense block against a second implementation."""

from __future__ import annotations

import math

import pytest
from profiler_cases import GPT, LLAMA, model_of, shard_of, torch
from written_out import naive_norm

from tangram.model.spec import LayerSpec
from tangram.profiler.feed_forward import FeedForward


@pytest.mark.parametrize("layer", [LLAMA, GPT])
def test_feed_forward_equals_a_naive_one(layer: LayerSpec) -> None:
    shard = shard_of(model_of(layer))
    module = FeedForward(shard, shard.generator(), layer)
    x = module.sample().detach()
    rows, block = naive_norm(x, module.norm.scale, module.norm.bias), module.block
    up = rows @ block.up.T
    if block.gated:
        gate, up = up[:, :64], up[:, 64:]
        inner = gate / (1 + torch.exp(-gate)) * up
        expected = x + inner @ block.down.T
    else:
        up = up + block.up_bias
        inner = 0.5 * up * (1 + torch.tanh(math.sqrt(2 / math.pi) * (up + 0.044715 * up**3)))
        expected = x + inner @ block.down.T + block.down_bias
    torch.testing.assert_close(module(x), expected, rtol=1e-4, atol=1e-5)
