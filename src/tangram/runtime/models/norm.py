"""Norms, which are not split over tp: with sequence parallelism each rank normalises its own tokens."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import functional

from tangram.model.spec import NormKind
from tangram.runtime.models.block import Block, Init, Weight
from tangram.runtime.models.share import Share
from tangram.runtime.parameters import whole


class Norm(Block):
    """RMSNorm or LayerNorm over the last dimension.

    Args:
        share: What this rank builds.
        kind: Which.
        name: Of its tensors, without ``.weight``.
        width: Of the last dimension.
        partial_over: Axis over whose ranks the gradient of the scale is a sum.
    """

    def __init__(self, share: Share, kind: NormKind, name: str, width: int, partial_over: str | None) -> None:
        super().__init__(share)
        self.width = width
        self.add_weight(
            "scale", Weight((whole(f"{name}.weight", width),), Init.ONES, partial_over=partial_over)
        )
        self.has_bias = kind is NormKind.LAYERNORM
        if self.has_bias:
            bias = Weight((whole(f"{name}.bias", width),), Init.ZEROS, partial_over=partial_over)
            self.add_weight("bias", bias)

    def forward(self, x: Any) -> Any:
        """Normalises."""
        eps = self.share.hyper.norm_eps
        if self.has_bias:
            return functional.layer_norm(x, (self.width,), self.scale, self.bias, eps)
        if x.is_cuda and hasattr(torch, "_fused_rms_norm"):
            return functional.rms_norm(x, (self.width,), self.scale, eps)
        return _RmsNorm.apply(x, self.scale, eps)


class _RmsNorm(torch.autograd.Function):
    """What the fused kernel does, where there is none: computes in fp32, keeps input and a number per row.

    Put together from operations, a norm would keep two fp32 copies of its input.
    """

    @staticmethod
    def forward(ctx: Any, x: Any, scale: Any, eps: float) -> Any:
        wide = x.to(torch.promote_types(x.dtype, torch.float32))
        factor = torch.rsqrt(wide.square().mean(dim=-1, keepdim=True) + eps)
        ctx.save_for_backward(x, scale, factor)
        return (wide * factor * scale).to(x.dtype)

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        x, scale, factor = ctx.saved_tensors
        wide, normed = grad.to(factor.dtype), x.to(factor.dtype) * factor
        of_scale = (wide * normed).flatten(0, -2).sum(dim=0)
        of_normed = wide * scale
        mean = (of_normed * normed).mean(dim=-1, keepdim=True)
        return ((of_normed - normed * mean) * factor).to(x.dtype), of_scale.to(scale.dtype), None
