"""Norms, which are not split over tp: with sequence parallelism each rank normalises its own tokens."""

from __future__ import annotations

from typing import Any

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
        return functional.rms_norm(x, (self.width,), self.scale, eps)
