"""Builds the model of a row from its columns: dense or with experts, grouped queries, latent attention.

What the columns leave open follows from one convention, where no setting says otherwise: a feed-forward block
of four hidden sizes is GPT's (no gate, biases, LayerNorm, learned positions), any other is gated (no biases,
RMSNorm, rotary positions). Experts are gated by the same rule applied to their own width.
"""

from __future__ import annotations

from dataclasses import replace

from tangram.model import fields as limits
from tangram.model.spec import (
    AttentionSpec,
    FeedForwardSpec,
    LatentSpec,
    LayerSpec,
    ModelSpec,
    MoeSpec,
    NormKind,
    PositionKind,
)
from tangram.validation.cells import Cells, RowError
from tangram.validation.settings import Settings

GPT_WIDTH_RATIO = 4
"""Feed-forward width over hidden size in GPT-2 and GPT-3 (Brown et al. 2020, section 2.1)."""


def row_model(cells: Cells, settings: Settings) -> ModelSpec:
    """Builds the model.

    Args:
        cells: Columns ``n_layers``, ``hidden``, ``ffn_hidden``, ``heads``, ``kv_heads``, ``vocab``,
            ``experts``, ``top_k``, ``seq_len``; of a model with experts, ``ffn_hidden`` is one expert's.
        settings: What the columns do not hold.

    Raises:
        RowError: A needed column is empty, or numbers contradict each other.
    """
    hidden = _limited(cells, "hidden", limits.MAX_WIDTH)
    num_layers = _limited(cells, "n_layers", limits.MAX_LAYERS)
    width = cells.optional_count("ffn_hidden") or settings.dense_width or GPT_WIDTH_RATIO * hidden
    gated = settings.gated if settings.gated is not None else width != GPT_WIDTH_RATIO * hidden
    biases = settings.biases if settings.biases is not None else not gated
    norm = settings.norm or (NormKind.RMSNORM if gated else NormKind.LAYERNORM)
    position = settings.position or (PositionKind.ROTARY if gated else PositionKind.LEARNED)
    attention = _attention(cells, settings, hidden, biases)
    num_experts = cells.optional_count("experts")
    dense = FeedForwardSpec(settings.dense_width or width, gated, biases)
    experts: MoeSpec | None = None
    if num_experts is not None and num_experts > 1:
        top_k = cells.count("top_k")
        if top_k > num_experts:
            raise RowError("impossible", f"{top_k} is more than {num_experts} experts", column="top_k")
        shared = FeedForwardSpec(settings.shared_width, gated, biases) if settings.shared_width else None
        expert = FeedForwardSpec(settings.expert_width or width, gated, biases)
        experts = MoeSpec(num_experts, top_k, expert, shared)
    kinds = {  # equal layers are one object
        (windowed, routed): LayerSpec(
            attention if windowed else replace(attention, window=None),
            experts if routed and experts is not None else dense,
            norm,
        )
        for windowed in (False, True)
        for routed in (False, True)
    }
    return ModelSpec(
        name=cells.text("model") or "unnamed",
        family="row",
        hidden_size=hidden,
        vocab_size=_vocab(cells, settings),
        layers=tuple(kinds[_has_window(i, settings), _has_experts(i, settings)] for i in range(num_layers)),
        norm=norm,
        position=position,
        max_positions=cells.count("seq_len"),
        tied_embeddings=bool(settings.tied_embeddings),
    )


def _vocab(cells: Cells, settings: Settings) -> int:
    """Rows of the vocabulary, padded here only where the source pads in its own way."""
    rows = _limited(cells, "vocab", limits.MAX_VOCAB)
    block = (settings.vocab_multiple or 1) * cells.count("tp")
    return -(-rows // block) * block if settings.vocab_multiple else rows


def _has_experts(idx: int, settings: Settings) -> bool:
    every = settings.moe_every or 1
    return idx >= (settings.dense_layers or 0) and idx % every == every - 1


def _has_window(idx: int, settings: Settings) -> bool:
    every = settings.window_every
    return every is None or idx % every != every - 1


def _attention(cells: Cells, settings: Settings, hidden: int, biases: bool) -> AttentionSpec:
    heads = _limited(cells, "heads", limits.MAX_HEADS)
    latent = settings.latent
    if latent is not None:
        spec = LatentSpec(latent.q_rank, latent.kv_rank, latent.nope_dim, latent.rope_dim, latent.value_dim)
        return AttentionSpec(heads, heads, latent.nope_dim + latent.rope_dim, latent=spec)
    kv_heads = cells.count("kv_heads", heads)
    if heads % kv_heads:
        raise RowError("impossible", f"{kv_heads} does not divide {heads} heads", column="kv_heads")
    if settings.head_dim is None and hidden % heads:
        raise RowError("impossible", f"{heads} does not divide the hidden size {hidden}", column="heads")
    return AttentionSpec(
        num_heads=heads,
        num_kv_heads=kv_heads,
        head_dim=settings.head_dim or hidden // heads,
        qkv_bias=settings.qkv_bias if settings.qkv_bias is not None else biases,
        out_bias=biases,
        qk_norm=bool(settings.qk_norm),
        window=settings.window,
    )


def _limited(cells: Cells, column: str, high: int) -> int:
    value = cells.count(column)
    if value > high:
        raise RowError("not-a-number", f"{value} is out of range; legal: 1 to {high}", column=column)
    return value
