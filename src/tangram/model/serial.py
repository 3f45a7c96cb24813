"""A model as plain data and back, without loss: what a plan document and a preset file hold.

Equal layers are written once: ``layer_kinds`` lists the kinds, ``layers`` the kind of each layer.

    {"name": "tiny", ..., "layers": [0, 0],
     "layer_kinds": [{"norm": "rmsnorm", "attention": {...}, "feed_forward": {...}}]}

A kind has either ``feed_forward`` or ``moe``. What few models have is written only where they have it:
``attention.latent``, ``attention.window``, ``moe.shared``, a kind's ``post_norm`` and ``parallel``, and the
model's ``embedding_size``, ``embedding_norm``, ``final_norm``, ``position_offset`` and
``num_prediction_layers``. docs/models.md explains the keys. ``hyperparameters``, which planning never reads,
are read but not written: the plan document holds them beside the model.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping

from tangram.errors import InputError
from tangram.model import fields as limits
from tangram.model.fields import Fields, describe, nested
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

_MODEL_KEYS = (
    "name",
    "family",
    "source",
    "hidden_size",
    "vocab_size",
    "norm",
    "position",
    "max_positions",
    "tied_embeddings",
    "layer_kinds",
    "layers",
    "embedding_size",
    "embedding_norm",
    "final_norm",
    "position_offset",
    "num_prediction_layers",
    "hyperparameters",
)
_KINDS_HINT = "a list with the different layers; docs/models.md explains a kind's keys"
_LAYERS_HINT = "for each layer, first to last, the number of its kind in layer_kinds: [0, 0, 1]"
_LAYER_KEYS = ("norm", "attention", "feed_forward", "moe", "post_norm", "parallel")
_ATTENTION_KEYS = ("num_heads", "num_kv_heads", "head_dim", "qkv_bias", "out_bias", "qk_norm")
_LATENT_KEYS = ("q_rank", "kv_rank", "nope_dim", "rope_dim", "value_dim")
_FEED_FORWARD_KEYS = ("intermediate_size", "gated", "bias")
_MOE_KEYS = ("num_experts", "top_k", "expert")


def to_dict(model: ModelSpec) -> dict[str, object]:
    """Returns the model as JSON-ready data; :func:`from_dict` gives the equal model back."""
    kinds: dict[LayerSpec, int] = {}
    layers = [kinds.setdefault(layer, len(kinds)) for layer in model.layers]
    data: dict[str, object] = {
        "name": model.name,
        "family": model.family,
        "source": model.source,
        "hidden_size": model.hidden_size,
        "vocab_size": model.vocab_size,
        "norm": model.norm.value,
        "position": model.position.value,
        "max_positions": model.max_positions,
        "tied_embeddings": model.tied_embeddings,
        "layer_kinds": [_layer_dict(layer) for layer in kinds],
        "layers": layers,
    }
    if model.embedding_size is not None:
        data["embedding_size"] = model.embedding_size
    if model.embedding_norm:
        data["embedding_norm"] = True
    if not model.final_norm:
        data["final_norm"] = False
    if model.position_offset:
        data["position_offset"] = model.position_offset
    if model.num_prediction_layers:
        data["num_prediction_layers"] = model.num_prediction_layers
    return data


def from_dict(data: Mapping[str, object], *, where: str = "model") -> ModelSpec:
    """Builds a model from the data of :func:`to_dict`.

    Args:
        data: The data.
        where: The place it comes from, for messages.

    Raises:
        InputError: A key is missing or unknown, or a value has the wrong type, is out of range or contradicts
            another.
    """
    values = nested(data, where=where, keys=_MODEL_KEYS, kind="a model")
    found = data.get("layer_kinds")
    if "layer_kinds" not in data:
        raise InputError("the key 'layer_kinds' is missing", where=where, hint=_KINDS_HINT)
    if not isinstance(found, list) or not found:
        raise InputError(
            f"is {describe(found)}, but must be a list with a kind", where=values.place("layer_kinds")
        )
    kinds = [_layer(kind, f"{where}: layer_kinds[{i}]") for i, kind in enumerate(found)]
    if "layers" not in data:
        raise InputError("the key 'layers' is missing", where=where, hint=_LAYERS_HINT)
    idxs = values.integers("layers", len(kinds) - 1)
    if not 1 <= len(idxs) <= limits.MAX_LAYERS:
        raise InputError(
            f"lists {len(idxs)} layers", where=values.place("layers"), hint=f"legal: 1 to {limits.MAX_LAYERS}"
        )
    return ModelSpec(
        name=values.text("name"),
        family=values.text("family"),
        hidden_size=values.integer("hidden_size", limits.MAX_WIDTH),
        vocab_size=values.integer("vocab_size", limits.MAX_VOCAB),
        layers=tuple(kinds[i] for i in idxs),
        norm=NormKind(values.choice("norm", NormKind)),
        position=PositionKind(values.choice("position", PositionKind)),
        max_positions=values.integer("max_positions", limits.MAX_POSITIONS),
        tied_embeddings=values.boolean("tied_embeddings"),
        source=values.text("source"),
        embedding_size=values.optional_integer("embedding_size", limits.MAX_WIDTH),
        embedding_norm=values.boolean("embedding_norm", default=False),
        final_norm=values.boolean("final_norm", default=True),
        position_offset=values.optional_integer("position_offset", limits.MAX_POSITIONS, low=0) or 0,
        num_prediction_layers=values.optional_integer("num_prediction_layers", len(idxs) - 1, low=0) or 0,
        hyperparameters=_hyperparameters(values),
    )


def fingerprint(model: ModelSpec) -> str:
    """Returns 16 hexadecimal digits, equal for models of equal content, whatever their name and source."""
    content = {key: value for key, value in to_dict(model).items() if key not in ("name", "source")}
    text = json.dumps(content, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _hyperparameters(values: Fields) -> dict[str, object]:
    found = values.values.get("hyperparameters", {})
    if not isinstance(found, Mapping):
        raise InputError(
            f"is {describe(found)}, but must be an object", where=values.place("hyperparameters")
        )
    return dict(found)


def _layer_dict(layer: LayerSpec) -> dict[str, object]:
    attention: dict[str, object] = {key: getattr(layer.attention, key) for key in _ATTENTION_KEYS}
    latent = layer.attention.latent
    if latent is not None:
        attention["latent"] = {key: getattr(latent, key) for key in _LATENT_KEYS}
    if layer.attention.window is not None:
        attention["window"] = layer.attention.window
    data: dict[str, object] = {"norm": layer.norm.value, "attention": attention}
    data |= {key: True for key in ("post_norm", "parallel") if getattr(layer, key)}
    block = layer.feed_forward
    if isinstance(block, FeedForwardSpec):
        return data | {"feed_forward": _feed_forward_dict(block)}
    moe: dict[str, object] = {"num_experts": block.num_experts, "top_k": block.top_k}
    moe["expert"] = _feed_forward_dict(block.expert)
    if block.shared is not None:
        moe["shared"] = _feed_forward_dict(block.shared)
    return data | {"moe": moe}


def _feed_forward_dict(block: FeedForwardSpec) -> dict[str, object]:
    return {key: getattr(block, key) for key in _FEED_FORWARD_KEYS}


def _layer(data: object, where: str) -> LayerSpec:
    values = nested(data, where=where, keys=_LAYER_KEYS, kind="a layer kind")
    moe_here, dense_here = (values.values.get(key) is not None for key in ("moe", "feed_forward"))
    if moe_here == dense_here:
        raise InputError("must have either 'feed_forward' or 'moe'", where=where)
    return LayerSpec(
        attention=_attention(
            values.section("attention", (*_ATTENTION_KEYS, "latent", "window"), "attention")
        ),
        feed_forward=_moe(values) if moe_here else _feed_forward(values, "feed_forward"),
        norm=NormKind(values.choice("norm", NormKind)),
        post_norm=values.boolean("post_norm", default=False),
        parallel=values.boolean("parallel", default=False),
    )


def _attention(values: Fields) -> AttentionSpec:
    num_heads = values.integer("num_heads", limits.MAX_HEADS)
    num_kv_heads = values.integer("num_kv_heads", limits.MAX_HEADS)
    if num_heads % num_kv_heads:
        raise InputError(
            f"{num_kv_heads} does not divide num_heads {num_heads}", where=values.place("num_kv_heads")
        )
    head_dim = values.integer("head_dim", limits.MAX_WIDTH)
    return AttentionSpec(
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        qkv_bias=values.boolean("qkv_bias"),
        out_bias=values.boolean("out_bias"),
        qk_norm=values.boolean("qk_norm"),
        latent=_latent(values, head_dim),
        window=values.optional_integer("window", limits.MAX_POSITIONS),
    )


def _latent(outer: Fields, head_dim: int) -> LatentSpec | None:
    if outer.values.get("latent") is None:
        return None
    values = outer.section("latent", _LATENT_KEYS, "latent attention")
    direct = values.values.get("q_rank") is None
    latent = LatentSpec(
        q_rank=None if direct else values.integer("q_rank", limits.MAX_WIDTH),
        kv_rank=values.integer("kv_rank", limits.MAX_WIDTH),
        nope_dim=values.integer("nope_dim", limits.MAX_WIDTH),
        rope_dim=values.integer("rope_dim", limits.MAX_WIDTH),
        value_dim=values.integer("value_dim", limits.MAX_WIDTH),
    )
    if latent.nope_dim + latent.rope_dim != head_dim:
        raise InputError(
            f"nope_dim {latent.nope_dim} and rope_dim {latent.rope_dim} do not sum to head_dim {head_dim}",
            where=values.place("nope_dim"),
        )
    return latent


def _feed_forward(outer: Fields, key: str) -> FeedForwardSpec:
    values = outer.section(key, _FEED_FORWARD_KEYS, "a feed-forward block")
    return FeedForwardSpec(
        intermediate_size=values.integer("intermediate_size", limits.MAX_FEED_FORWARD),
        gated=values.boolean("gated"),
        bias=values.boolean("bias"),
    )


def _moe(outer: Fields) -> MoeSpec:
    values = outer.section("moe", (*_MOE_KEYS, "shared"), "a mixture of experts")
    num_experts = values.integer("num_experts", limits.MAX_EXPERTS)
    top_k = values.integer("top_k", limits.MAX_EXPERTS)
    if top_k > num_experts:
        raise InputError(f"{top_k} is more than {num_experts} experts", where=values.place("top_k"))
    has_shared = values.values.get("shared") is not None
    shared = _feed_forward(values, "shared") if has_shared else None
    return MoeSpec(num_experts, top_k, _feed_forward(values, "expert"), shared)
