"""Rotary positions (Su et al. 2021, RoFormer, arXiv 2104.09864) and three ways to stretch them.

``linear`` divides positions by a factor (Chen et al. 2023, arXiv 2306.15595); ``llama3`` divides low
frequencies only (Llama 3.1); ``yarn`` blends by frequency and scales attention (Peng et al. 2023, arXiv
2309.00071). Both forms of a configuration are read: ``rope_theta`` with ``rope_scaling``, and
``rope_parameters``. Types whose frequencies depend on the length of what is read (``dynamic``, ``longrope``)
are refused: a training run has one length, and would train something else than it says.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from tangram.errors import InputError

_TYPES = ("default", "linear", "llama3", "yarn")
_NEEDED = {
    "default": (),
    "linear": ("factor",),
    "llama3": ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"),
    "yarn": ("factor",),
}


@dataclass(frozen=True, slots=True)
class Rope:
    """Rotary positions.

    Attributes:
        theta: Base of the frequencies.
        kind: ``default``, ``linear``, ``llama3`` or ``yarn``.
        values: The numbers of the kind, by their Hugging Face names.
    """

    theta: float
    kind: str = "default"
    values: tuple[tuple[str, Any], ...] = ()

    def tables(self, positions: Any, head_dim: int, dtype: Any) -> tuple[Any, Any]:
        """Returns cosines and sines, each ``(tokens, head_dim)``; both halves of a head are alike."""
        rates, scale = self._rates(head_dim)
        angles = torch.outer(positions.float(), rates.to(positions.device))
        both = torch.cat((angles, angles), dim=-1)
        return (both.cos() * scale).to(dtype), (both.sin() * scale).to(dtype)

    def _rates(self, head_dim: int) -> tuple[Any, float]:
        """Angle per position of each pair, in fp32, and the factor of cosines and sines."""
        rates = 1.0 / self.theta ** (torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim)
        values = dict(self.values)
        if self.kind == "linear":
            return rates / values["factor"], 1.0
        if self.kind == "llama3":
            return _llama3(rates, values), 1.0
        if self.kind == "yarn":
            return _yarn(rates, values, self.theta), _yarn_scale(values)
        return rates, 1.0


def parse_rope(values: Mapping[str, Any], theta_if_absent: float, max_positions: int) -> Rope:
    """Reads rotary positions from a model's hyperparameters.

    Raises:
        InputError: The type is not supported, or a number of it is missing.
    """
    key = "rope_parameters" if values.get("rope_parameters") else "rope_scaling"
    where = f"model.hyperparameters.{key}"
    found = values.get(key) or {}
    if not isinstance(found, Mapping):
        raise InputError(f"is {found!r}, but must be an object", where=where)
    kind = found.get("rope_type", found.get("type", "default"))
    if kind not in _TYPES:
        raise InputError(
            f"rotary positions of type {kind!r} are not supported",
            where=where,
            hint=f"legal: {', '.join(_TYPES)}",
        )
    numbers = {"original_max_position_embeddings": max_positions} | dict(found)
    if numbers.get("partial_rotary_factor", values.get("partial_rotary_factor", 1.0)) not in (1, None):
        raise InputError("positions of a part of each head are not supported", where=where)
    needed = [*_NEEDED[kind], *(["original_max_position_embeddings"] if kind == "yarn" else [])]
    for name in needed:
        if isinstance(numbers.get(name), bool) or not isinstance(numbers.get(name), int | float):
            raise InputError(f"{name} is {numbers.get(name)!r}, but {kind} needs a number", where=where)
    theta = found.get("rope_theta") or values.get("rope_theta") or theta_if_absent
    kept = {name: value for name, value in numbers.items() if isinstance(value, bool | int | float)}
    return Rope(float(theta), kind, tuple(sorted(kept.items())))


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
