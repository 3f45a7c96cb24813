"""Latent attention (DeepSeek-V2, arXiv 2405.04434, section 2.1) as one tensor-parallel rank runs it.

As it is trained, nothing absorbed: keys and values of all heads are projected up from the latent vector. The
projections down are whole on every rank and run on its share of the tokens; their results are gathered, and
the projections up are split by heads, which is how Megatron-Core does it.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import functional

from tangram.model.spec import LayerSpec
from tangram.profiler.attention import rotary_tables, rotate
from tangram.profiler.piece import Norm, Piece
from tangram.profiler.shard import Shard


class LatentAttention(Piece):
    """Norm, projections down and up, attention, output projection, residual."""

    def __init__(self, shard: Shard, generator: Any, layer: LayerSpec) -> None:
        super().__init__(shard, generator)
        latent = layer.attention.latent
        assert latent is not None
        hidden, spec = shard.model.hidden_size, layer.attention
        self.latent = latent
        self.num_heads = spec.num_heads // shard.tp
        self.norm = Norm(shard, generator, layer.norm, hidden)
        self.query_down: Any = None
        self.query_norm: Any = None
        if latent.q_rank is not None:
            self.query_down = self.weight(latent.q_rank, hidden, sharded=False)
            self.query_norm = Norm(shard, generator, layer.norm, latent.q_rank)
        query_rank = latent.q_rank or hidden
        self.query_up = self.weight(self.num_heads * spec.head_dim, query_rank, sharded=True)
        self.kv_down = self.weight(latent.kv_rank + latent.rope_dim, hidden, sharded=False)
        self.kv_norm = Norm(shard, generator, layer.norm, latent.kv_rank)
        columns = self.num_heads * (latent.nope_dim + latent.value_dim)
        self.kv_up = self.weight(columns, latent.kv_rank, sharded=True)
        self.out = self.weight(hidden, self.num_heads * latent.value_dim, sharded=True)
        self.out_bias = self.weight(hidden, sharded=False) if spec.out_bias else None
        self.post_norm = Norm(shard, generator, layer.norm, hidden) if layer.post_norm else None
        self.queries = self.exchange(shard.tokens, query_rank)
        self.latents = self.exchange(shard.tokens, latent.kv_rank)
        self.places = self.exchange(shard.tokens, latent.rope_dim)
        self.tokens = self.exchange(shard.tokens, hidden)
        cos, sin = rotary_tables(shard.seq_len, latent.rope_dim, shard.device)
        self.register_buffer("cos", cos.to(shard.dtype), persistent=False)
        self.register_buffer("sin", sin.to(shard.dtype), persistent=False)

    def forward(self, x: Any) -> Any:
        """Adds attention to the residual stream."""
        return x + self.update(x)

    def update(self, x: Any) -> Any:
        """Returns what attention adds to the residual stream."""
        rows = self.norm(x)
        query = self._query(rows)
        key, value = self._key_value(rows)
        mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        mixed = mixed.transpose(1, 2).reshape(self.shard.tokens, self.num_heads * self.latent.value_dim)
        y = self.tokens.scatter(functional.linear(mixed, self.out))
        y = y if self.out_bias is None else y + self.out_bias
        return y if self.post_norm is None else self.post_norm(y)

    def _query(self, rows: Any) -> Any:
        """``(micro_batch, num_heads, seq_len, nope_dim + rope_dim)``."""
        if self.query_down is not None:
            rows = self.query_norm(functional.linear(rows, self.query_down))
        heads = self._heads(functional.linear(self.queries.gather(rows), self.query_up), self.num_heads)
        plain, rotary = heads.split([self.latent.nope_dim, self.latent.rope_dim], dim=-1)
        return torch.cat((plain, rotate(rotary, self.cos, self.sin)), dim=-1)

    def _key_value(self, rows: Any) -> tuple[Any, Any]:
        latent = self.latent
        both = functional.linear(rows, self.kv_down)
        low, rotary = both.split([latent.kv_rank, latent.rope_dim], dim=-1)
        up = functional.linear(self.latents.gather(self.kv_norm(low)), self.kv_up)
        plain, value = self._heads(up, self.num_heads).split([latent.nope_dim, latent.value_dim], dim=-1)
        turned = rotate(self._heads(self.places.gather(rotary), 1), self.cos, self.sin)
        return torch.cat((plain, turned.expand(-1, self.num_heads, -1, -1)), dim=-1), value

    def _heads(self, rows: Any, num_heads: int) -> Any:
        """``(tokens, num_heads * width)`` to ``(micro_batch, num_heads, seq_len, width)``."""
        shard = self.shard
        return rows.view(shard.micro_batch, shard.seq_len, num_heads, -1).transpose(1, 2)
