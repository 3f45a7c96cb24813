"""What is trained: a decoder-only transformer, layer by layer.

The specification holds what a planner needs: shapes. What a trainer needs beyond them it carries along
unread, and models that differ in nothing else are equal. Everything is frozen and hashable;
:mod:`tangram.model.hf` and the presets build it, nobody changes it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum


class NormKind(StrEnum):
    """Normalisation of a layer: RMSNorm has a scale, LayerNorm a scale and a bias."""

    RMSNORM = "rmsnorm"
    LAYERNORM = "layernorm"


class PositionKind(StrEnum):
    """Position information: only learned positions have parameters, a table of ``max_positions`` rows.

    ALiBi (Press et al. 2022, arXiv 2108.12409) adds a slope per head to the scores.
    """

    ROTARY = "rotary"
    LEARNED = "learned"
    ALIBI = "alibi"


@dataclass(frozen=True, slots=True)
class LatentSpec:
    """Multi-head latent attention (DeepSeek-V2, arXiv 2405.04434, section 2.1): what is projected through.

    Keys and values of all heads come from one latent vector per token, queries from one or directly. A head's
    query and key have a part without position and a rotary part; the rotary key is shared by all heads.

    Attributes:
        q_rank: Width of the queries' latent vector; None when queries are projected directly.
        kv_rank: Width of the latent vector of keys and values.
        nope_dim: Width of a head's query and key without position.
        rope_dim: Width of a head's rotary query, and of the shared rotary key.
        value_dim: Width of a head's value.
    """

    q_rank: int | None
    kv_rank: int
    nope_dim: int
    rope_dim: int
    value_dim: int


@dataclass(frozen=True, slots=True)
class AttentionSpec:
    """Multi-head, grouped-query or latent attention.

    Attributes:
        num_heads: Query heads.
        num_kv_heads: Key and value heads; equals ``num_heads`` without grouping, and in latent attention.
        head_dim: Width of one head; ``num_heads * head_dim`` need not equal the hidden size. In latent
            attention the width of a head's query and key, ``nope_dim + rope_dim``.
        qkv_bias: Whether the query, key and value projections have biases.
        out_bias: Whether the output projection has a bias.
        qk_norm: Whether queries and keys are normalised per head (two scales of ``head_dim``).
        latent: The latent vectors, or None for ordinary attention.
        window: Keys that a query looks back at, or None for all of them.
    """

    num_heads: int
    num_kv_heads: int
    head_dim: int
    qkv_bias: bool = False
    out_bias: bool = False
    qk_norm: bool = False
    latent: LatentSpec | None = None
    window: int | None = None

    @property
    def query_width(self) -> int:
        """Columns of the query projection."""
        return self.num_heads * self.head_dim

    @property
    def value_width(self) -> int:
        """Rows of the output projection: the values of all query heads."""
        return self.num_heads * (self.latent.value_dim if self.latent else self.head_dim)

    @property
    def kv_width(self) -> int:
        """Columns of the key projection (and of the value projection)."""
        return self.num_kv_heads * self.head_dim

    @property
    def expanded_kv_width(self) -> int:
        """Keys and values of a token, all heads; latent attention expands them for every head."""
        return 2 * self.kv_width if self.latent is None else self.query_width + self.value_width

    def num_scores(self, seq_len: int) -> int:
        """Scores of one head and sample: the square of the sequence less the corners outside of the window.

        A causal mask leaves half of them: s^2 - (s - w)^2 = 2 s w - w^2 for a window w below s.
        """
        hidden = 0 if self.window is None else max(seq_len - self.window, 0)
        return seq_len**2 - hidden**2


@dataclass(frozen=True, slots=True)
class FeedForwardSpec:
    """A dense feed-forward block: up (and gate) projection, activation, down projection."""

    intermediate_size: int
    gated: bool
    bias: bool = False

    @property
    def num_up_matrices(self) -> int:
        """2 for a gated block (gate and up), else 1."""
        return 2 if self.gated else 1


@dataclass(frozen=True, slots=True)
class MoeSpec:
    """A mixture of experts: a router that sends each token to ``top_k`` of ``num_experts`` experts.

    Attributes:
        num_experts: Routed experts.
        top_k: Experts per token.
        expert: One routed expert.
        shared: The block that every token passes through beside its experts: all shared experts as one, or
            None.
    """

    num_experts: int
    top_k: int
    expert: FeedForwardSpec
    shared: FeedForwardSpec | None = None


@dataclass(frozen=True, slots=True)
class LayerSpec:
    """One transformer layer: attention and feed-forward, each with a norm and a residual.

    Attributes:
        attention: Attention.
        feed_forward: Dense block or mixture of experts.
        norm: Kind of all norms of the layer. Whether a norm stands in front of its block or behind the
            residual changes no size and is not told.
        post_norm: Whether both blocks have a second norm, between them and the residual (Gemma 2).
        parallel: Whether both blocks start from the layer's input, each with a norm of its own, and are added
            up together (GPT-NeoX). Such a layer cannot be cut inside.
    """

    attention: AttentionSpec
    feed_forward: FeedForwardSpec | MoeSpec
    norm: NormKind
    # Not in the repr, which enters the fingerprints of atoms: they have to stay what they were before.
    post_norm: bool = field(default=False, repr=False)
    parallel: bool = field(default=False, repr=False)

    @property
    def moe(self) -> MoeSpec | None:
        """The mixture of experts of this layer, or None for a dense layer."""
        return self.feed_forward if isinstance(self.feed_forward, MoeSpec) else None


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """A decoder-only transformer: embedding, layers, final norm and LM head.

    Attributes:
        name: Preset name, or the name of the folder or file it was read from.
        family: Hugging Face ``model_type``.
        hidden_size: Width of the residual stream.
        vocab_size: Rows of the token embedding, before padding.
        layers: The transformer layers, first to last, those for prediction behind the others.
        norm: Kind of the final norm.
        position: Rotary, learned or ALiBi.
        max_positions: Positions that there are when ``position`` is learned; else the longest sequence the
            model was made for.
        tied_embeddings: Whether the LM head uses the embedding's matrix.
        source: Where the numbers come from.
        embedding_size: Width of embedding and LM head where it is not the hidden size: then a projection
            without bias stands behind the embedding, and another one in front of the head.
        embedding_norm: Whether the embedding has a norm behind it, of the kind of the final norm.
        final_norm: Whether there is a final norm.
        position_offset: Rows of the position table in front of the first position.
        num_prediction_layers: How many of the last layers predict tokens further ahead (multi-token
            prediction, DeepSeek-V3, arXiv 2412.19437, section 2.2). Each has a projection of what the layer
            before gives and of the embedding of a later token, both normalised, a final norm, and a pass
            through the head; embedding and head are the model's. They run where the head does.
        hyperparameters: What shapes do not tell and only an executor reads, by its Hugging Face name, as far
            as the model's file tells it. JSON-ready; nobody changes it.
    """

    name: str
    family: str
    hidden_size: int
    vocab_size: int
    layers: tuple[LayerSpec, ...]
    norm: NormKind
    position: PositionKind
    max_positions: int
    tied_embeddings: bool
    source: str = ""
    embedding_size: int | None = None
    embedding_norm: bool = False
    final_norm: bool = True
    position_offset: int = 0
    num_prediction_layers: int = 0
    hyperparameters: Mapping[str, object] = field(default_factory=dict, compare=False, repr=False)

    @property
    def num_layers(self) -> int:
        """Number of transformer layers, without those for prediction."""
        return len(self.layers) - self.num_prediction_layers

    @property
    def main(self) -> ModelSpec:
        """The model without layers for prediction: what is left of it after training."""
        if not self.num_prediction_layers:
            return self
        return replace(self, layers=self.layers[: self.num_layers], num_prediction_layers=0)

    @property
    def shares_embedding(self) -> bool:
        """Whether the embedding's matrix is needed where the head is, too."""
        return self.tied_embeddings or self.num_prediction_layers > 0

    @property
    def embedding_width(self) -> int:
        """Columns of the embedding and of the LM head."""
        return self.embedding_size or self.hidden_size

    @property
    def projection_size(self) -> int:
        """Elements of the projection between embedding (or head) and residual stream; 0 without one."""
        return self.embedding_size * self.hidden_size if self.embedding_size else 0

    @property
    def distinct_layers(self) -> tuple[LayerSpec, ...]:
        """The different layers, in order of first appearance."""
        # Equal layers are mostly one object; telling those apart first saves hashing all of them.
        return tuple(dict.fromkeys({id(layer): layer for layer in self.layers}.values()))

    @property
    def has_moe(self) -> bool:
        """Whether any layer has experts."""
        return any(layer.moe is not None for layer in self.distinct_layers)
