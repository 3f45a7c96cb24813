"""GPT and its kin: LayerNorm, biases, two feed-forward matrices; positions learned, rotary or by ALiBi."""

from __future__ import annotations

from dataclasses import replace

from tangram.errors import InputError
from tangram.model import fields as limits
from tangram.model.families.common import (
    SHARED_KEYS,
    Ends,
    Identity,
    equal_head_dim,
    num_layers,
    rotary_model,
    with_windows,
)
from tangram.model.fields import Fields, describe
from tangram.model.spec import AttentionSpec, FeedForwardSpec, LayerSpec, ModelSpec, NormKind, PositionKind

_GPT2_NAMES = {
    "n_layer": "num_hidden_layers",
    "n_embd": "hidden_size",
    "n_head": "num_attention_heads",
    "n_positions": "max_position_embeddings",
}
GPT2_KEYS = (*SHARED_KEYS, "n_inner", *_GPT2_NAMES, *_GPT2_NAMES.values())
GPT_NEO_KEYS = (
    *SHARED_KEYS,
    "num_layers",
    "num_hidden_layers",
    "hidden_size",
    "num_heads",
    "num_attention_heads",
    "intermediate_size",
    "max_position_embeddings",
    "attention_types",
    "attention_layers",
    "window_size",
)
GPT_NEOX_KEYS = (
    *SHARED_KEYS,
    "num_hidden_layers",
    "hidden_size",
    "num_attention_heads",
    "intermediate_size",
    "max_position_embeddings",
    "attention_bias",
    "use_parallel_residual",
)
BLOOM_KEYS = (
    *SHARED_KEYS,
    "n_layer",
    "num_hidden_layers",
    "hidden_size",
    "n_embed",
    "num_attention_heads",
    "n_head",
    "seq_length",
)
OPT_KEYS = (
    *SHARED_KEYS,
    "num_hidden_layers",
    "hidden_size",
    "d_model",
    "num_attention_heads",
    "ffn_dim",
    "max_position_embeddings",
    "word_embed_proj_dim",
    "do_layer_norm_before",
    "_remove_final_layer_norm",
    "enable_bias",
    "layer_norm_elementwise_affine",
)

OPT_POSITION_OFFSET = 2
"""Rows of OPT's position table in front of the first token's (OPTLearnedPositionalEmbedding)."""


def read_gpt2(values: Fields, identity: Identity) -> ModelSpec:
    """GPT2Config: biases everywhere, learned positions; tied by default."""

    def number(key: str, high: int) -> int:
        return values.integer(key, high, aliases=(_GPT2_NAMES[key],))

    hidden, heads = number("n_embd", limits.MAX_WIDTH), number("n_head", limits.MAX_HEADS)
    head_dim = equal_head_dim(values, hidden, heads, ("n_embd", "n_head"))
    attention = AttentionSpec(heads, heads, head_dim, qkv_bias=True, out_bias=True)
    width = values.optional_integer("n_inner", limits.MAX_FEED_FORWARD) or 4 * hidden
    layer = LayerSpec(attention, FeedForwardSpec(width, gated=False, bias=True), NormKind.LAYERNORM)
    layers = (layer,) * number("n_layer", limits.MAX_LAYERS)
    return _model(values, identity, hidden, layers, number("n_positions", limits.MAX_POSITIONS))


def read_gpt_neo(values: Fields, identity: Identity) -> ModelSpec:
    """GPTNeoConfig: layers with and without a window by turns, and no biases at queries, keys and values."""
    count = num_layers(values, "num_layers", aliases=("num_hidden_layers",))
    hidden = values.integer("hidden_size", limits.MAX_WIDTH)
    heads = values.integer("num_heads", limits.MAX_HEADS, aliases=("num_attention_heads",))
    head_dim = equal_head_dim(values, hidden, heads, ("hidden_size", "num_heads"))
    width = values.optional_integer("intermediate_size", limits.MAX_FEED_FORWARD) or 4 * hidden
    layer = LayerSpec(
        AttentionSpec(heads, heads, head_dim, out_bias=True),
        FeedForwardSpec(width, gated=False, bias=True),
        NormKind.LAYERNORM,
    )
    window = values.optional_integer("window_size", limits.MAX_POSITIONS) or 256
    windows = [window if kind == "local" else None for kind in _neo_kinds(values, count)]
    layers = with_windows((layer,) * count, windows)
    positions = values.integer("max_position_embeddings", limits.MAX_POSITIONS)
    return _model(values, identity, hidden, layers, positions)


def read_gpt_neox(values: Fields, identity: Identity) -> ModelSpec:
    """GPTNeoXConfig: rotary positions (of a part of each head), blocks side by side; untied by default."""
    hidden = values.integer("hidden_size", limits.MAX_WIDTH)
    heads = values.integer("num_attention_heads", limits.MAX_HEADS)
    head_dim = equal_head_dim(values, hidden, heads, ("hidden_size", "num_attention_heads"))
    bias = values.boolean("attention_bias", default=True)
    width = values.integer("intermediate_size", limits.MAX_FEED_FORWARD)
    layer = LayerSpec(
        AttentionSpec(heads, heads, head_dim, qkv_bias=bias, out_bias=bias),
        FeedForwardSpec(width, gated=False, bias=True),
        NormKind.LAYERNORM,
        parallel=values.boolean("use_parallel_residual", default=True),
    )
    ends = Ends(max_positions=2048, norm=NormKind.LAYERNORM)
    return rotary_model(values, identity, (layer,) * num_layers(values), ends)


