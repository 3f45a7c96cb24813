"""Attention: norm, queries, keys and values, scores, output projection, residual."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils.checkpoint import checkpoint

from tangram.model.spec import NormKind, PositionKind
from tangram.profiler.attention import rotate
from tangram.runtime.models.attention_core import AttentionCore
from tangram.runtime.models.block import Block
from tangram.runtime.models.dropout import residual_dropout
from tangram.runtime.models.norm import Norm
from tangram.runtime.models.projection import Columns, Output, Rows
from tangram.runtime.models.rotary import rotary_tables
from tangram.runtime.models.share import Context, Share


class Attention(Block):
    """The attention block of a layer.

    Args:
        share: What this rank builds.
        layer_idx: The layer.

    Attributes:
        recomputes_core: Whether backward computes scores again instead of keeping what it needs of them.
    """

    def __init__(self, share: Share, layer_idx: int) -> None:
        super().__init__(share)
        layer, names = share.model.layers[layer_idx], share.names
        spec, hidden = layer.attention, share.model.hidden_size
        prefix = names.layer.format(layer_idx)
        self.spec, self.place = spec, f"{prefix}attention"
        self.recomputes_core = False
        self.norm = Norm(share, layer.norm, prefix + names.attention_norm, hidden, share.partial)
        share.cut(spec.num_kv_heads, "key and value heads")
        widths = (spec.query_width, spec.kv_width, spec.kv_width)
        labels = (names.query, names.key, names.value)
        fused = sum(widths) if names.query == names.key else 0
        starts = (0, widths[0], widths[0] + widths[1]) if fused else (0, 0, 0)
        outputs = [
            Output(prefix + label, width, start, fused)
            for label, width, start in zip(labels, widths, starts, strict=True)
        ]
        self.qkv = Columns(share, outputs, hidden, bias=spec.qkv_bias)
        self.query_norm: Norm | None = None
        self.key_norm: Norm | None = None
        if spec.qk_norm:  # every tp rank normalises its own heads, so gradients are sums over tp
            partial = "tp" if share.tp > 1 else None
            kind, width = NormKind.RMSNORM, spec.head_dim
            self.query_norm = Norm(share, kind, prefix + names.query_norm, width, partial)
            self.key_norm = Norm(share, kind, prefix + names.key_norm, width, partial)
        self.out = Rows(share, prefix + names.out, hidden, spec.value_width, bias=spec.out_bias)
        self.core = AttentionCore(share, spec, self.place)

    def forward(self, hidden: Any, context: Context) -> Any:
        """Adds attention to the residual stream."""
        query, key, value = (self._heads(x) for x in self.qkv(self.norm(hidden)))
        if self.query_norm is not None and self.key_norm is not None:
            query, key = self.query_norm(query), self.key_norm(key)
        query, key, value = (x.transpose(1, 2) for x in (query, key, value))
        if self.recomputes_core and torch.is_grad_enabled():
            mixed = checkpoint(
                self._attend, query, key, value, context, use_reentrant=False, preserve_rng_state=False
            )
        else:
            mixed = self._attend(query, key, value, context)
        y = self.out(mixed.transpose(1, 2).flatten(2))
        dropout = self.share.hyper.residual_dropout
        return hidden + residual_dropout(self.share, y, context, dropout, self.place)

    def _heads(self, x: Any) -> Any:
        return x.unflatten(-1, (-1, self.spec.head_dim))

    def _attend(self, query: Any, key: Any, value: Any, context: Context) -> Any:
        """Rotation, scores and values, of ``(rows, heads, tokens, head_dim)``."""
        if self.share.model.position is PositionKind.ROTARY:
            cos, sin = context.once(
                ("rotary", self.spec.head_dim),
                lambda: rotary_tables(
                    self.share.hyper.rope, context.batch.positions, self.spec.head_dim, query.dtype
                ),
            )
            query, key = rotate(query, cos, sin), rotate(key, cos, sin)
        return self.core(query, key, value, context)
