"""What of the model a rank's parameters are: which region of which tensor of the Hugging Face checkpoint.

Loading, saving, comparing and tying rest on this alone. A rank's parameter is one region of one tensor or,
where it stacks experts, several regions of equal shape, one after the other.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Any

Region = tuple[tuple[int, int], ...]
"""A half-open interval per dimension."""


@dataclass(frozen=True, slots=True)
class ParameterPart:
    """A region of a tensor of the whole model.

    Attributes:
        name: Of the tensor, as in a Hugging Face checkpoint.
        full_shape: Of the tensor. A vocabulary has its padded rows.
        region: The part of it.
    """

    name: str
    full_shape: tuple[int, ...]
    region: Region

    @property
    def shape(self) -> tuple[int, ...]:
        """Of the region."""
        return tuple(stop - start for start, stop in self.region)

    @property
    def is_whole(self) -> bool:
        """Whether the region is the whole tensor."""
        return self.shape == self.full_shape


def whole(name: str, *shape: int) -> ParameterPart:
    """Returns a whole tensor as a part."""
    return ParameterPart(name, shape, tuple((0, size) for size in shape))


@dataclass(frozen=True, slots=True)
class LocalParameter:
    """A parameter of a rank.

    Attributes:
        name: As in ``named_parameters()`` of the stage.
        parameter: The tensor.
        parts: What it holds, one after the other.
        is_expert: Whether it belongs to a routed expert: its replicas are over expert_dp instead of dp x cp.
        partial_over: ``tp`` where the tp ranks hold the same weight but see different tokens (or heads), so
            that gradients are sums that somebody has to add up; else None.
        atom: Index of its atom.
        decays: Whether weight decay is meant for it: matrices and tables, neither norms nor biases.
    """

    name: str
    parameter: Any
    parts: tuple[ParameterPart, ...]
    is_expert: bool
    partial_over: str | None
    atom: int
    decays: bool

    def views(self) -> list[tuple[ParameterPart, Any]]:
        """Returns the parts with their views of the parameter, each of the shape of its region."""
        data = self.parameter.detach().view(len(self.parts), *self.parts[0].shape)
        return list(zip(self.parts, data, strict=True))

    @property
    def num_elements(self) -> int:
        """Elements on this rank."""
        return sum(prod(part.shape) for part in self.parts)
