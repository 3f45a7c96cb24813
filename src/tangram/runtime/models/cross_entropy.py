"""Cross entropy over a vocabulary that is split over tp, without gathering logits.

Forward already makes the gradient (softmax less one at the label) and keeps it in the logits' dtype, in place
of logits and softmax: the loss is a sum, so backward only scales it.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist

from tangram.runtime.collectives import summed
from tangram.runtime.groups import Group
from tangram.runtime.micro_batch import IGNORED


def summed_cross_entropy(logits: Any, labels: Any, start: int, valid: int, group: Group) -> Any:
    """Returns the sum of the losses of all tokens whose label counts, the same on all ranks of the group.

    Args:
        logits: Of this rank's rows of the vocabulary, ``(..., rows)``.
        labels: Rows of the whole vocabulary, ``(...)``.
        start: This rank's first row.
        valid: How many of its rows are no padding; may be too many, or below 0.
        group: The ranks that share the vocabulary.
    """
    return _SummedCrossEntropy.apply(logits.flatten(0, -2), labels.flatten(), start, valid, group)


class _SummedCrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, logits: Any, labels: Any, start: int, valid: int, group: Group) -> Any:
        wide = logits.to(torch.promote_types(logits.dtype, torch.float32), copy=True)
        wide[:, max(0, valid) :] = float("-inf")
        top = wide.max(dim=-1).values
        if group.size > 1:
            dist.all_reduce(top, op=dist.ReduceOp.MAX, group=group.handle)
        wide -= top.unsqueeze(-1)
        counts = labels != IGNORED
        rows = labels - start
        is_own = (rows >= 0) & (rows < wide.shape[-1]) & counts
        rows = (rows * is_own).unsqueeze(-1)
        own = torch.where(is_own, wide.gather(-1, rows).squeeze(-1), 0.0)
        wide.exp_()
        sums = summed(torch.stack((wide.sum(dim=-1), own)), group)
        losses = torch.where(counts, sums[0].log() - sums[1], 0.0)
        wide /= sums[0].unsqueeze(-1)
        wide.scatter_add_(-1, rows, -is_own.to(wide.dtype).unsqueeze(-1))
        wide *= counts.unsqueeze(-1)
        ctx.save_for_backward(wide.to(logits.dtype))
        return losses.sum()

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        (of_logits,) = ctx.saved_tensors
        return of_logits * grad.to(of_logits.dtype), None, None, None, None
