"""The dense block: norm, up (and gate) projection, activation, down projection, residual."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import functional

from tangram.model.spec import FeedForwardSpec
from tangram.runtime.models.block import Block
from tangram.runtime.models.dropout import residual_dropout
from tangram.runtime.models.norm import Norm
from tangram.runtime.models.projection import Columns, Output, Rows
from tangram.runtime.models.share import Context, Share


class FeedForward(Block):
    """The dense block of a layer.

    Args:
        share: What this rank builds.
        layer_idx: The layer.
    """

    def __init__(self, share: Share, layer_idx: int) -> None:
        super().__init__(share)
        layer, names = share.model.layers[layer_idx], share.names
        spec, hidden = layer.feed_forward, share.model.hidden_size
        assert isinstance(spec, FeedForwardSpec)
        prefix = names.layer.format(layer_idx)
        self.place = f"{prefix}feed_forward"
        self.norm = Norm(share, layer.norm, prefix + names.feed_forward_norm, hidden, share.partial)
        labels = (names.gate, names.up) if spec.gated else (names.up,)
        outputs = [Output(prefix + label, spec.intermediate_size) for label in labels]
        self.up = Columns(share, outputs, hidden, bias=spec.bias)
        self.down = Rows(share, prefix + names.down, hidden, spec.intermediate_size, bias=spec.bias)

    def forward(self, hidden: Any, context: Context) -> Any:
        """Adds the block to the residual stream."""
        y = self.down(activated(self.share.hyper.activation, *self.up(self.norm(hidden))))
        dropout = self.share.hyper.residual_dropout
        return hidden + residual_dropout(self.share, y, context, dropout, self.place)


def activated(kind: str, gate: Any, up: Any = None) -> Any:
    """Returns the activation of ``gate``, times ``up`` where there is one."""
    return _activation(kind, gate) if up is None else _Gated.apply(kind, gate, up)


def _activation(kind: str, x: Any) -> Any:
    if kind == "silu":
        return functional.silu(x)
    if kind == "relu":
        return functional.relu(x)
    return functional.gelu(x, approximate="tanh" if kind == "gelu_tanh" else "none")


class _Gated(torch.autograd.Function):
    """Keeps both inputs and nothing between them: the activation is cheap to compute again."""

    @staticmethod
    def forward(ctx: Any, kind: str, gate: Any, up: Any) -> Any:
        ctx.kind = kind
        ctx.save_for_backward(gate, up)
        return _activation(kind, gate) * up

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        gate, up = (x.detach().requires_grad_() for x in ctx.saved_tensors)
        with torch.enable_grad():
            y = _activation(ctx.kind, gate) * up
        return None, *torch.autograd.grad(y, (gate, up), grad)
