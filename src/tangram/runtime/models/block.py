"""The base of all parts of a model: parameters that know what they are, on the meta device until needed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import torch

from tangram.runtime.models.chance import fill_normal, key_of
from tangram.runtime.models.share import Share
from tangram.runtime.parameters import ParameterPart


class Init(StrEnum):
    """Initial values."""

    NORMAL = "normal"
    ZEROS = "zeros"
    ONES = "ones"


@dataclass(frozen=True, slots=True)
class Weight:
    """What a parameter is.

    Attributes:
        parts: What it holds of the model.
        init: Its initial values.
        std: Their standard deviation.
        is_expert, partial_over: As in :class:`~tangram.runtime.parameters.LocalParameter`.
        used_rows: Rows of the whole tensor that are in use; those behind are padding and 0.
        stacked: Whether parts are stacked along a dimension of their own.
    """

    parts: tuple[ParameterPart, ...]
    init: Init
    std: float = 0.0
    is_expert: bool = False
    partial_over: str | None = None
    used_rows: int | None = None
    stacked: bool = False

    @property
    def shape(self) -> tuple[int, ...]:
        """Of the parameter."""
        return (len(self.parts), *self.parts[0].shape) if self.stacked else self.parts[0].shape

    @property
    def decays(self) -> bool:
        """Matrices and tables do; vectors do not."""
        return len(self.parts[0].full_shape) > 1

    def fill(self, data: Any, seed: int) -> None:
        """Writes the initial values: those that any rank would give these regions."""
        if self.init is not Init.NORMAL:
            data.fill_(1.0 if self.init is Init.ONES else 0.0)
            return
        for part, view in zip(self.parts, data.view(len(self.parts), *self.parts[0].shape), strict=True):
            key = key_of("weights", seed, part.name)
            fill_normal(view, key, self.std, part.full_shape, part.region)
            if self.used_rows is not None:
                view[max(0, self.used_rows - part.region[0][0]) :] = 0.0


class Block(torch.nn.Module):
    """A part of a model on one rank.

    Attributes:
        share: What this rank builds.
        weights: What the block's own parameters are, by their attribute's name.
    """

    def __init__(self, share: Share) -> None:
        super().__init__()
        self.share = share
        self.weights: dict[str, Weight] = {}

    def add_weight(self, name: str, weight: Weight) -> None:
        """Makes a parameter on the meta device."""
        self.weights[name] = weight
        data = torch.empty(weight.shape, dtype=self.share.dtype, device="meta")
        self.register_parameter(name, torch.nn.Parameter(data))

    def materialise(self, device: Any) -> None:
        """Gives the block's own parameters memory and initial values."""
        for name, weight in self.weights.items():
            data = torch.empty(weight.shape, dtype=self.share.dtype, device=device)
            with torch.no_grad():
                weight.fill(data, self.share.seed)
            self.register_parameter(name, torch.nn.Parameter(data))


def blocks_of(module: torch.nn.Module) -> Iterator[tuple[str, Block]]:
    """Yields all blocks inside a module with their names, in the order in which they were made."""
    for name, inner in module.named_modules():
        if isinstance(inner, Block):
            yield name, inner
