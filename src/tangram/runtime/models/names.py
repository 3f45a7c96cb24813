"""Families that can be run, and what their tensors are called in a Hugging Face checkpoint.

One family is one table of names. What a family of that name cannot have (experts in Llama) or what is not
built here (latent attention) is refused before anything is allocated.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from tangram.errors import InputError
from tangram.model.spec import LayerSpec, ModelSpec, NormKind, PositionKind


@dataclass(frozen=True, slots=True)
class ExpertNames:
    """Names inside a layer of a mixture of experts; ``{}`` stands for the number of the expert."""

    router: str
    gate: str
    up: str
    down: str


@dataclass(frozen=True, slots=True)
class Names:
    """Names of a family.

    Attributes:
        embedding, final_norm, head: Of the ends, without ``.weight``.
        positions: The table of positions, where they are learned.
        layer: In front of all names of a layer; ``{}`` stands for its number.
        attention_norm, feed_forward_norm: In front of the blocks.
        query, key, value, out, query_norm, key_norm: Of attention. Equal names of query, key and value mean
            one matrix that holds them one after the other.
        gate, up, down: Of the dense block.
        experts: Of the mixture of experts; None where the family has none.
        transposed: Whether matrices are stored as (in, out).
    """

    embedding: str
    final_norm: str
    head: str
    layer: str
    attention_norm: str
    feed_forward_norm: str
    query: str
    key: str
    value: str
    out: str
    gate: str
    up: str
    down: str
    positions: str = ""
    query_norm: str = "self_attn.q_norm"
    key_norm: str = "self_attn.k_norm"
    experts: ExpertNames | None = None
    transposed: bool = False


_LLAMA = Names(
    embedding="model.embed_tokens",
    final_norm="model.norm",
    head="lm_head",
    layer="model.layers.{}.",
    attention_norm="input_layernorm",
    feed_forward_norm="post_attention_layernorm",
    query="self_attn.q_proj",
    key="self_attn.k_proj",
    value="self_attn.v_proj",
    out="self_attn.o_proj",
    gate="mlp.gate_proj",
    up="mlp.up_proj",
    down="mlp.down_proj",
)
_MIXTRAL = ExpertNames(
    router="block_sparse_moe.gate",
    gate="block_sparse_moe.experts.{}.w1",
    up="block_sparse_moe.experts.{}.w3",
    down="block_sparse_moe.experts.{}.w2",
)
_QWEN_MOE = ExpertNames(
    router="mlp.gate",
    gate="mlp.experts.{}.gate_proj",
    up="mlp.experts.{}.up_proj",
    down="mlp.experts.{}.down_proj",
)
_GPT2 = Names(
    embedding="transformer.wte",
    final_norm="transformer.ln_f",
    head="lm_head",
    layer="transformer.h.{}.",
    attention_norm="ln_1",
    feed_forward_norm="ln_2",
    query="attn.c_attn",
    key="attn.c_attn",
    value="attn.c_attn",
    out="attn.c_proj",
    gate="",
    up="mlp.c_fc",
    down="mlp.c_proj",
    positions="transformer.wpe",
    transposed=True,
)

FAMILIES: dict[str, Names] = {
    "gpt2": _GPT2,
    "llama": _LLAMA,
    "mistral": _LLAMA,
    "mixtral": replace(_LLAMA, experts=_MIXTRAL),
    "qwen2": _LLAMA,
    "qwen3": _LLAMA,
    "qwen3_moe": replace(_LLAMA, experts=_QWEN_MOE),
}


def names_of(model: ModelSpec) -> Names:
    """Returns the names of a model's family.

    Raises:
        InputError: The runtime cannot train the model; the message says why, and which families it can.
    """
    hint = f"families that run: {', '.join(FAMILIES)}"
    if model.family not in FAMILIES:
        raise InputError(f"models of family {model.family!r} cannot be run yet", where=model.name, hint=hint)
    names = FAMILIES[model.family]
    reason = next(_foreign(model, names), None)
    if reason is not None:
        raise InputError(f"the model cannot be run yet: {reason}", where=model.name, hint=hint)
    return names


def _foreign(model: ModelSpec, names: Names) -> Iterator[str]:
    """Yields what a model has that is not built here, or that its family cannot have."""
    if model.position is not (PositionKind.LEARNED if names.positions else PositionKind.ROTARY):
        yield f"{model.family} with {model.position} positions"
    if model.position_offset:
        yield "a table of positions with an offset"
    if model.embedding_size or model.embedding_norm or not model.final_norm:
        yield "a projection or norm behind the embedding, or no final norm"
    if model.num_prediction_layers:
        yield "layers that predict further tokens"
    for layer in model.distinct_layers:
        yield from _foreign_layer(layer, model, names)


def _foreign_layer(layer: LayerSpec, model: ModelSpec, names: Names) -> Iterator[str]:
    is_gpt, moe, attention = names.transposed, layer.moe, layer.attention
    blocks = [moe.expert] if moe else [layer.feed_forward]
    if attention.latent is not None:
        yield "latent attention"
    if layer.post_norm or layer.parallel:
        yield "norms behind blocks, or blocks side by side"
    if moe is not None and moe.shared is not None:
        yield "shared experts"
    if moe is not None and (names.experts is None or moe.expert.bias):
        yield f"experts in {model.family}, or experts with biases"
    if layer.norm is not (NormKind.LAYERNORM if is_gpt else NormKind.RMSNORM) or layer.norm is not model.norm:
        yield f"{model.family} with norms of kind {layer.norm}"
    if any(block.gated is is_gpt for block in blocks):  # type: ignore[union-attr]
        yield f"{model.family} with {'' if is_gpt else 'un'}gated blocks"
    if is_gpt and attention.num_kv_heads != attention.num_heads:
        yield "grouped queries in gpt2"
    if is_gpt and attention.qk_norm:
        yield "normalised queries in gpt2"
