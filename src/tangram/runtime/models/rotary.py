"""Angles of rotary positions, as :mod:`tangram.runtime.models.rope` says them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch

from tangram.runtime.models.rope import Rope


def rotary_tables(rope: Rope, positions: Any, head_dim: int, dtype: Any) -> tuple[Any, Any]:
    """Returns cosines and sines, each ``(tokens, head_dim)``; both halves of a head are alike."""
    rates, scale = _rates(rope, head_dim)
    angles = torch.outer(positions.float(), rates.to(positions.device))
    both = torch.cat((angles, angles), dim=-1)
    return (both.cos() * scale).to(dtype), (both.sin() * scale).to(dtype)


def _rates(rope: Rope, head_dim: int) -> tuple[Any, float]:
    """Angle per position of each pair, in fp32, and the factor of cosines and sines."""
    rates = 1.0 / rope.theta ** (torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim)
    values = dict(rope.values)
    if rope.kind == "linear":
        return rates / values["factor"], 1.0
    if rope.kind == "llama3":
        return _llama3(rates, values), 1.0
    if rope.kind == "yarn":
        return _yarn(rates, values, rope.theta), _yarn_scale(values)
    return rates, 1.0


def _llama3(rates: Any, values: Mapping[str, float]) -> Any:
    """Wavelengths above one bound are stretched, those below another stay, those between are blended."""
    length, factor = values["original_max_position_embeddings"], values["factor"]
    low, high = values["low_freq_factor"], values["high_freq_factor"]
    turns = length * rates / (2 * math.pi)  # over the length that the model was trained on
    blend = ((turns - low) / (high - low)).clamp(0.0, 1.0)
    return (1.0 - blend) * rates / factor + blend * rates


def _yarn(rates: Any, values: Mapping[str, Any], theta: float) -> Any:
    """Pairs that turn often over the trained length stay, those that turn seldom are stretched."""
    pairs = len(rates)
    length = values["original_max_position_embeddings"]

    def pair_of(turns: float) -> float:
        return 2 * pairs * math.log(length / (turns * 2 * math.pi)) / (2 * math.log(theta))

    low, high = pair_of(values.get("beta_fast") or 32), pair_of(values.get("beta_slow") or 1)
    if values.get("truncate", True):
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, 2 * pairs - 1)
    width = high - low or 0.001
    stretched = ((torch.arange(pairs, dtype=torch.float32) - low) / width).clamp(0.0, 1.0)
    return stretched * rates / values["factor"] + (1.0 - stretched) * rates


def _yarn_scale(values: Mapping[str, Any]) -> float:
    """``attention_factor``; by default 0.1 ln(factor) + 1, or a ratio of two of those with ``mscale``."""

    def scale(weight: float) -> float:
        return 1.0 if values["factor"] <= 1 else 0.1 * weight * math.log(values["factor"]) + 1.0

    if values.get("attention_factor") is not None:
        return float(values["attention_factor"])
    if values.get("mscale") and values.get("mscale_all_dim"):
        return scale(values["mscale"]) / scale(values["mscale_all_dim"])
    return scale(1.0)
