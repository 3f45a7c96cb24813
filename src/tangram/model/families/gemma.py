"""Gemma: heads of a width of their own, tied embeddings of a large vocabulary; from Gemma 2 on windows by
turns and norms in front of and behind every block.

Embeddings are multiplied by the root of the hidden size, which changes no shape.
"""

from __future__ import annotations

from tangram.model import fields as limits
from tangram.model.families.common import (
    ROTARY_KEYS,
    Ends,
    Identity,
    gated_block,
    grouped_attention,
    layer_windows,
    num_layers,
    optional_window,
    refuse_true,
    rotary_model,
    with_windows,
)
from tangram.model.fields import Fields
from tangram.model.spec import LayerSpec, ModelSpec, NormKind

GEMMA_KEYS = (*ROTARY_KEYS, "attention_bias", "use_bidirectional_attention")
GEMMA2_KEYS = (*GEMMA_KEYS, "sliding_window", "layer_types")
GEMMA3_KEYS = (*GEMMA2_KEYS, "sliding_window_pattern", "_sliding_window_pattern")

HEAD_DIM = 256
WINDOW = 4096
GEMMA3_HEADS, GEMMA3_VOCAB, GEMMA3_PATTERN = 8, 262_208, 6
"""Defaults of Gemma3TextConfig: the files of multimodal models leave them out."""


def read_gemma(values: Fields, identity: Identity) -> ModelSpec:
    """GemmaConfig."""
    layer = _layer(values, kv_if_absent=16)
    return rotary_model(values, identity, (layer,) * num_layers(values), Ends(8192, tied=True))


def read_gemma2(values: Fields, identity: Identity) -> ModelSpec:
    """Gemma2Config: the first layer has a window, the second has none, and so on."""
    count = num_layers(values)
    window = optional_window(values, if_absent=WINDOW)
    windows = layer_windows(values, count, window, lambda idx: idx % 2 == 0)
    layers = with_windows((_layer(values, kv_if_absent=4, post_norm=True),) * count, windows)
    return rotary_model(values, identity, layers, Ends(8192, tied=True))


def read_gemma3(values: Fields, identity: Identity) -> ModelSpec:
    """Gemma3TextConfig: every sixth layer has no window, queries and keys are normalised."""
    count = num_layers(values)
    window = optional_window(values, if_absent=WINDOW)
    names = ("sliding_window_pattern", "_sliding_window_pattern")  # the second one since transformers 4.53
    pattern = values.optional_integer(names[0], limits.MAX_LAYERS, aliases=names[1:]) or GEMMA3_PATTERN
    windows = layer_windows(values, count, window, lambda idx: (idx + 1) % pattern != 0)
    heads = values.optional_integer("num_attention_heads", limits.MAX_HEADS) or GEMMA3_HEADS
    layer = _layer(values, kv_if_absent=4, num_heads=heads, post_norm=True, qk_norm=True)
    layers = with_windows((layer,) * count, windows)
    ends = Ends(131_072, tied=True)
    return rotary_model(values, identity, layers, ends, vocab_if_absent=GEMMA3_VOCAB)


def _layer(
    values: Fields,
    *,
    kv_if_absent: int,
    num_heads: int | None = None,
    post_norm: bool = False,
    qk_norm: bool = False,
) -> LayerSpec:
    refuse_true(values, "use_bidirectional_attention", "only decoders are supported")
    bias = values.boolean("attention_bias", default=False)
    attention = grouped_attention(
        values,
        kv_if_absent=kv_if_absent,
        num_heads=num_heads,
        head_dim_if_absent=HEAD_DIM,
        qkv_bias=bias,
        out_bias=bias,
        qk_norm=qk_norm,
    )
    return LayerSpec(attention, gated_block(values), NormKind.RMSNORM, post_norm=post_norm)
