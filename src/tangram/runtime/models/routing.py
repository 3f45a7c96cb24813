"""Whom a token is sent to, and the loss that keeps experts balanced.

The router runs in fp32. Its balance loss (Fedus et al. 2022, Switch Transformer, arXiv 2101.03961, section
2.2) is taken per sequence and layer, so that it depends neither on the plan nor on micro-batches: for E
experts, c_e choices of expert e by the T tokens of a sequence and their mean probability P_e of it,
``E sum_e (c_e / T) P_e``. The objective adds ``balance_coefficient`` times its mean over sequences and
layers with experts. (``transformers`` pools all tokens of a batch, and all layers, before the product.)

It never enters the loss that is reported: its gradient is attached to the router's probabilities where they
are, scaled like the gradient that arrives from the last stage.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import functional

from tangram.model.spec import MoeSpec
from tangram.runtime.collectives import summed
from tangram.runtime.models.block import Block, Init, Weight
from tangram.runtime.models.share import Context, Share
from tangram.runtime.parameters import whole


class Router(Block):
    """Scores tokens for experts.

    Args:
        share: What this rank builds.
        spec: The mixture.
        name: Of its matrix, without ``.weight``.
    """

    def __init__(self, share: Share, spec: MoeSpec, name: str) -> None:
        super().__init__(share)
        self.spec = spec
        part = whole(f"{name}.weight", spec.num_experts, share.model.hidden_size)
        partial = "tp" if share.tp > 1 else None  # tp ranks route different tokens
        std = share.hyper.initializer_std
        self.add_weight("matrix", Weight((part,), Init.NORMAL, std, partial_over=partial))
        num_layers = sum(layer.moe is not None for layer in share.model.layers)
        self.balance = share.hyper.balance_coefficient / num_layers

    def forward(self, rows: Any, context: Context, at: tuple[int, int] | None) -> tuple[Any, Any]:
        """Returns experts and weights of tokens, each ``(tokens, top_k)``.

        Args:
            rows: Tokens ``(tokens, hidden)``, sample by sample.
            context: The micro-batch.
            at: Which of the tokens of the cp share these are, where they are not those of the hidden states.
        """
        probabilities = functional.softmax(_WideProduct.apply(rows, self.matrix), dim=-1)
        weights, chosen = probabilities.topk(self.spec.top_k, dim=-1)
        if self.share.hyper.normalizes_top_k:
            weights = weights / weights.sum(dim=-1, keepdim=True)
        if self.balance and torch.is_grad_enabled():
            loss = self._balance_loss(probabilities, chosen, len(context.batch.sample_ids), at)
            weights = _Attached.apply(weights, loss, context.batch.seed)
        return chosen, weights

    def _balance_loss(
        self, probabilities: Any, chosen: Any, num_samples: int, at: tuple[int, int] | None
    ) -> Any:
        """This rank's tokens' part of the loss, as a sum over tokens (that is, times the sequence length)."""
        share, num_experts = self.share, self.spec.num_experts
        first, stop = at or (0, len(chosen))
        per_sample = self._tokens_per_sample(len(chosen), num_samples, at)
        samples = torch.arange(first, stop, device=chosen.device) // per_sample
        counts = torch.zeros(num_samples * num_experts, dtype=probabilities.dtype, device=chosen.device)
        places = samples[:, None] * num_experts + chosen
        counts.index_add_(0, places.flatten(), torch.ones_like(counts[:1]).expand(places.numel()))
        for group in (share.groups.tp, share.groups.cp):
            counts = summed(counts, group)
        shares = counts.view(num_samples, num_experts)[samples] / share.seq_len
        return self.balance * num_experts * (shares * probabilities).sum()

    def _tokens_per_sample(self, count: int, num_samples: int, at: tuple[int, int] | None) -> int:
        if at is None:
            return count // num_samples
        return self.share.seq_len // self.share.groups.cp.size


class _WideProduct(torch.autograd.Function):
    """A product in fp32 at least that keeps its inputs as they are."""

    @staticmethod
    def forward(ctx: Any, rows: Any, matrix: Any) -> Any:
        ctx.save_for_backward(rows, matrix)
        wide = torch.promote_types(rows.dtype, torch.float32)
        return functional.linear(rows.to(wide), matrix.to(wide))

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        rows, matrix = ctx.saved_tensors
        of_rows = (grad @ matrix.to(grad.dtype)).to(rows.dtype)
        return of_rows, (grad.T @ rows.to(grad.dtype)).to(matrix.dtype)


class _Attached(torch.autograd.Function):
    """Returns its first input; backward also gives the loss its gradient."""

    @staticmethod
    def forward(ctx: Any, x: Any, loss: Any, seed: float) -> Any:
        ctx.seed = seed
        ctx.save_for_backward(loss)
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        (loss,) = ctx.saved_tensors
        return grad, torch.full_like(loss, ctx.seed), None
