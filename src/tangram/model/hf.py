"""Reads a Hugging Face ``config.json`` of model type llama, gpt2, mixtral or qwen3_moe.

JSON only: no code of a model repository is ever run. Keys that do not change a shape (activation, dropout,
``dtype`` or ``torch_dtype``, ``rope_parameters``, quantisation of a checkpoint, sliding windows) are not
read; attention is counted over the whole sequence. Where a key that changes a shape may be missing or null,
it means what the ``transformers`` classes (LlamaConfig, GPT2Config, MixtralConfig, Qwen3MoeConfig) make of
it; the essential ones (layers, widths, heads, vocabulary, experts) must be there.

>>> config = {"model_type": "gpt2", "n_layer": 12, "n_embd": 768, "n_head": 12, "n_positions": 1024}
>>> parse_hf_config(config | {"vocab_size": 50257}, name="gpt2", where="config.json").num_layers
12
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from tangram.errors import InputError, UnknownNameError
from tangram.model import fields as limits
from tangram.model.fields import Fields, describe
from tangram.model.json_file import printable, read_json_object
from tangram.model.spec import (
    AttentionSpec,
    FeedForwardSpec,
    LayerSpec,
    ModelSpec,
    MoeSpec,
    NormKind,
    PositionKind,
)

CONFIG_NAME = "config.json"


@dataclass(frozen=True, slots=True)
class _Identity:
    """Name and source of a model, which are not in the file."""

    name: str
    source: str


def read_hf_config(path: Path) -> ModelSpec:
    """Reads a ``config.json``, or the one of a model folder.

    Raises:
        InputError: The file cannot be read, is not JSON, or does not describe a model that Tangram knows.
    """
    file = config_file(path)
    config = read_json_object(file)
    return parse_hf_config(config, name=model_name(file), where=printable(str(file)))


def config_file(path: Path) -> Path:
    """Returns the file to read: the path itself, or ``config.json`` inside of a folder.

    Raises:
        InputError: The folder has no ``config.json``.
    """
    try:
        is_folder = path.is_dir()
    except (OSError, ValueError):
        return path  # whatever is wrong with it, the reader says
    inside = path / CONFIG_NAME
    if not is_folder:
        return path
    try:
        if inside.exists():
            return inside
    except OSError:
        return inside  # likewise
    raise InputError(
        f"the folder has no {CONFIG_NAME}", where=printable(str(path)), hint="give the folder of one model"
    )


def model_name(file: Path) -> str:
    """Returns the name of a model read from a file: of its folder for a ``config.json``, else of the file.

    In a Hugging Face cache (``models--org--name/snapshots/hash/config.json``) it is the model's name.
    """
    whole = Path(os.path.abspath(file))  # noqa: PTH100  (Path.resolve would follow the cache's links)
    if whole.name != CONFIG_NAME:
        return printable(whole.stem) or "model"
    repository = whole.parent.parent.parent.name
    if whole.parent.parent.name == "snapshots" and repository.startswith("models--"):
        return printable(repository.split("--")[-1]) or "model"
    return printable(whole.parent.name) or "model"


def parse_hf_config(config: Mapping[str, object], *, name: str, where: str, source: str = "") -> ModelSpec:
    """Builds a model from a parsed ``config.json``.

    Args:
        config: The JSON object.
        name: Name of the model.
        where: The file, for messages.
        source: Where the numbers come from; by default the kind of file.

    Raises:
        UnknownNameError: The ``model_type`` is not supported.
        InputError: A needed key is missing, or a value has the wrong type, is out of range or contradicts
            another.
    """
    model_type = config.get("model_type")
    if "text_config" in config:
        raise InputError(
            "the language model is nested in text_config, which is not supported",
            where=where,
            hint="save the text_config object as a file of its own, if its model_type is supported",
        )
    if model_type is None:
        raise InputError(
            "the key 'model_type' is missing", where=where, hint="supported: " + ", ".join(_READERS)
        )
    if not isinstance(model_type, str):
        raise InputError(f"is {describe(model_type)}, but must be text", where=f"{where}: model_type")
    if model_type not in _READERS:
        unknown = UnknownNameError("model_type", model_type[:80], _READERS, where=where)
        if unknown.nearest:
            unknown.hint = f"{unknown.hint} supported: " + ", ".join(_READERS)
        raise unknown
    keys, reader = _READERS[model_type]
    values = Fields(config, where=where, keys=keys, kind=f"a {model_type} configuration")
    for key in ("is_encoder_decoder", "add_cross_attention"):
        if values.boolean(key, default=False):
            raise InputError("must be false: only decoders are supported", where=values.place(key))
    return reader(values, _Identity(name, source or f"{CONFIG_NAME} of model_type {model_type}"))


_SHARED_KEYS = (
    "model_type",
    "vocab_size",
    "tie_word_embeddings",
    "is_encoder_decoder",
    "add_cross_attention",
)
_ROTARY_KEYS = (
    *_SHARED_KEYS,
    "num_hidden_layers",
    "hidden_size",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "intermediate_size",
    "max_position_embeddings",
)
_LLAMA_KEYS = (*_ROTARY_KEYS, "attention_bias", "mlp_bias")
_MIXTRAL_KEYS = (*_ROTARY_KEYS, "num_local_experts", "num_experts", "num_experts_per_tok")
_QWEN3_MOE_KEYS = (
    *_MIXTRAL_KEYS,
    "attention_bias",
    "moe_intermediate_size",
    "decoder_sparse_step",
    "mlp_only_layers",
)
_GPT2_NAMES = {
    "n_layer": "num_hidden_layers",
    "n_embd": "hidden_size",
    "n_head": "num_attention_heads",
    "n_positions": "max_position_embeddings",
}
_GPT2_KEYS = (*_SHARED_KEYS, "n_inner", *_GPT2_NAMES, *_GPT2_NAMES.values())


def _llama(values: Fields, identity: _Identity) -> ModelSpec:
    """Gated feed-forward; ``attention_bias`` covers all four projections."""
    feed_forward = FeedForwardSpec(
        intermediate_size=values.integer("intermediate_size", limits.MAX_FEED_FORWARD),
        gated=True,
        bias=values.boolean("mlp_bias", default=False),
    )
    bias = values.boolean("attention_bias", default=False)
    layer = LayerSpec(_attention(values, kv_if_absent=None, bias=bias), feed_forward, NormKind.RMSNORM)
    layers = (layer,) * values.integer("num_hidden_layers", limits.MAX_LAYERS)
    return _rotary_model(values, identity, layers, max_positions=2048)


def _mixtral(values: Fields, identity: _Identity) -> ModelSpec:
    """Every layer has experts, and ``intermediate_size`` is the width of one expert."""
    moe = _moe(values, _num_experts(values, 1), "intermediate_size")
    layer = LayerSpec(_attention(values, kv_if_absent=8), moe, NormKind.RMSNORM)
    layers = (layer,) * values.integer("num_hidden_layers", limits.MAX_LAYERS)
    return _rotary_model(values, identity, layers, max_positions=131_072)


def _qwen3_moe(values: Fields, identity: _Identity) -> ModelSpec:
    """Layer i has experts when ``decoder_sparse_step`` divides i + 1 and ``mlp_only_layers`` lacks i.

    The width of dense layers (``intermediate_size``) is read only if there are any.
    """
    num_layers = values.integer("num_hidden_layers", limits.MAX_LAYERS)
    step = values.optional_integer("decoder_sparse_step", limits.MAX_LAYERS) or 1
    dense_idxs = frozenset(values.integers("mlp_only_layers", num_layers - 1))
    num_experts = _num_experts(values, 0)
    is_moe = [
        num_experts > 0 and (idx + 1) % step == 0 and idx not in dense_idxs for idx in range(num_layers)
    ]
    bias = values.boolean("attention_bias", default=False)
    attention = _attention(values, kv_if_absent=4, bias=bias, qk_norm=True)
    kinds: dict[bool, LayerSpec] = {}
    if any(is_moe):
        moe = _moe(values, num_experts, "moe_intermediate_size")
        kinds[True] = LayerSpec(attention, moe, NormKind.RMSNORM)
    if not all(is_moe):
        width = values.integer("intermediate_size", limits.MAX_FEED_FORWARD)
        kinds[False] = LayerSpec(attention, FeedForwardSpec(width, gated=True), NormKind.RMSNORM)
    layers = tuple(kinds[moe_here] for moe_here in is_moe)
    return _rotary_model(values, identity, layers, max_positions=32_768)


def _gpt2(values: Fields, identity: _Identity) -> ModelSpec:
    """Biases everywhere, learned positions, two feed-forward matrices; tied by default."""

    def number(key: str, high: int) -> int:
        return values.integer(key, high, aliases=(_GPT2_NAMES[key],))

    hidden = number("n_embd", limits.MAX_WIDTH)
    num_heads = number("n_head", limits.MAX_HEADS)
    if hidden % num_heads:
        raise InputError(
            f"{hidden} is no multiple of n_head {num_heads}",
            where=values.place("n_embd"),
            hint="each head takes an equal share of n_embd",
        )
    attention = AttentionSpec(num_heads, num_heads, hidden // num_heads, qkv_bias=True, out_bias=True)
    width = values.optional_integer("n_inner", limits.MAX_FEED_FORWARD) or 4 * hidden
    layer = LayerSpec(attention, FeedForwardSpec(width, gated=False, bias=True), NormKind.LAYERNORM)
    return ModelSpec(
        name=identity.name,
        family="gpt2",
        hidden_size=hidden,
        vocab_size=values.integer("vocab_size", limits.MAX_VOCAB),
        layers=(layer,) * number("n_layer", limits.MAX_LAYERS),
        norm=NormKind.LAYERNORM,
        position=PositionKind.LEARNED,
        max_positions=number("n_positions", limits.MAX_POSITIONS),
        tied_embeddings=values.boolean("tie_word_embeddings", default=True),
        source=identity.source,
    )


_READERS: dict[str, tuple[tuple[str, ...], Callable[[Fields, _Identity], ModelSpec]]] = {
    "gpt2": (_GPT2_KEYS, _gpt2),
    "llama": (_LLAMA_KEYS, _llama),
    "mixtral": (_MIXTRAL_KEYS, _mixtral),
    "qwen3_moe": (_QWEN3_MOE_KEYS, _qwen3_moe),
}

SUPPORTED_MODEL_TYPES = tuple(_READERS)


def _rotary_model(
    values: Fields, identity: _Identity, layers: tuple[LayerSpec, ...], *, max_positions: int
) -> ModelSpec:
    """The rest of a model with rotary positions; these families are untied unless the file says otherwise."""
    longest = values.optional_integer("max_position_embeddings", limits.MAX_POSITIONS)
    return ModelSpec(
        name=identity.name,
        family=str(values.values["model_type"]),
        hidden_size=values.integer("hidden_size", limits.MAX_WIDTH),
        vocab_size=values.integer("vocab_size", limits.MAX_VOCAB),
        layers=layers,
        norm=NormKind.RMSNORM,
        position=PositionKind.ROTARY,
        max_positions=longest or max_positions,
        tied_embeddings=values.boolean("tie_word_embeddings", default=False),
        source=identity.source,
    )


def _attention(
    values: Fields, *, kv_if_absent: int | None, bias: bool = False, qk_norm: bool = False
) -> AttentionSpec:
    """Key and value heads: null means as many as query heads; a missing key means the class's default."""
    hidden = values.integer("hidden_size", limits.MAX_WIDTH)
    num_heads = values.integer("num_attention_heads", limits.MAX_HEADS)
    num_kv_heads = values.optional_integer("num_key_value_heads", limits.MAX_HEADS)
    if num_kv_heads is None:
        absent = not values.has("num_key_value_heads")
        num_kv_heads = kv_if_absent if absent and kv_if_absent is not None else num_heads
    if num_heads % num_kv_heads:
        raise InputError(
            f"{num_kv_heads} does not divide num_attention_heads {num_heads}",
            where=values.place("num_key_value_heads"),
            hint="each key and value head serves an equal number of query heads",
        )
    head_dim = values.optional_integer("head_dim", limits.MAX_WIDTH)
    if head_dim is None and hidden % num_heads:
        raise InputError(
            f"{hidden} is no multiple of num_attention_heads {num_heads}, and head_dim is not given",
            where=values.place("hidden_size"),
            hint="add head_dim, or correct one of them",
        )
    return AttentionSpec(
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim or hidden // num_heads,
        qkv_bias=bias,
        out_bias=bias,
        qk_norm=qk_norm,
    )


def _num_experts(values: Fields, low: int) -> int:
    """Both spellings occur in files of both families."""
    first, second = "num_local_experts", "num_experts"
    if values.values["model_type"] == "qwen3_moe":
        first, second = second, first
    return values.integer(first, limits.MAX_EXPERTS, low=low, aliases=(second,))


def _moe(values: Fields, num_experts: int, width_key: str) -> MoeSpec:
    top_k = values.integer("num_experts_per_tok", limits.MAX_EXPERTS)
    if top_k > num_experts:
        raise InputError(
            f"{top_k} is more than the {num_experts} experts there are",
            where=values.place("num_experts_per_tok"),
        )
    width = values.integer(width_key, limits.MAX_FEED_FORWARD)
    return MoeSpec(num_experts, top_k, FeedForwardSpec(width, gated=True))
