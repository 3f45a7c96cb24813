"""Attention as one tensor-parallel rank runs it."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import functional

from tangram.model.spec import AttentionSpec, LayerSpec, NormKind, PositionKind
from tangram.profiler.piece import Norm, Piece
from tangram.profiler.shard import Shard

ROTARY_BASE = 10_000.0


class Attention(Piece):
    """Norm, query/key/value projection, attention, output projection, residual."""

    def __init__(self, shard: Shard, generator: Any, layer: LayerSpec) -> None:
        super().__init__(shard, generator)
        spec: AttentionSpec = layer.attention
        hidden, tp = shard.model.hidden_size, shard.tp
        self.spec = spec
        self.num_heads, self.num_kv_heads = spec.num_heads // tp, spec.num_kv_heads // tp
        self.widths = [spec.query_width // tp, spec.kv_width // tp, spec.kv_width // tp]
        self.norm = Norm(shard, generator, layer.norm, hidden)
        self.qkv = self.weight(sum(self.widths), hidden, sharded=True)
        self.qkv_bias = self.weight(sum(self.widths), sharded=True) if spec.qkv_bias else None
        self.query_norm = Norm(shard, generator, NormKind.RMSNORM, spec.head_dim) if spec.qk_norm else None
        self.key_norm = Norm(shard, generator, NormKind.RMSNORM, spec.head_dim) if spec.qk_norm else None
        self.out = self.weight(hidden, self.widths[0], sharded=True)
        self.out_bias = self.weight(hidden, sharded=False) if spec.out_bias else None
        self.post_norm = Norm(shard, generator, layer.norm, hidden) if layer.post_norm else None
        self.tokens = self.exchange(shard.tokens, hidden)
        self.shares_keys = shares_keys(shard.device, shard.dtype)
        self.rotary = shard.model.position is PositionKind.ROTARY
        if self.rotary:
            cos, sin = rotary_tables(shard.seq_len, spec.head_dim, shard.device)
            self.register_buffer("cos", cos.to(shard.dtype), persistent=False)
            self.register_buffer("sin", sin.to(shard.dtype), persistent=False)

    def forward(self, x: Any) -> Any:
        """Adds attention to the residual stream."""
        return x + self.update(x)

    def update(self, x: Any) -> Any:
        """Returns what attention adds to the residual stream."""
        qkv = functional.linear(self.tokens.gather(self.norm(x)), self.qkv, self.qkv_bias)
        query, key, value = qkv.split(self.widths, dim=-1)
        mixed = self._attend(
            self._heads(query, self.num_heads, self.query_norm),
            self._heads(key, self.num_kv_heads, self.key_norm),
            self._split(value, self.num_kv_heads).transpose(1, 2),
        )
        rows = mixed.transpose(1, 2).reshape(self.shard.tokens, self.widths[0])
        y = self.tokens.scatter(functional.linear(rows, self.out))
        y = y if self.out_bias is None else y + self.out_bias
        return y if self.post_norm is None else self.post_norm(y)

    def _split(self, x: Any, num_heads: int) -> Any:
        return x.view(self.shard.micro_batch, self.shard.seq_len, num_heads, self.spec.head_dim)

    def _heads(self, x: Any, num_heads: int, norm: Norm | None) -> Any:
        """``(tokens, width)`` to ``(micro_batch, num_heads, seq_len, head_dim)``, normalised and rotated."""
        heads = self._split(x, num_heads)
        heads = heads if norm is None else norm(heads)
        heads = heads.transpose(1, 2)
        return rotate(heads, self.cos, self.sin) if self.rotary else heads

    def _attend(self, query: Any, key: Any, value: Any) -> Any:
        groups = self.num_heads // self.num_kv_heads
        if groups > 1 and not self.shares_keys:
            key, value = (x.repeat_interleave(groups, dim=1) for x in (key, value))
            groups = 1
        return functional.scaled_dot_product_attention(
            query, key, value, is_causal=True, enable_gqa=groups > 1
        )


def shares_keys(device: Any, dtype: Any) -> bool:
    """Whether the fused kernel that will run lets several query heads read one key head.

    Flash attention on GPUs does: 16 bit, from Ampere on (and on AMD). All other kernels want as many key
    heads as query heads, or PyTorch falls back to one that stores all scores.
    """
    if device.type != "cuda" or dtype == torch.float32:
        return False
    return torch.version.hip is not None or torch.cuda.get_device_capability(device) >= (8, 0)


def rotary_tables(seq_len: int, head_dim: int, device: Any) -> tuple[Any, Any]:
    """Returns cosines and sines of rotary positions (Su et al. 2021, RoFormer), each ``(seq_len, head_dim)``.

    The two halves of a head are rotated against each other, as in Llama.
    """
    rates = ROTARY_BASE ** (-torch.arange(0, head_dim, 2, device=device, dtype=torch.float32) / head_dim)
    angles = torch.outer(torch.arange(seq_len, device=device, dtype=torch.float32), rates)
    both = torch.cat((angles, angles), dim=-1)
    return both.cos(), both.sin()


def rotate(x: Any, cos: Any, sin: Any) -> Any:
    """Rotates heads ``(..., seq_len, head_dim)`` by their positions."""
    low, high = x.chunk(2, dim=-1)
    return x * cos + torch.cat((-high, low), dim=-1) * sin
