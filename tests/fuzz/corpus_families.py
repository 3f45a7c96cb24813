"""Malformed configurations of single families, models nested or of our own form, and indices of weights."""

from __future__ import annotations

from typing import Any

from corpus_models import LLAMA, config, file, kind, own
from malformed import Malformed, to_text

QWEN2: dict[str, Any] = LLAMA | {"model_type": "qwen2"}
OPT: dict[str, Any] = {
    "model_type": "opt",
    "num_hidden_layers": 4,
    "hidden_size": 256,
    "num_attention_heads": 8,
    "ffn_dim": 1024,
    "max_position_embeddings": 512,
    "vocab_size": 1000,
}
GPT_NEO: dict[str, Any] = {
    "model_type": "gpt_neo",
    "num_layers": 4,
    "hidden_size": 256,
    "num_heads": 8,
    "max_position_embeddings": 512,
    "vocab_size": 1000,
}
DEEPSEEK: dict[str, Any] = {
    "model_type": "deepseek_v3",
    "num_hidden_layers": 4,
    "hidden_size": 256,
    "num_attention_heads": 8,
    "q_lora_rank": None,
    "kv_lora_rank": 64,
    "qk_nope_head_dim": 32,
    "qk_rope_head_dim": 16,
    "v_head_dim": 32,
    "intermediate_size": 512,
    "moe_intermediate_size": 128,
    "n_routed_experts": 8,
    "n_shared_experts": 1,
    "num_experts_per_tok": 2,
    "first_k_dense_replace": 1,
    "vocab_size": 1000,
}


def checkpoint(name: str, index: str, *says: str) -> Malformed:
    """A llama in bf16 with an index of weights beside it."""
    files = {"config.json": to_text(LLAMA | {"dtype": "bfloat16"}), "model.safetensors.index.json": index}
    return Malformed(f"model: index: {name}", ("models", "config.json"), says, files)


CASES = (
    config(
        "layer types of another family",
        QWEN2,
        {"layer_types": ["full_attention", "linear_attention"] * 2},
        "config.json: layer_types[1]: is the text 'linear_attention'",
        "legal: full_attention, sliding_attention",
    ),
    config(
        "fewer layer types than layers",
        QWEN2,
        {"layer_types": ["full_attention"]},
        "config.json: layer_types: lists 1 layers, there are 4",
    ),
    config(
        "windows that are not in use",
        QWEN2,
        {"layer_types": ["sliding_attention"] * 4, "sliding_window": 64},
        "config.json: layer_types: lists sliding_attention, but no window is in use",
        "give sliding_window",
    ),
    config(
        "heads for keys absent, and not the default's",
        QWEN2,
        {"num_key_value_heads": ...},
        "config.json: num_key_value_heads: 32 does not divide num_attention_heads 8",
        "without the key there are 32",
    ),
    config(
        "a window of nothing",
        LLAMA | {"model_type": "mistral"},
        {"sliding_window": 0},
        "config.json: sliding_window: 0 is out of range",
    ),
    config(
        "patterns for more layers",
        GPT_NEO,
        {"attention_types": [[["global", "local"], 3]]},
        "config.json: attention_types: lists 6 layers, there are 4",
    ),
    config(
        "a pattern a billion times",
        GPT_NEO,
        {"attention_types": [[["global"], 10**9]]},
        "config.json: attention_types: repeats a pattern 1000000000 times",
        "legal: 0 to 4",
    ),
    config(
        "a pattern of numbers",
        GPT_NEO,
        {"attention_types": [[[1], 4]]},
        "config.json: attention_types: holds 1",
        "legal: global, local",
    ),
    config(
        "norms without parameters",
        OPT,
        {"layer_norm_elementwise_affine": False},
        "config.json: layer_norm_elementwise_affine: must be true",
    ),
    config(
        "two names for one width",
        OPT,
        {"d_model": 512},
        "config.json: hidden_size is 256 and d_model is 512: they mean the same",
    ),
    config(
        "heads that do not divide",
        OPT,
        {"num_attention_heads": 7},
        "config.json: hidden_size: 256 is no multiple of num_attention_heads 7",
    ),
    config(
        "rank of queries missing, not null",
        DEEPSEEK,
        {"q_lora_rank": ...},
        "config.json: the key 'q_lora_rank' is missing; a deepseek_v3 configuration needs it",
    ),
    config(
        "latent attention with biases",
        DEEPSEEK,
        {"attention_bias": True},
        "config.json: attention_bias: must be false: latent attention with biases is not supported",
    ),
    config(
        "more layers for prediction than there may be",
        DEEPSEEK,
        {"num_nextn_predict_layers": -1},
        "config.json: num_nextn_predict_layers: -1 is out of range",
    ),
    config(
        "sees both ways",
        LLAMA | {"model_type": "gemma2"},
        {"use_bidirectional_attention": True},
        "config.json: use_bidirectional_attention: must be false: only decoders are supported",
    ),
    file(
        "text_config: a list",
        to_text({"model_type": "gemma3", "text_config": []}),
        "config.json: text_config: is a list, but must be an object",
    ),
    file(
        "text_config: of no type that is read",
        to_text({"model_type": "x", "text_config": LLAMA | {"model_type": "phi"}}),
        "config.json: text_config: unknown model_type 'phi'",
        "or describe the model in Tangram's own form",
    ),
    own(
        "more layers for prediction than others",
        {"num_prediction_layers": 2},
        "num_prediction_layers: 2 is out",
    ),
    own("an embedding of no width", {"embedding_size": 0}, "config.json: embedding_size: 0 is out of range"),
    own("a final norm that is a text", {"final_norm": "no"}, "config.json: final_norm: is the text 'no'"),
    own("kinds misspelled", {"layer_kinds": ..., "layer_kind": []}, "'layer_kind' is no key of a model"),
    kind(
        "blocks that are parallel by a number", {"parallel": 1}, "parallel: is 1, but must be true or false"
    ),
    checkpoint(
        "of another model",
        to_text({"metadata": {"total_size": 10**9}}),
        "model.safetensors.index.json: the checkpoint holds 500,000,000 elements",
        "a key of the configuration is wrong or missing",
    ),
    checkpoint(
        "a size that is a text",
        to_text({"metadata": {"total_size": "1 GB"}}),
        "model.safetensors.index.json: metadata.total_size: is no number of bytes",
    ),
    checkpoint("broken", "{", "model.safetensors.index.json:1:", "broken JSON"),
)
