"""What a shape is made of: its pieces, one rank's share of it, its model and its FLOP."""

from __future__ import annotations

from dataclasses import replace

from tangram.model.atoms import AtomPart, Part
from tangram.model.flops import part_forward_flop
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
from tangram.model.vocabulary import padded_vocab_size
from tangram.profiles.shapes import LayerKind, LayerShape, layer_shape

_ENDS = frozenset({LayerKind.EMBEDDING, LayerKind.FINAL_NORM, LayerKind.HEAD})
_ATTENTION_PARTS = (Part.QKV, Part.CORE, Part.OUT)


def shape_model(shape: LayerShape) -> tuple[ModelSpec, LayerSpec | None]:
    """Returns the smallest model that holds a shape, and its layer; None for an end of the model.

    What a shape does not say is filled in as cheap as it gets: no biases, RMSNorm, rotary positions, and a
    block of width 1 or one head where the shape has none. Only the parts that the shape names mean anything.
    """
    if shape.num_experts:
        expert = FeedForwardSpec(shape.intermediate_size, shape.gated)
        shared = FeedForwardSpec(shape.shared_size, shape.gated) if shape.shared_size else None
        block: FeedForwardSpec | MoeSpec = MoeSpec(shape.num_experts, shape.top_k, expert, shared)
    else:
        block = FeedForwardSpec(shape.intermediate_size or 1, shape.gated)
    attention = AttentionSpec(
        shape.num_heads or 1, shape.num_kv_heads or 1, shape.head_dim or 1, latent=_latent(shape)
    )
    layer = LayerSpec(attention, block, NormKind.RMSNORM)
    model = ModelSpec(
        name=str(shape),
        family="shape",
        hidden_size=shape.hidden_size,
        vocab_size=shape.vocab_size or 1,
        layers=(layer,),
        norm=NormKind.RMSNORM,
        position=PositionKind.ROTARY,
        max_positions=shape.seq_len,
        tied_embeddings=False,
    )
    return model, (None if shape.kind in _ENDS else layer)


def _latent(shape: LayerShape) -> LatentSpec | None:
    if not shape.kv_rank:
        return None
    nope_dim = shape.head_dim - shape.rope_dim
    return LatentSpec(shape.q_rank or None, shape.kv_rank, nope_dim, shape.rope_dim, shape.value_dim)


def shape_parts(shape: LayerShape) -> tuple[AtomPart, ...]:
    """Returns the parts of :func:`shape_model` that a shape consists of.

    Empty for kinds that are no run of whole parts: a final norm alone, and one expert.
    """
    moe = bool(shape.num_experts)
    feed_forward = (Part.MOE,) if moe else (Part.UP, Part.DOWN)
    parts = {
        LayerKind.EMBEDDING: (Part.EMBEDDING,),
        LayerKind.LAYER: (*_ATTENTION_PARTS, *feed_forward),
        LayerKind.ATTENTION: _ATTENTION_PARTS,
        LayerKind.FEED_FORWARD: feed_forward,
        LayerKind.FINAL_NORM: (),
        LayerKind.EXPERT: (),
        LayerKind.HEAD: (Part.HEAD,),
    }
    found = parts[shape.kind] if shape.kind in parts else (Part(shape.kind.value),)
    return tuple(AtomPart(part, None if shape.kind in _ENDS else 0) for part in found)


def shard_of(shape: LayerShape, tp: int) -> LayerShape | None:
    """Returns the shape that one of ``tp`` ranks runs when it is timed alone.

    Heads, blocks and vocabulary are split, latent vectors are not; a rank has at least one head for keys and
    values. None where the shape does not split evenly.
    """
    heads, block, shared = shape.num_heads, shape.intermediate_size, shape.shared_size
    if heads % tp or block % tp or shared % tp:
        return None
    rows = padded_vocab_size(shape.vocab_size, tp) // tp if shape.vocab_size else 0
    kv_heads = max(shape.num_kv_heads // tp, 1) if shape.num_kv_heads else 0
    return replace(
        shape,
        num_heads=heads // tp,
        num_kv_heads=kv_heads,
        intermediate_size=block // tp,
        shared_size=shared // tp,
        vocab_size=rows,
    )


def sub_shapes(shape: LayerShape) -> tuple[LayerShape, ...]:
    """Returns the next smaller pieces that a shape consists of, in the order in which they run; or none.

    A layer is attention and feed-forward; attention is qkv, core and out; a dense block is up and down.
    """
    if shape.kind is LayerKind.LAYER:
        kinds: tuple[LayerKind, ...] = (LayerKind.ATTENTION, LayerKind.FEED_FORWARD)
    elif shape.kind is LayerKind.ATTENTION:
        kinds = (LayerKind.QKV, LayerKind.CORE, LayerKind.OUT)
    elif shape.kind is LayerKind.FEED_FORWARD and not shape.num_experts:
        kinds = (LayerKind.UP, LayerKind.DOWN)
    else:
        return ()
    model, layer = shape_model(shape)
    assert layer is not None
    return tuple(layer_shape(model, layer, shape.seq_len, kind) for kind in kinds)


def forward_flop(shape: LayerShape, num_samples: int) -> int:
    """Returns the matrix FLOP of a forward pass, attention counted causal; the same whatever tp.

    Counted as in :mod:`tangram.model.flops`; an expert runs all tokens, a norm has no products.
    """
    num_tokens = num_samples * shape.seq_len
    if shape.kind is LayerKind.EXPERT:
        matrices = 3 if shape.gated else 2
        return 2 * num_tokens * matrices * shape.hidden_size * shape.intermediate_size
    model, _ = shape_model(shape)
    return sum(
        part_forward_flop(model, part.layer_idx, part.part, num_tokens, shape.seq_len, causal=True)
        for part in shape_parts(shape)
    )
