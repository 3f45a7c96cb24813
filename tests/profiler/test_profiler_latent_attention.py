"""Latent attention against a second implementation: head by head and query by query."""

from __future__ import annotations

import math
from typing import Any

import pytest
from profiler_cases import DEEPSEEK, MOONLIGHT, model_of, shard_of, torch
from written_out import naive_norm, naive_rotary

from tangram.model.spec import LayerSpec
from tangram.profiler.latent_attention import LatentAttention


def naive_latent_attention(module: LatentAttention, x: Any) -> Any:
    spec, seq_len = module.latent, module.shard.seq_len
    rows = naive_norm(x, module.norm.scale, module.norm.bias)
    queries = rows
    if spec.q_rank is not None:
        queries = naive_norm(rows @ module.query_down.T, module.query_norm.scale, module.query_norm.bias)
    queries = queries @ module.query_up.T
    down = rows @ module.kv_down.T
    latents = naive_norm(down[:, : spec.kv_rank], module.kv_norm.scale, module.kv_norm.bias)
    up = latents @ module.kv_up.T
    outputs = []
    for start in range(0, len(x), seq_len):
        sample = slice(start, start + seq_len)
        shared_key = naive_rotary(down[sample, spec.kv_rank :])
        heads = []
        for head in range(module.num_heads):
            width = spec.nope_dim + spec.rope_dim
            query = queries[sample, head * width : (head + 1) * width]
            query = torch.cat((query[:, : spec.nope_dim], naive_rotary(query[:, spec.nope_dim :])), dim=-1)
            width = spec.nope_dim + spec.value_dim
            both = up[sample, head * width : (head + 1) * width]
            key = torch.cat((both[:, : spec.nope_dim], shared_key), dim=-1)
            value = both[:, spec.nope_dim :]
            mixed = []
            for pos in range(seq_len):
                scores = key[: pos + 1] @ query[pos] / math.sqrt(spec.nope_dim + spec.rope_dim)
                shares = torch.exp(scores - scores.max())
                mixed.append((shares / shares.sum()) @ value[: pos + 1])
            heads.append(torch.stack(mixed))
        outputs.append(torch.cat(heads, dim=-1))
    y = torch.cat(outputs) @ module.out.T
    return x + (y if module.out_bias is None else y + module.out_bias)


@pytest.mark.parametrize("layer", [DEEPSEEK, MOONLIGHT])
def test_latent_attention_equals_a_naive_one(layer: LayerSpec) -> None:
    shard = shard_of(model_of(layer), seq_len=7)
    module = LatentAttention(shard, shard.generator(), layer)
    draws = torch.Generator().manual_seed(0)
    for parameter in module.parameters():
        parameter.data.normal_(generator=draws)  # large scores, so that masks and positions matter
    module, x = module.double(), module.sample().double()  # in fp32 the scores leave an error of 1e-4
    with torch.no_grad():
        torch.testing.assert_close(module(x), naive_latent_attention(module, x), rtol=1e-4, atol=1e-4)
