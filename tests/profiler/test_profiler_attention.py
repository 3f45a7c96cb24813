"""Attention against a second implementation: head by head and query by query."""

from __future__ import annotations

import math
from typing import Any

import pytest
from profiler_cases import GPT, LLAMA, QWEN, model_of, shard_of, torch
from written_out import naive_norm, naive_rotary

from tangram.model.spec import LayerSpec
from tangram.profiler.attention import Attention, rotate, shares_keys


def naive_attention(module: Attention, x: Any) -> Any:
    """Head by head and query by query."""
    spec, shard = module.spec, module.shard
    rows = naive_norm(x, module.norm.scale, module.norm.bias) @ module.qkv.T
    rows = rows if module.qkv_bias is None else rows + module.qkv_bias
    outputs = []
    for sample in rows.split(shard.seq_len):
        heads = []
        for head in range(spec.num_heads):
            group = head * spec.num_kv_heads // spec.num_heads
            start = spec.num_heads + group
            query, key, value = (
                sample[:, number * spec.head_dim : (number + 1) * spec.head_dim]
                for number in (head, start, start + spec.num_kv_heads)
            )
            if spec.qk_norm:
                query = naive_norm(query, module.query_norm.scale, None)
                key = naive_norm(key, module.key_norm.scale, None)
            if module.rotary:
                query, key = naive_rotary(query), naive_rotary(key)
            mixed = []
            for pos in range(shard.seq_len):
                scores = key[: pos + 1] @ query[pos] / math.sqrt(spec.head_dim)
                shares = torch.exp(scores - scores.max())
                mixed.append((shares / shares.sum()) @ value[: pos + 1])
            heads.append(torch.stack(mixed))
        outputs.append(torch.cat(heads, dim=-1))
    y = torch.cat(outputs) @ module.out.T
    return x + (y if module.out_bias is None else y + module.out_bias)


@pytest.mark.parametrize(("layer", "learned"), [(LLAMA, False), (LLAMA, True), (QWEN, False), (GPT, True)])
def test_attention_equals_a_naive_one(layer: LayerSpec, learned: bool) -> None:
    shard = shard_of(model_of(layer, learned=learned), seq_len=7)
    module = Attention(shard, shard.generator(), layer)
    draws = torch.Generator().manual_seed(0)
    for parameter in module.parameters():
        parameter.data.normal_(generator=draws)  # large scores, so that masks and positions matter
    module, x = module.double(), module.sample().double()  # in fp32 the scores leave an error of 1e-4
    with torch.no_grad():
        torch.testing.assert_close(module(x), naive_attention(module, x), rtol=1e-4, atol=1e-4)


def test_rotation_keeps_lengths() -> None:
    x = torch.randn(2, 3, 5, 8)
    angles = torch.rand(5, 4)
    angles = torch.cat((angles, angles), dim=-1)
    torch.testing.assert_close(rotate(x, angles.cos(), angles.sin()).norm(dim=-1), x.norm(dim=-1))


@pytest.mark.parametrize(
    ("device", "dtype", "capability", "expected"),
    [
        ("cpu", torch.bfloat16, None, False),
        ("cuda", torch.bfloat16, (9, 0), True),
        ("cuda", torch.float16, (8, 0), True),
        ("cuda", torch.float16, (7, 0), False),
        ("cuda", torch.float32, (9, 0), False),
    ],
)
def test_who_lets_query_heads_share_key_heads(
    monkeypatch: pytest.MonkeyPatch, device: str, dtype: Any, capability: Any, expected: bool
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    assert shares_keys(torch.device(device), dtype) is expected


def test_shared_key_heads_make_no_difference() -> None:
    """Repeated by us, or shared by the kernel."""
    shard = shard_of(model_of(LLAMA))
    module = Attention(shard, shard.generator(), LLAMA)
    x = module.sample().detach()
    repeated = module(x)
    module.shares_keys = True
    torch.testing.assert_close(module(x), repeated)
