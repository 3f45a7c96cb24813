"""Which rotary positions a model has (Su et al. 2021, RoFormer, arXiv 2104.09864), and how they stretch.

``linear`` divides positions by a factor (Chen et al. 2023, arXiv 2306.15595); ``llama3`` divides low
frequencies only (Llama 3.1); ``yarn`` blends by frequency and scales attention (Peng et al. 2023, arXiv
2309.00071). Both forms of a configuration are read: ``rope_theta`` with ``rope_scaling``, and
``rope_parameters``. Types whose frequencies depend on the length of what is read (``dynamic``, ``longrope``)
are refused: a training run has one length, and would train something else than it says.

No torch: models are refused before anything starts.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

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
