"""A small configuration of every supported family, with nothing but what its reader needs."""

from __future__ import annotations

import pytest

from tangram.errors import InputError
from tangram.model.hf import parse_hf_config
from tangram.model.spec import LayerSpec, ModelSpec, MoeSpec

LLAMA = {
    "model_type": "llama",
    "num_hidden_layers": 4,
    "hidden_size": 64,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "intermediate_size": 96,
    "vocab_size": 1000,
    "max_position_embeddings": 512,
}
GPT2 = {"model_type": "gpt2", "n_layer": 3, "n_embd": 64, "n_head": 4, "n_positions": 128, "vocab_size": 500}
MIXTRAL = {**LLAMA, "model_type": "mixtral", "num_local_experts": 8, "num_experts_per_tok": 2}
QWEN3_MOE = {
    **LLAMA,
    "model_type": "qwen3_moe",
    "head_dim": 16,
    "num_experts": 16,
    "num_experts_per_tok": 4,
    "moe_intermediate_size": 24,
}
MISTRAL = {**LLAMA, "model_type": "mistral"}
QWEN2 = {**LLAMA, "model_type": "qwen2"}
QWEN3 = {**LLAMA, "model_type": "qwen3", "head_dim": 16}
GEMMA = {**LLAMA, "model_type": "gemma", "head_dim": 16}
GEMMA2 = {**GEMMA, "model_type": "gemma2"}
GEMMA3 = {**GEMMA, "model_type": "gemma3_text"}
DEEPSEEK = {
    "model_type": "deepseek_v3",
    "num_hidden_layers": 4,
    "hidden_size": 64,
    "num_attention_heads": 8,
    "q_lora_rank": 24,
    "kv_lora_rank": 16,
    "qk_nope_head_dim": 8,
    "qk_rope_head_dim": 4,
    "v_head_dim": 6,
    "intermediate_size": 96,
    "moe_intermediate_size": 20,
    "n_routed_experts": 16,
    "n_shared_experts": 2,
    "num_experts_per_tok": 4,
    "first_k_dense_replace": 1,
    "vocab_size": 1000,
    "max_position_embeddings": 512,
}
GPT_NEO = {
    "model_type": "gpt_neo",
    "num_layers": 4,
    "hidden_size": 64,
    "num_heads": 4,
    "max_position_embeddings": 128,
    "vocab_size": 500,
}
GPT_NEOX = {
    "model_type": "gpt_neox",
    "num_hidden_layers": 3,
    "hidden_size": 64,
    "num_attention_heads": 4,
    "intermediate_size": 200,
    "vocab_size": 500,
}
BLOOM = {
    "model_type": "bloom",
    "n_layer": 3,
    "hidden_size": 64,
    "num_attention_heads": 4,
    "vocab_size": 500,
}
OPT = {
    "model_type": "opt",
    "num_hidden_layers": 3,
    "hidden_size": 64,
    "num_attention_heads": 4,
    "ffn_dim": 256,
    "max_position_embeddings": 128,
    "vocab_size": 500,
}
ALL: dict[str, dict[str, object]] = {
    "bloom": BLOOM,
    "deepseek_v2": {**DEEPSEEK, "model_type": "deepseek_v2"},
    "deepseek_v3": DEEPSEEK,
    "gemma": GEMMA,
    "gemma2": GEMMA2,
    "gemma3_text": GEMMA3,
    "gpt2": GPT2,
    "gpt_neo": GPT_NEO,
    "gpt_neox": GPT_NEOX,
    "llama": LLAMA,
    "mistral": MISTRAL,
    "mixtral": MIXTRAL,
    "opt": OPT,
    "qwen2": QWEN2,
    "qwen3": QWEN3,
    "qwen3_moe": QWEN3_MOE,
}
MAY_BE_MISSING: dict[str, set[str]] = {
    "qwen3_moe": {"intermediate_size"},
    "gemma3_text": {"num_attention_heads", "vocab_size"},
}
"""Keys of a configuration above that its reader can do without, besides those that no reader needs."""
NEVER_NEEDED = {"model_type", "num_key_value_heads", "head_dim"}


def parse(config: dict[str, object], **changes: object) -> ModelSpec:
    return parse_hf_config({**config, **changes}, name="m", where="config.json")


def without(config: dict[str, object], *keys: str) -> dict[str, object]:
    return {key: value for key, value in config.items() if key not in keys}


def refusal(config: dict[str, object], **changes: object) -> str:
    with pytest.raises(InputError) as caught:
        parse(config, **changes)
    message = str(caught.value)
    assert message.startswith("config.json")
    return message.removeprefix("config.json: ")


def moe_of(layer: LayerSpec) -> MoeSpec:
    assert layer.moe is not None
    return layer.moe


def windows(model: ModelSpec) -> list[int | None]:
    return [layer.attention.window for layer in model.layers]
