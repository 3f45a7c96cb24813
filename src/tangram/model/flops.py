"""Counts floating-point operations of matrix products: 2 per multiply-add, nothing else.

Norms, softmax, activations and the token dispatch of experts are not counted (their time is bytes, not FLOP).
The backward pass of every part costs twice its forward pass: one product for the inputs, one for the weights
(or, in the attention core, one for each of the two operands).

Attention is counted over the full ``seq_len x seq_len`` square, as Megatron's formula for model FLOP does
(Narayanan et al. 2021, "Efficient Large-Scale Language Model Training on GPU Clusters", section 5.1:
96 B s l h^2 (1 + s / 6h + V / 16 l h) with recomputation), although a causal mask leaves half of it;
``causal=True`` counts that half, which is what a flash kernel computes. Of attention with a window the square
loses on either side of the diagonal what the window hides.
"""

from __future__ import annotations

from tangram.model.atoms import Part, layer_parts
from tangram.model.params import model_parts
from tangram.model.spec import AttentionSpec, FeedForwardSpec, LatentSpec, LayerSpec, ModelSpec

BACKWARD_PER_FORWARD = 2


def part_forward_flop(
    model: ModelSpec,
    layer_idx: int | None,
    part: Part,
    num_tokens: int,
    seq_len: int,
    *,
    causal: bool = False,
    vocab_size: int | None = None,
) -> int:
    """Counts the forward FLOP of one part.

    Args:
        model: The model.
        layer_idx: The layer that the part belongs to; None for embedding and head.
        part: The part. The embedding is a lookup: 0, unless it is projected.
        num_tokens: Tokens that go through the part, all samples together.
        seq_len: Tokens of one sample: the keys that each token looks at.
        causal: Count only the half of the attention square that a causal mask leaves.
        vocab_size: Rows of the LM head after padding; by default the model's.

    Returns:
        FLOP of the forward pass (2 per multiply-add). Experts: of the ``top_k`` that each token is sent to,
        without dropped tokens or padding to a capacity.
    """
    hidden = model.hidden_size
    if layer_idx is None:
        assert part in (Part.EMBEDDING, Part.HEAD), f"{part} belongs to a layer"
        rows = model.vocab_size if vocab_size is None else vocab_size
        if part is Part.EMBEDDING:
            return 2 * num_tokens * model.projection_size
        head = 2 * num_tokens * (model.embedding_width * rows + model.projection_size)
        ahead = 2 * num_tokens * 2 * hidden**2  # projection in front of a layer for prediction
        return head + model.num_prediction_layers * (head + ahead)
    layer = model.layers[layer_idx]
    assert part in layer_parts(layer), f"layer {layer_idx} has no {part}"
    if part is Part.CORE:
        attention = layer.attention
        widths = attention.query_width + attention.value_width
        keys = attention.num_scores(seq_len) // seq_len  # per token on the mean, in the square
        full = 2 * num_tokens * keys * widths  # scores, values
        return full // 2 if causal else full
    return 2 * num_tokens * _weights(layer, hidden, part)


def model_forward_flop(model: ModelSpec, num_tokens: int, seq_len: int, *, causal: bool = False) -> int:
    """Counts the forward FLOP of the whole model for ``num_tokens`` tokens in samples of ``seq_len``."""
    return sum(
        part_forward_flop(model, idx, part, num_tokens, seq_len, causal=causal)
        for idx, part in model_parts(model)
    )


def model_flop_per_token(model: ModelSpec, seq_len: int, *, causal: bool = False) -> int:
    """Counts the model FLOP of training on one token: forward and backward, without recomputation."""
    return (1 + BACKWARD_PER_FORWARD) * model_forward_flop(model, 1, seq_len, causal=causal)


def _weights(layer: LayerSpec, hidden: int, part: Part) -> int:
    """Elements of the matrices that a token is multiplied with."""
    attention = layer.attention
    if part is Part.QKV and attention.latent is not None:
        return _latent(attention, attention.latent, hidden)
    if part is Part.QKV:
        return hidden * (attention.query_width + 2 * attention.kv_width)
    if part is Part.OUT:
        return attention.value_width * hidden
    block = layer.feed_forward
    if isinstance(block, FeedForwardSpec):
        matrices = block.num_up_matrices if part is Part.UP else 1
        return matrices * hidden * block.intermediate_size
    expert = (block.expert.num_up_matrices + 1) * hidden * block.expert.intermediate_size
    shared = 0
    if block.shared is not None:
        shared = (block.shared.num_up_matrices + 1) * hidden * block.shared.intermediate_size
    return hidden * block.num_experts + block.top_k * expert + shared


def _latent(attention: AttentionSpec, latent: LatentSpec, hidden: int) -> int:
    """Elements of the projections of latent attention, as they are trained: nothing absorbed."""
    queries = attention.query_width
    q = hidden * queries if latent.q_rank is None else latent.q_rank * (hidden + queries)
    columns = attention.num_heads * (latent.nope_dim + latent.value_dim)
    return q + hidden * (latent.kv_rank + latent.rope_dim) + latent.kv_rank * columns
