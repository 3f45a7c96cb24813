"""Counts parameters: of every part of a model, and in total.

What is counted: matrices, biases, norms, routers, the position table, projections between embedding and
residual stream, and a tied LM head once (with the embedding). What is *active* for one token: everything but
the experts it is not sent to; embedding and head count, as in the published figures.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from tangram.model.atoms import Part, layer_parts
from tangram.model.spec import (
    AttentionSpec,
    FeedForwardSpec,
    LatentSpec,
    LayerSpec,
    ModelSpec,
    NormKind,
    PositionKind,
)


@dataclass(frozen=True, slots=True)
class PartParams:
    """Parameters of a part.

    Attributes:
        total: All.
        active: Those that one token uses.
        expert: Those of ``total`` that belong to routed experts (and are split over ep, not dp).
    """

    total: int = 0
    active: int = 0
    expert: int = 0

    def __add__(self, other: PartParams) -> PartParams:
        return PartParams(self.total + other.total, self.active + other.active, self.expert + other.expert)


def part_params(
    model: ModelSpec, layer_idx: int | None, part: Part, *, vocab_size: int | None = None
) -> PartParams:
    """Counts the parameters of one part.

    Args:
        model: The model.
        layer_idx: The layer that the part belongs to; None for embedding and head.
        part: The part. A tied head holds the final norm only: its matrix is the embedding's.
        vocab_size: Rows of the vocabulary matrices after padding; by default the model's.

    Returns:
        Total, active and expert parameters.
    """
    hidden = model.hidden_size
    rows = model.vocab_size if vocab_size is None else vocab_size
    if layer_idx is None:
        assert part in (Part.EMBEDDING, Part.HEAD), f"{part} belongs to a layer"
        return _dense(_embedding(model, rows) if part is Part.EMBEDDING else _head(model, rows))
    layer = model.layers[layer_idx]
    assert part in layer_parts(layer), f"layer {layer_idx} has no {part}"
    if part is Part.MOE:
        return _moe(layer, hidden)
    post_norm = norm_params(layer.norm, hidden) if layer.post_norm and part in (Part.OUT, Part.DOWN) else 0
    return _dense(_attention(layer, hidden, part) + _feed_forward(layer, hidden, part) + post_norm)


def model_parts(model: ModelSpec) -> Iterator[tuple[int | None, Part]]:
    """Yields all parts of a model in the order in which they run, each with its layer (None at the ends)."""
    yield None, Part.EMBEDDING
    for idx, layer in enumerate(model.layers):
        for part in layer_parts(layer):
            yield idx, part
    yield None, Part.HEAD


def count_params(model: ModelSpec) -> PartParams:
    """Counts the parameters of the whole model, layers for prediction included; a tied head counts once."""
    return sum((part_params(model, idx, part) for idx, part in model_parts(model)), PartParams())


def num_params(model: ModelSpec) -> int:
    """Returns the number of parameters, as they are published: without layers for prediction."""
    return count_params(model.main).total


def num_active_params(model: ModelSpec) -> int:
    """Returns the number of parameters that one token uses, without layers for prediction."""
    return count_params(model.main).active


def norm_params(kind: NormKind, width: int) -> int:
    """Returns the parameters of one norm: a scale, and for LayerNorm a bias."""
    return 2 * width if kind is NormKind.LAYERNORM else width


def feed_forward_params(block: FeedForwardSpec, hidden_size: int) -> int:
    """Returns the parameters of a dense block or of one expert, without the norm before it."""
    return _up(block, hidden_size) + _down(block, hidden_size)


def _dense(count: int) -> PartParams:
    return PartParams(total=count, active=count)


def _embedding(model: ModelSpec, rows: int) -> int:
    hidden = model.hidden_size
    learned = model.position is PositionKind.LEARNED
    positions = model.position_offset + model.max_positions if learned else 0
    norm = norm_params(model.norm, hidden) if model.embedding_norm else 0
    return rows * model.embedding_width + model.projection_size + positions * hidden + norm


def _head(model: ModelSpec, rows: int) -> int:
    matrix = 0 if model.tied_embeddings else rows * model.embedding_width
    norm = norm_params(model.norm, model.hidden_size) if model.final_norm else 0
    return norm + model.projection_size + matrix + model.num_prediction_layers * _prediction(model)


def _prediction(model: ModelSpec) -> int:
    """What a layer for prediction has besides the layer: norms of both inputs, their projection, a norm."""
    return 2 * model.hidden_size**2 + 3 * norm_params(model.norm, model.hidden_size)


def _attention(layer: LayerSpec, hidden: int, part: Part) -> int:
    attention: AttentionSpec = layer.attention
    if part is Part.QKV and attention.latent is not None:
        return norm_params(layer.norm, hidden) + _latent(layer, attention.latent, hidden)
    if part is Part.QKV:
        columns = attention.query_width + 2 * attention.kv_width
        bias = columns if attention.qkv_bias else 0
        # One scale of a head's width for queries and one for keys (RMSNorm in Qwen3).
        qk_norms = 2 * attention.head_dim if attention.qk_norm else 0
        return norm_params(layer.norm, hidden) + hidden * columns + bias + qk_norms
    if part is Part.OUT:
        return attention.value_width * hidden + (hidden if attention.out_bias else 0)
    return 0


def _latent(layer: LayerSpec, latent: LatentSpec, hidden: int) -> int:
    """Down-projections with a norm behind each, up-projections (DeepSeek-V2, appendix C); no biases."""
    queries = layer.attention.query_width
    if latent.q_rank is None:
        q = hidden * queries
    else:
        q = hidden * latent.q_rank + norm_params(layer.norm, latent.q_rank) + latent.q_rank * queries
    columns = layer.attention.num_heads * (latent.nope_dim + latent.value_dim)
    down = hidden * (latent.kv_rank + latent.rope_dim) + norm_params(layer.norm, latent.kv_rank)
    return q + down + latent.kv_rank * columns


def _feed_forward(layer: LayerSpec, hidden: int, part: Part) -> int:
    block = layer.feed_forward
    assert isinstance(block, FeedForwardSpec) or part not in (Part.UP, Part.DOWN)
    if isinstance(block, FeedForwardSpec) and part is Part.UP:
        return norm_params(layer.norm, hidden) + _up(block, hidden)
    if isinstance(block, FeedForwardSpec) and part is Part.DOWN:
        return _down(block, hidden)
    return 0


def _up(block: FeedForwardSpec, hidden: int) -> int:
    bias = block.intermediate_size if block.bias else 0
    return block.num_up_matrices * (hidden * block.intermediate_size + bias)


def _down(block: FeedForwardSpec, hidden: int) -> int:
    return block.intermediate_size * hidden + (hidden if block.bias else 0)


def _moe(layer: LayerSpec, hidden: int) -> PartParams:
    moe = layer.moe
    assert moe is not None
    norms = 2 if layer.post_norm else 1
    shared = norms * norm_params(layer.norm, hidden) + hidden * moe.num_experts  # norms and router
    if moe.shared is not None:
        shared += feed_forward_params(moe.shared, hidden)
    expert = feed_forward_params(moe.expert, hidden)
    return PartParams(
        total=shared + moe.num_experts * expert,
        active=shared + moe.top_k * expert,
        expert=moe.num_experts * expert,
    )
