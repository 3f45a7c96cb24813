"""Matrices split over tp: by their outputs (:class:`Columns`) or by their inputs (:class:`Rows`).

A pair of them is one trip: with sequence parallelism, ``Columns`` all-gathers tokens and ``Rows``
reduce-scatters them; without it, ``Rows`` all-reduces and the way back of ``Columns`` does.

With sequence parallelism only the rank's share of the input is kept for backward, which gathers once more:
kept whole, it would be the largest activation of all (Korthikanti et al. 2022, arXiv 2205.05198, section
4.2.2).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import sqrt
from typing import Any

import torch
from torch.nn import functional

from tangram.runtime.collectives import copy_to, joined, reduce_from, scatter_sum, summed_share
from tangram.runtime.groups import Group
from tangram.runtime.models.block import Block, Init, Weight
from tangram.runtime.models.share import Share
from tangram.runtime.parameters import ParameterPart

TOKENS = 1
"""The dimension of tokens in ``(rows, tokens, width)``."""


@dataclass(frozen=True, slots=True)
class Output:
    """One matrix of several with the same input.

    Attributes:
        name: Of its tensors, without ``.weight``.
        width: Outputs, of all tp ranks.
        start: Where they start in a tensor that holds several matrices.
        total: Outputs of all the matrices in that tensor; by default of this one alone.
    """

    name: str
    width: int
    start: int = 0
    total: int = 0


class Columns(Block):
    """Matrices with the same input, each split over tp by its outputs.

    Args:
        share: What this rank builds.
        outputs: The matrices.
        width: Inputs.
        bias: Whether they have biases.
        used_rows: As in :class:`Weight`.
    """

    def __init__(
        self,
        share: Share,
        outputs: Sequence[Output],
        width: int,
        *,
        bias: bool = False,
        used_rows: int | None = None,
    ) -> None:
        super().__init__(share)
        self.transposed = share.names.transposed and used_rows is None
        self.num_outputs, self.has_bias = len(outputs), bias
        for idx, output in enumerate(outputs):
            own = tuple(output.start + at for at in share.cut(output.width, output.name))
            total = output.total or output.width
            shape, region = (total, width), ((own[0], own[1]), (0, width))
            if self.transposed:
                shape, region = shape[::-1], region[::-1]
            part = ParameterPart(f"{output.name}.weight", shape, region)
            std = share.hyper.initializer_std
            self.add_weight(f"weight_{idx}", Weight((part,), Init.NORMAL, std, used_rows=used_rows))
            if bias:
                part = ParameterPart(f"{output.name}.bias", (total,), ((own[0], own[1]),))
                self.add_weight(f"bias_{idx}", Weight((part,), Init.ZEROS))

    def forward(self, x: Any) -> tuple[Any, ...]:
        """Returns the outputs of each matrix, for all tokens of the cp share."""
        weights = [getattr(self, f"weight_{idx}") for idx in range(self.num_outputs)]
        biases = [getattr(self, f"bias_{idx}") if self.has_bias else None for idx in range(self.num_outputs)]
        return split_products(self.share, x, weights, biases, transposed=self.transposed)


class Rows(Block):
    """A matrix split over tp by its inputs.

    Args:
        share: What this rank builds.
        name: Of its tensors, without ``.weight``.
        width: Outputs.
        inner: Inputs, of all tp ranks.
        bias: Whether it has a bias.
    """

    def __init__(self, share: Share, name: str, width: int, inner: int, *, bias: bool = False) -> None:
        super().__init__(share)
        self.transposed, self.has_bias = share.names.transposed, bias
        shape, region = (width, inner), ((0, width), share.cut(inner, name))
        if self.transposed:
            shape, region = shape[::-1], region[::-1]
        part = ParameterPart(f"{name}.weight", shape, region)
        self.add_weight("weight", Weight((part,), Init.NORMAL, residual_std(share)))
        if bias:
            part = ParameterPart(f"{name}.bias", (width,), ((0, width),))
            self.add_weight("bias", Weight((part,), Init.ZEROS, partial_over=share.partial))

    def forward(self, x: Any) -> Any:
        """Returns the outputs for this rank's own tokens."""
        y = _product(x, self.weight, None, transposed=self.transposed)
        tp = self.share.groups.tp
        y = scatter_sum(y, TOKENS, tp) if self.share.sequence_parallel else reduce_from(y, tp)
        return y + self.bias if self.has_bias else y


def residual_std(share: Share) -> float:
    """Initial standard deviation of what is added to the residual stream: GPT-2 takes its depth into account
    (Radford et al. 2019, section 2.3: two additions per layer).
    """
    depth = 2 * share.model.num_layers if share.names.transposed else 1
    return share.hyper.initializer_std / sqrt(depth)


def split_products(
    share: Share, x: Any, weights: Sequence[Any], biases: Sequence[Any], *, transposed: bool = False
) -> tuple[Any, ...]:
    """Multiplies all tokens of the cp share with matrices that are split by their outputs."""
    if share.sequence_parallel:
        given = [bias for bias in biases if bias is not None]
        group = share.groups.tp
        return tuple(_GatheredProducts.apply(x, group, transposed, len(weights), *weights, *given))
    x = copy_to(x, share.groups.tp)
    pairs = zip(weights, biases, strict=True)
    return tuple(_product(x, weight, bias, transposed=transposed) for weight, bias in pairs)


def _product(x: Any, weight: Any, bias: Any, *, transposed: bool) -> Any:
    return functional.linear(x, weight.T if transposed else weight, bias)


class _GatheredProducts(torch.autograd.Function):
    """All-gather along the tokens, then products with the whole; keeps the share alone."""

    @staticmethod
    def forward(ctx: Any, x: Any, group: Group, transposed: bool, count: int, *tensors: Any) -> Any:
        weights, biases = tensors[:count], tensors[count:] or [None] * count
        ctx.group, ctx.transposed, ctx.num_biases = group, transposed, len(tensors) - count
        ctx.save_for_backward(x, *weights)
        tokens = joined(x, TOKENS, group)
        pairs = zip(weights, biases, strict=True)
        return tuple(_product(tokens, weight, bias, transposed=transposed) for weight, bias in pairs)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        x, *weights = ctx.saved_tensors
        rows = joined(x, TOKENS, ctx.group).flatten(0, -2)
        of_tokens: Any = 0
        of_weights = []
        for grad, weight in zip(grads, weights, strict=True):
            flat = grad.flatten(0, -2)
            of_weights.append(rows.T @ flat if ctx.transposed else flat.T @ rows)
            of_tokens = of_tokens + grad @ (weight.T if ctx.transposed else weight)
        of_biases = [grad.flatten(0, -2).sum(dim=0) for grad in grads[: ctx.num_biases]]
        of_share = summed_share(of_tokens, TOKENS, ctx.group)
        return of_share, None, None, None, *of_weights, *of_biases
