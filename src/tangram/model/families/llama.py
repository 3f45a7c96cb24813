"""Llama and its kin: RMSNorm, rotary positions, grouped queries, a gated block in every layer."""

from __future__ import annotations

from tangram.model.families.common import (
    ROTARY_KEYS,
    WINDOW_KEYS,
    Ends,
    Identity,
    gated_block,
    grouped_attention,
    num_layers,
    optional_window,
    rotary_model,
    upper_windows,
    with_windows,
)
from tangram.model.fields import Fields
from tangram.model.spec import AttentionSpec, LayerSpec, ModelSpec, NormKind

LLAMA_KEYS = (*ROTARY_KEYS, "attention_bias", "mlp_bias")
MISTRAL_KEYS = (*ROTARY_KEYS, "sliding_window")
QWEN2_KEYS = (*ROTARY_KEYS, *WINDOW_KEYS)
QWEN3_KEYS = (*QWEN2_KEYS, "attention_bias")

QWEN_UNWINDOWED_LAYERS = 28
"""Default of ``max_window_layers`` in Qwen2Config and Qwen3Config."""


def read_llama(values: Fields, identity: Identity) -> ModelSpec:
    """LlamaConfig: ``attention_bias`` covers all four projections."""
    bias = values.boolean("attention_bias", default=False)
    layer = LayerSpec(
        grouped_attention(values, kv_if_absent=None, qkv_bias=bias, out_bias=bias),
        gated_block(values, bias=values.boolean("mlp_bias", default=False)),
        NormKind.RMSNORM,
    )
    return rotary_model(values, identity, (layer,) * num_layers(values), Ends(max_positions=2048))


def read_mistral(values: Fields, identity: Identity) -> ModelSpec:
    """MistralConfig: all layers have the window, 4,096 unless the file says otherwise (null: none)."""
    attention = grouped_attention(values, kv_if_absent=8)
    count = num_layers(values)
    kinds = (LayerSpec(attention, gated_block(values), NormKind.RMSNORM),) * count
    layers = with_windows(kinds, [optional_window(values, if_absent=4096)] * count)
    return rotary_model(values, identity, layers, Ends(max_positions=131_072))


def read_qwen2(values: Fields, identity: Identity) -> ModelSpec:
    """Qwen2Config: queries, keys and values have biases, which no key of the file tells."""
    return _qwen(values, identity, grouped_attention(values, kv_if_absent=32, qkv_bias=True))


def read_qwen3(values: Fields, identity: Identity) -> ModelSpec:
    """Qwen3Config: normalised queries and keys, heads of 128 unless the file says otherwise."""
    bias = values.boolean("attention_bias", default=False)
    attention = grouped_attention(
        values, kv_if_absent=32, head_dim_if_absent=128, qkv_bias=bias, out_bias=bias, qk_norm=True
    )
    return _qwen(values, identity, attention)


def _qwen(values: Fields, identity: Identity, attention: AttentionSpec) -> ModelSpec:
    count = num_layers(values)
    windows = upper_windows(values, count, first_if_absent=QWEN_UNWINDOWED_LAYERS)
    kinds = (LayerSpec(attention, gated_block(values), NormKind.RMSNORM),) * count
    return rotary_model(values, identity, with_windows(kinds, windows), Ends(max_positions=32_768))
