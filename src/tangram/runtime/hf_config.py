"""The ``config.json`` of a plan's model: what ``transformers`` and Tangram itself read."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from tangram.errors import InputError
from tangram.job import Precision
from tangram.model.hf import CONFIG_NAME, parse_hf_config
from tangram.model.serial import fingerprint
from tangram.model.spec import FeedForwardSpec, ModelSpec, MoeSpec
from tangram.plan.schema import PlanDocument

_CLASSES = {
    "gpt2": "GPT2LMHeadModel",
    "llama": "LlamaForCausalLM",
    "mistral": "MistralForCausalLM",
    "mixtral": "MixtralForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
    "qwen3_moe": "Qwen3MoeForCausalLM",
}
_DTYPES = {Precision.BF16: "bfloat16", Precision.FP16: "float16"}


def check_saveable(plan: PlanDocument) -> None:
    """Makes sure that a model can be written: that its family's configuration says all that it is.

    Models in Tangram's own form may mix what no configuration can tell (other heads in each layer); they can
    be trained, but nobody could read them.

    Raises:
        InputError: It cannot.
    """
    model = plan.model.to_spec()
    try:
        again = parse_hf_config(config_of(plan), name=model.name, where=CONFIG_NAME)
        same = fingerprint(again) == fingerprint(model)
    except InputError:
        same = False
    if not same:
        raise InputError(
            f"no {CONFIG_NAME} of model_type {model.family} describes this model",
            where=model.name,
            hint="run without --save",
        )


def config_of(plan: PlanDocument) -> dict[str, Any]:
    """Returns the configuration of a plan's model, of a family that the runtime has."""
    model = plan.model.to_spec()
    shapes = _gpt2(model) if model.family == "gpt2" else _rotary(model)
    return {
        "architectures": [_CLASSES[model.family]],
        "model_type": model.family,
        **shapes,
        "vocab_size": model.vocab_size,
        "tie_word_embeddings": model.tied_embeddings,
        **plan.model.hyperparameters,
        "torch_dtype": _DTYPES.get(plan.job.precision, "float32"),
    }


def _gpt2(model: ModelSpec) -> dict[str, Any]:
    layer = model.layers[0]
    assert isinstance(layer.feed_forward, FeedForwardSpec)
    return {
        "n_layer": model.num_layers,
        "n_embd": model.hidden_size,
        "n_head": layer.attention.num_heads,
        "n_inner": layer.feed_forward.intermediate_size,
        "n_positions": model.max_positions,
        # What a file leaves out means 0.1 to the family's class; to the runtime it means none.
        "attn_pdrop": 0.0,
        "embd_pdrop": 0.0,
        "resid_pdrop": 0.0,
    }


def _rotary(model: ModelSpec) -> dict[str, Any]:
    attention = model.layers[0].attention
    common = {
        "num_hidden_layers": model.num_layers,
        "hidden_size": model.hidden_size,
        "num_attention_heads": attention.num_heads,
        "num_key_value_heads": attention.num_kv_heads,
        "head_dim": attention.head_dim,
        "max_position_embeddings": model.max_positions,
    }
    return common | _OF_FAMILY[model.family](model)


def _llama(model: ModelSpec) -> dict[str, Any]:
    block = model.layers[0].feed_forward
    assert isinstance(block, FeedForwardSpec)
    bias = model.layers[0].attention.qkv_bias
    return {"intermediate_size": block.intermediate_size, "attention_bias": bias, "mlp_bias": block.bias}


def _mistral(model: ModelSpec) -> dict[str, Any]:
    block = model.layers[0].feed_forward
    assert isinstance(block, FeedForwardSpec)
    window = model.layers[0].attention.window
    return {"intermediate_size": block.intermediate_size, "sliding_window": window}


def _mixtral(model: ModelSpec) -> dict[str, Any]:
    moe = model.layers[0].moe
    assert moe is not None
    return _experts(moe, "num_local_experts", "intermediate_size") | {
        "sliding_window": model.layers[0].attention.window
    }


def _qwen(model: ModelSpec) -> dict[str, Any]:
    block = model.layers[0].feed_forward
    assert isinstance(block, FeedForwardSpec)
    return {"intermediate_size": block.intermediate_size} | _windows(model)


def _qwen3(model: ModelSpec) -> dict[str, Any]:
    return _qwen(model) | {"attention_bias": model.layers[0].attention.qkv_bias}


def _qwen3_moe(model: ModelSpec) -> dict[str, Any]:
    dense = [idx for idx, layer in enumerate(model.layers) if layer.moe is None]
    found: dict[str, Any] = {"decoder_sparse_step": 1, "mlp_only_layers": dense}
    for layer in model.distinct_layers:
        if layer.moe is not None:
            found |= _experts(layer.moe, "num_experts", "moe_intermediate_size")
        elif isinstance(layer.feed_forward, FeedForwardSpec):
            found["intermediate_size"] = layer.feed_forward.intermediate_size
    return found | _windows(model) | {"attention_bias": model.layers[0].attention.qkv_bias}


def _experts(moe: MoeSpec, count_key: str, width_key: str) -> dict[str, Any]:
    return {
        count_key: moe.num_experts,
        "num_experts_per_tok": moe.top_k,
        width_key: moe.expert.intermediate_size,
    }


def _windows(model: ModelSpec) -> dict[str, Any]:
    """Qwen's families say which layers have the window."""
    windows = [layer.attention.window for layer in model.layers]
    window = next((size for size in windows if size is not None), None)
    if window is None:
        return {"use_sliding_window": False}
    kinds = ["full_attention" if size is None else "sliding_attention" for size in windows]
    return {"use_sliding_window": True, "sliding_window": window, "layer_types": kinds}


_OF_FAMILY: Mapping[str, Callable[[ModelSpec], dict[str, Any]]] = {
    "llama": _llama,
    "mistral": _mistral,
    "mixtral": _mixtral,
    "qwen2": _qwen,
    "qwen3": _qwen3,
    "qwen3_moe": _qwen3_moe,
}
