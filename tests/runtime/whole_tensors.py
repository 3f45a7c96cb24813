"""The tensors of a whole model, put together from what ranks hold."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from torch_or_skip import torch

from tangram.runtime.models.stage import StageModule
from tangram.runtime.parameters import ParameterPart

Piece = tuple[ParameterPart, Any, str | None]
"""What, its values, and over which axis values are sums of shares."""


def pieces_of(module: StageModule, *, gradients: bool) -> list[Piece]:
    """What a rank holds of weights or gradients; can be sent to another process."""
    found = []
    for local in module.local_parameters():
        values = local.parameter.grad if gradients else local.parameter.detach()
        values = values.reshape(len(local.parts), *local.parts[0].shape)
        partial = local.partial_over if gradients else None
        found += [(part, value, partial) for part, value in zip(local.parts, values, strict=True)]
    return found


def assembled(pieces: Iterable[Piece]) -> dict[str, Any]:
    """Whole tensors from disjoint or equal pieces; every element must be there."""
    whole: dict[str, Any] = {}
    for part, value, _ in pieces:
        place = tuple(slice(start, stop) for start, stop in part.region)
        into = whole.setdefault(part.name, torch.full(part.full_shape, torch.nan, dtype=value.dtype))
        before = into[place]
        assert bool(torch.isnan(before).all()) or torch.equal(before, value), f"copies of {part.name} differ"
        into[place] = value
    for name, tensor in whole.items():
        assert not torch.isnan(tensor).any(), f"{name} is incomplete"
    return whole


def summed(pieces: Iterable[Sequence[Piece]]) -> dict[str, Any]:
    """Whole gradients from all ranks' shares, each of which was counted once."""
    whole: dict[str, Any] = {}
    for part, value, _ in (piece for rank in pieces for piece in rank):
        place = tuple(slice(start, stop) for start, stop in part.region)
        whole.setdefault(part.name, torch.zeros(part.full_shape, dtype=value.dtype))[place] += value
    return whole


def whole_weights(modules: Sequence[StageModule]) -> dict[str, Any]:
    """Weights of the model that these stages make up."""
    return assembled(piece for module in modules for piece in pieces_of(module, gradients=False))


def whole_gradients(modules: Sequence[StageModule]) -> dict[str, Any]:
    """Gradients of the model that these stages of one rank each make up."""
    return summed(pieces_of(module, gradients=True) for module in modules)