def read_bloom(values: Fields, identity: Identity) -> ModelSpec:
    """BloomConfig: ALiBi, a norm behind the embedding, blocks of four hidden sizes; tied by default."""
    hidden = values.integer("hidden_size", limits.MAX_WIDTH, aliases=("n_embed",))
    heads = values.integer("num_attention_heads", limits.MAX_HEADS, aliases=("n_head",))
    head_dim = equal_head_dim(values, hidden, heads, ("hidden_size", "num_attention_heads"))
    layer = LayerSpec(
        AttentionSpec(heads, heads, head_dim, qkv_bias=True, out_bias=True),
        FeedForwardSpec(4 * hidden, gated=False, bias=True),
        NormKind.LAYERNORM,
    )
    layers = (layer,) * num_layers(values, "n_layer", aliases=("num_hidden_layers",))
    trained_on = values.optional_integer("seq_length", limits.MAX_POSITIONS) or 2048
    model = _model(values, identity, hidden, layers, trained_on)
    return replace(model, position=PositionKind.ALIBI, embedding_norm=True)


def read_opt(values: Fields, identity: Identity) -> ModelSpec:
    """OPTConfig: learned positions behind two unused rows; tied by default.

    Where ``word_embed_proj_dim`` is not the hidden size, embeddings are projected; where norms stand behind
    the blocks (``do_layer_norm_before`` false), there is no final norm.
    """
    if not values.boolean("layer_norm_elementwise_affine", default=True):
        raise InputError(
            "must be true: norms without parameters are not supported",
            where=values.place("layer_norm_elementwise_affine"),
        )
    hidden = values.integer("hidden_size", limits.MAX_WIDTH, aliases=("d_model",))
    heads = values.integer("num_attention_heads", limits.MAX_HEADS)
    head_dim = equal_head_dim(values, hidden, heads, ("hidden_size", "num_attention_heads"))
    bias = values.boolean("enable_bias", default=True)
    width = values.integer("ffn_dim", limits.MAX_FEED_FORWARD)
    layer = LayerSpec(
        AttentionSpec(heads, heads, head_dim, qkv_bias=bias, out_bias=bias),
        FeedForwardSpec(width, gated=False, bias=bias),
        NormKind.LAYERNORM,
    )
    positions = values.integer("max_position_embeddings", limits.MAX_POSITIONS)
    model = _model(values, identity, hidden, (layer,) * num_layers(values), positions)
    narrow = values.optional_integer("word_embed_proj_dim", limits.MAX_WIDTH)
    norm_in_front = values.boolean("do_layer_norm_before", default=True)
    return replace(
        model,
        position_offset=OPT_POSITION_OFFSET,
        embedding_size=None if narrow == hidden else narrow,
        final_norm=norm_in_front and not values.boolean("_remove_final_layer_norm", default=False),
    )


def _model(
    values: Fields, identity: Identity, hidden: int, layers: tuple[LayerSpec, ...], max_positions: int
) -> ModelSpec:
    """A model with learned positions, tied unless the file says otherwise."""
    return ModelSpec(
        name=identity.name,
        family=str(values.values["model_type"]),
        hidden_size=hidden,
        vocab_size=values.integer("vocab_size", limits.MAX_VOCAB),
        layers=layers,
        norm=NormKind.LAYERNORM,
        position=PositionKind.LEARNED,
        max_positions=max_positions,
        tied_embeddings=values.boolean("tie_word_embeddings", default=True),
        source=identity.source,
    )


def _neo_kinds(values: Fields, count: int) -> list[str]:
    """``global`` or ``local`` for each layer.

    ``attention_types`` lists patterns with their repetitions, as in ``[[["global", "local"], 12]]``; without
    it, every other layer is local.
    """
    key = "attention_types"
    found = values.values.get(key)
    if found is None:
        listed = values.choices("attention_layers", ("global", "local"))
        kinds = ["global", "local"] * (count // 2 + 1) if listed is None else listed
        kinds = kinds[:count] if listed is None else kinds
        key = "attention_layers"
    else:
        kinds = [kind for pattern in _patterns(values, found, count) for kind in pattern]
    if len(kinds) != count:
        raise InputError(f"lists {len(kinds)} layers, there are {count}", where=values.place(key))
    return kinds


def _patterns(values: Fields, found: object, count: int) -> list[list[str]]:
    """The patterns, as often as they are repeated; no more of them than there can be layers."""
    place = values.place("attention_types")
    if not isinstance(found, list):
        raise InputError(f"is {describe(found)}, but must be a list", where=place)
    patterns: list[list[str]] = []
    for item in found:
        if not isinstance(item, list) or len(item) != 2 or not isinstance(item[0], list) or not item[0]:
            raise InputError(
                "must hold patterns with a number each", where=place, hint='as in [[["global", "local"], 12]]'
            )
        pattern, times = item
        if isinstance(times, bool) or not isinstance(times, int) or not 0 <= times <= count:
            raise InputError(
                f"repeats a pattern {describe(times)} times", where=place, hint=f"legal: 0 to {count}"
            )
        for kind in pattern:
            if kind not in ("global", "local"):
                raise InputError(f"holds {describe(kind)}", where=place, hint="legal: global, local")
        patterns += [pattern] * times
    return patterns
