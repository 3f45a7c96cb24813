"""Which reader serves which ``model_type``, and the keys that it knows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from tangram.model.families import experts, gemma, gpt, llama
from tangram.model.families.common import Reader


class Family(NamedTuple):
    """A family of configurations.

    Attributes:
        keys: All keys that its reader reads.
        read: The reader.
    """

    keys: tuple[str, ...]
    read: Reader


FAMILIES: Mapping[str, Family] = {
    "bloom": Family(gpt.BLOOM_KEYS, gpt.read_bloom),
    "deepseek_v2": Family(experts.DEEPSEEK_KEYS, experts.read_deepseek),
    "deepseek_v3": Family(experts.DEEPSEEK_KEYS, experts.read_deepseek),
    "gemma": Family(gemma.GEMMA_KEYS, gemma.read_gemma),
    "gemma2": Family(gemma.GEMMA2_KEYS, gemma.read_gemma2),
    "gemma3_text": Family(gemma.GEMMA3_KEYS, gemma.read_gemma3),
    "gpt2": Family(gpt.GPT2_KEYS, gpt.read_gpt2),
    "gpt_neo": Family(gpt.GPT_NEO_KEYS, gpt.read_gpt_neo),
    "gpt_neox": Family(gpt.GPT_NEOX_KEYS, gpt.read_gpt_neox),
    "llama": Family(llama.LLAMA_KEYS, llama.read_llama),
    "mistral": Family(llama.MISTRAL_KEYS, llama.read_mistral),
    "mixtral": Family(experts.MIXTRAL_KEYS, experts.read_mixtral),
    "opt": Family(gpt.OPT_KEYS, gpt.read_opt),
    "qwen2": Family(llama.QWEN2_KEYS, llama.read_qwen2),
    "qwen3": Family(llama.QWEN3_KEYS, llama.read_qwen3),
    "qwen3_moe": Family(experts.QWEN3_MOE_KEYS, experts.read_qwen3_moe),
}

NESTED_TYPES: Mapping[str, str] = {"gemma3": "gemma3_text"}
"""What the language model of a multimodal type is where its ``text_config`` does not say."""
