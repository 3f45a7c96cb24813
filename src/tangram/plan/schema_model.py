"""The model as the plan holds it: a complete :class:`~tangram.model.spec.ModelSpec`, and its sizes.

The layout of layers is the one of :mod:`tangram.model.serial`, which presets use too.
"""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field, SerializerFunctionWrapHandler, model_serializer

from tangram.model import serial
from tangram.model.params import num_active_params, num_params
from tangram.model.spec import ModelSpec, NormKind, PositionKind
from tangram.model.vocabulary import padded_vocab_size as pad_vocab
from tangram.plan.section import Count, Positive, Section


class LatentSection(Section):
    """Latent attention (multi-head latent attention of DeepSeek-V2).

    Attributes:
        q_rank: Width of the queries' latent vector; null when queries are projected directly.
        kv_rank: Width of the latent vector of keys and values.
        nope_dim: Width of a head's query and key without position.
        rope_dim: Width of a head's rotary query, and of the shared rotary key.
        value_dim: Width of a head's value.
    """

    q_rank: Positive | None = None
    kv_rank: Positive
    nope_dim: Positive
    rope_dim: Positive
    value_dim: Positive


class AttentionSection(Section):
    """Attention of a layer kind; the fields are those of :class:`~tangram.model.spec.AttentionSpec`."""

    num_heads: Positive
    num_kv_heads: Positive
    head_dim: Positive
    qkv_bias: bool
    out_bias: bool
    qk_norm: bool
    latent: LatentSection | None = None
    window: Positive | None = None


class FeedForwardSection(Section):
    """A dense feed-forward block, or one expert.

    Attributes:
        intermediate_size: Width between up and down projection.
        gated: Whether there is a gate projection beside the up projection.
        bias: Whether the projections have biases.
    """

    intermediate_size: Positive
    gated: bool
    bias: bool


class MoeSection(Section):
    """A mixture of experts.

    Attributes:
        num_experts: Routed experts.
        top_k: Experts per token.
        expert: One expert.
        shared: The shared experts as one block, or null.
    """

    num_experts: Positive
    top_k: Positive
    expert: FeedForwardSection
    shared: FeedForwardSection | None = None


class LayerKind(Section):
    """What equal layers have in common; it has either ``feed_forward`` or ``moe``, and null for the other.

    Attributes:
        norm: ``rmsnorm`` or ``layernorm``.
        attention: Attention.
        feed_forward: Dense block.
        moe: Mixture of experts.
        post_norm: Whether both blocks have a second norm, between them and the residual.
        parallel: Whether both blocks start from the layer's input and are added up together.
    """

    norm: NormKind
    attention: AttentionSection
    feed_forward: FeedForwardSection | None = None
    moe: MoeSection | None = None
    post_norm: bool = False
    parallel: bool = False

    @model_serializer(mode="wrap")
    def _without_what_it_has_not(self, serialize: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Leaves out what few kinds have: others are written as they were before there was any."""
        return {key: value for key, value in serialize(self).items() if key not in _RARE or value}


class ModelSection(Section):
    """The whole model: layer ``i`` is ``layer_kinds[layers[i]]``.

    Attributes:
        name: Preset name, or the name of the folder or file it was read from.
        family: Hugging Face ``model_type``.
        source: Where the numbers come from.
        fingerprint: Equal for models of equal content, whatever their name and source.
        num_params: Parameters, without vocabulary padding and layers for prediction.
        num_active_params: Those of them that one token uses.
        hidden_size: Width of the residual stream.
        vocab_size: Rows of the token embedding, before padding.
        padded_vocab_size: Rows of embedding and head as they are allocated, the same on all stages.
        norm: Kind of the final norm.
        position: ``rotary``, ``learned`` or ``alibi``.
        max_positions: Positions that there are when learned, else the longest sequence the model is for.
        tied_embeddings: Whether the head uses the embedding's matrix.
        layer_kinds: The different layers.
        layers: Index into ``layer_kinds``, one per transformer layer, first to last.
        hyperparameters: What shapes do not tell and an executor may want, by its Hugging Face name
            (``rope_theta``, ``rms_norm_eps``, ``hidden_act``...); planning never reads it.
        embedding_size: Width of embedding and head where it is not the hidden size: then a projection without
            bias stands behind the embedding, and another one in front of the head.
        embedding_norm: Whether the embedding has a norm behind it, of the kind of the final norm.
        final_norm: Whether there is a final norm.
        position_offset: Rows of the position table in front of the first position.
        num_prediction_layers: How many of the last layers predict tokens further ahead; they run with the
            head, each behind a projection of the layer before and of a later token's embedding.
    """

    name: str
    family: str
    source: str
    fingerprint: str
    num_params: Count
    num_active_params: Count
    hidden_size: Positive
    vocab_size: Positive
    padded_vocab_size: Positive
    norm: NormKind
    position: PositionKind
    max_positions: Positive
    tied_embeddings: bool
    layer_kinds: list[LayerKind]
    layers: Annotated[list[Count], Field(max_length=10_000)]
    hyperparameters: dict[str, Any] = Field(default_factory=dict)
    embedding_size: Positive | None = None
    embedding_norm: bool = False
    final_norm: bool = True
    position_offset: Count = 0
    num_prediction_layers: Count = 0

    @model_serializer(mode="wrap")
    def _without_what_it_has_not(self, serialize: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Leaves out what few models have: others are written as they were before there was any."""
        return {key: value for key, value in serialize(self).items() if _USUAL.get(key, ...) != value}

    @staticmethod
    def of(
        spec: ModelSpec,
        *,
        padded_vocab_size: int | None = None,
        hyperparameters: dict[str, Any] | None = None,
    ) -> ModelSection:
        """Returns the section of a model.

        Args:
            spec: The model.
            padded_vocab_size: Rows as allocated; by default padded for no tensor parallelism.
            hyperparameters: What only an executor reads; by default what the model carries along.
        """
        extra = {
            "fingerprint": serial.fingerprint(spec),
            "num_params": num_params(spec),
            "num_active_params": num_active_params(spec),
            "padded_vocab_size": padded_vocab_size or pad_vocab(spec.vocab_size, tp=1),
            "hyperparameters": dict(spec.hyperparameters if hyperparameters is None else hyperparameters),
        }
        return ModelSection.model_validate(serial.to_dict(spec) | extra)

    def to_spec(self) -> ModelSpec:
        """Returns the model.

        Raises:
            InputError: Numbers contradict each other, or a layer is of a kind that does not exist.
        """
        data = self.model_dump(mode="json", exclude=_NOT_IN_SPEC, exclude_none=True)
        return serial.from_dict(data)


_USUAL: dict[str, object] = {
    "embedding_size": None,
    "embedding_norm": False,
    "final_norm": True,
    "position_offset": 0,
    "num_prediction_layers": 0,
}
_RARE = {"post_norm", "parallel"}
_NOT_IN_SPEC = {"fingerprint", "num_params", "num_active_params", "padded_vocab_size"}
