"""The model as the plan holds it: a complete :class:`~tangram.model.spec.ModelSpec`, and its sizes."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from tangram.errors import InputError
from tangram.model.spec import (
    AttentionSpec,
    FeedForwardSpec,
    LayerSpec,
    ModelSpec,
    MoeSpec,
    NormKind,
    PositionKind,
)
from tangram.plan.section import Count, Positive, Section


class AttentionSection(Section):
    """Attention of a layer kind; the fields are those of :class:`~tangram.model.spec.AttentionSpec`."""

    num_heads: Positive
    num_kv_heads: Positive
    head_dim: Positive
    qkv_bias: bool
    out_bias: bool
    qk_norm: bool


class FeedForwardSection(Section):
    """A dense feed-forward block, or one expert.

    Attributes:
        kind: ``dense``.
        intermediate_size: Width between up and down projection.
        gated: Whether there is a gate projection beside the up projection.
        bias: Whether the projections have biases.
    """

    kind: Literal["dense"] = "dense"
    intermediate_size: Positive
    gated: bool
    bias: bool


class MoeSection(Section):
    """A mixture of experts.

    Attributes:
        kind: ``moe``.
        num_experts: Routed experts.
        top_k: Experts per token.
        expert: One expert.
    """

    kind: Literal["moe"] = "moe"
    num_experts: Positive
    top_k: Positive
    expert: FeedForwardSection


class LayerKind(Section):
    """What equal layers have in common.

    Attributes:
        attention: Attention.
        feed_forward: Dense block or mixture of experts, told apart by ``kind``.
        norm: ``rmsnorm`` or ``layernorm``.
    """

    attention: AttentionSection
    feed_forward: Annotated[FeedForwardSection | MoeSection, Field(discriminator="kind")]
    norm: NormKind


class ModelSection(Section):
    """The whole model: layer ``i`` is ``layer_kinds[layers[i]]``.

    Attributes:
        name: Preset name, or the name of the folder or file it was read from.
        family: Hugging Face ``model_type``.
        fingerprint: Equal for models of equal shapes, whatever their names.
        num_params: Parameters, without vocabulary padding.
        num_active_params: Parameters that one token uses.
        hidden_size: Width of the residual stream.
        vocab_size: Rows of the token embedding, before padding.
        padded_vocab_size: Rows of the embedding and of the head as they are allocated, the same on all
            stages.
        norm: Kind of the final norm.
        position: ``rotary`` or ``learned``.
        max_positions: Rows of the position table when learned, else the longest sequence the model is made
            for.
        tied_embeddings: Whether the head uses the embedding's matrix.
        layer_kinds: Different layers.
        layers: Index into ``layer_kinds``, one per transformer layer, first to last.
        hyperparameters: What shapes do not tell and an executor may want, by its Hugging Face name
            (``rope_theta``, ``rms_norm_eps``, ``hidden_act``...); planning never reads it.
        source: Where the numbers come from.
    """

    name: str
    family: str
    fingerprint: str
    num_params: Count
    num_active_params: Count
    hidden_size: Positive
    vocab_size: Positive
    padded_vocab_size: Positive
    norm: NormKind
    position: PositionKind
    max_positions: Count
    tied_embeddings: bool
    layer_kinds: list[LayerKind]
    layers: Annotated[list[Count], Field(max_length=100_000)]
    hyperparameters: dict[str, Any] = Field(default_factory=dict)
    source: str = ""

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
            hyperparameters: What only an executor reads.
        """
        from tangram.model import params, serial, vocabulary

        kinds = list(dict.fromkeys(spec.layers))
        index = {kind: idx for idx, kind in enumerate(kinds)}
        return ModelSection(
            name=spec.name,
            family=spec.family,
            fingerprint=serial.fingerprint(spec),
            num_params=params.num_params(spec),
            num_active_params=params.num_active_params(spec),
            hidden_size=spec.hidden_size,
            vocab_size=spec.vocab_size,
            padded_vocab_size=padded_vocab_size or vocabulary.padded_vocab_size(spec.vocab_size, 1),
            norm=spec.norm,
            position=spec.position,
            max_positions=spec.max_positions,
            tied_embeddings=spec.tied_embeddings,
            layer_kinds=[_layer_kind(kind) for kind in kinds],
            layers=[index[layer] for layer in spec.layers],
            hyperparameters=hyperparameters or {},
            source=spec.source,
        )

    def to_spec(self) -> ModelSpec:
        """Returns the model.

        Raises:
            InputError: A layer names a kind that does not exist.
        """
        kinds = [_layer_spec(kind) for kind in self.layer_kinds]
        for idx, kind in enumerate(self.layers):
            if kind >= len(kinds):
                raise InputError(
                    f"layer {idx} is of kind {kind}",
                    where=f"model.layers[{idx}]",
                    hint=f"{len(kinds)} kinds are defined",
                )
        return ModelSpec(
            name=self.name,
            family=self.family,
            hidden_size=self.hidden_size,
            vocab_size=self.vocab_size,
            layers=tuple(kinds[kind] for kind in self.layers),
            norm=self.norm,
            position=self.position,
            max_positions=self.max_positions,
            tied_embeddings=self.tied_embeddings,
            source=self.source,
        )


def _feed_forward(spec: FeedForwardSpec) -> FeedForwardSection:
    return FeedForwardSection(intermediate_size=spec.intermediate_size, gated=spec.gated, bias=spec.bias)


def _layer_kind(layer: LayerSpec) -> LayerKind:
    att, ffn = layer.attention, layer.feed_forward
    block = (
        MoeSection(num_experts=ffn.num_experts, top_k=ffn.top_k, expert=_feed_forward(ffn.expert))
        if isinstance(ffn, MoeSpec)
        else _feed_forward(ffn)
    )
    attention = AttentionSection(
        num_heads=att.num_heads,
        num_kv_heads=att.num_kv_heads,
        head_dim=att.head_dim,
        qkv_bias=att.qkv_bias,
        out_bias=att.out_bias,
        qk_norm=att.qk_norm,
    )
    return LayerKind(attention=attention, feed_forward=block, norm=layer.norm)


def _layer_spec(kind: LayerKind) -> LayerSpec:
    att, ffn = kind.attention, kind.feed_forward
    attention = AttentionSpec(
        att.num_heads, att.num_kv_heads, att.head_dim, att.qkv_bias, att.out_bias, att.qk_norm
    )
    if isinstance(ffn, MoeSection):
        expert = FeedForwardSpec(ffn.expert.intermediate_size, ffn.expert.gated, ffn.expert.bias)
        return LayerSpec(attention, MoeSpec(ffn.num_experts, ffn.top_k, expert), kind.norm)
    return LayerSpec(attention, FeedForwardSpec(ffn.intermediate_size, ffn.gated, ffn.bias), kind.norm)
