"""Collectives that autograd can go back through. In a group of one, each returns its input.

Ways back are as in Megatron-LM (Shoeybi et al. 2019, arXiv 1909.08053,
section 3; Korthikanti et al. 2022, arXiv 2205.05198, section 4.2):

==================== ================================ ================================
function             forward                          backward
==================== ================================ ================================
:func:`copy_to`      nothing                          sum of all ranks' gradients
:func:`reduce_from`  sum over all ranks               nothing
:func:`gather_along` all shares, one after the other  own share of the sum
:func:`scatter_sum`  own share of the sum             all shares, one after the other
:func:`all_to_all`   rows to whom they are for        rows back to where they were
==================== ================================ ================================

Shares are equal, except in ``all_to_all``. Sums are in the tensor's dtype.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist

from tangram.runtime.groups import Group

# Newer versions of torch have new names, and warn of the old ones.
_all_gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
_reduce_scatter = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor


def copy_to(x: Any, group: Group) -> Any:
    """Returns ``x``, which every rank holds and uses in its own way."""
    return _CopyTo.apply(x, group) if group.size > 1 else x


def reduce_from(x: Any, group: Group) -> Any:
    """Returns the sum of all ranks' ``x``."""
    return _ReduceFrom.apply(x, group) if group.size > 1 else x


def gather_along(x: Any, dim: int, group: Group) -> Any:
    """Returns the ranks' ``x`` joined along a dimension, for ranks that use the whole in different ways."""
    return _GatherAlong.apply(x, dim, group) if group.size > 1 else x


def scatter_sum(x: Any, dim: int, group: Group) -> Any:
    """Returns this rank's share along a dimension of the sum of all ranks' ``x``."""
    return _ScatterSum.apply(x, dim, group) if group.size > 1 else x


def all_to_all(x: Any, sent: Sequence[int], received: Sequence[int], group: Group) -> Any:
    """Sends rows of ``x`` to the ranks of a group; returns what came, in the order of ranks.

    Args:
        x: Rows for the first rank, then those for the second, and so on.
        sent: Rows for each rank; they sum to the rows of ``x``.
        received: Rows from each rank.
        group: The ranks.
    """
    return _AllToAll.apply(x, list(sent), list(received), group) if group.size > 1 else x


def gather_into(whole: Any, share: Any, group: Group) -> None:
    """All-gathers flat tensors: the ranks' shares, of equal length, into all of them; at least two ranks."""
    _all_gather(whole, share, group=group.handle)


def scatter_sum_into(share: Any, whole: Any, group: Group, *, later: bool = False) -> Any:
    """Reduce-scatters flat tensors: this rank's share of the sum; at least two ranks.

    Returns:
        With ``later`` what has to be waited for, else None.
    """
    return _reduce_scatter(share, whole, group=group.handle, async_op=later)


def joined(x: Any, dim: int, group: Group) -> Any:
    """All-gathers without autograd: the ranks' ``x``, of equal shapes, joined along a dimension."""
    if group.size == 1:
        return x
    parts = x.new_empty((group.size, *x.shape))
    gather_into(parts.view(-1), x.contiguous().view(-1), group)
    return torch.cat(parts.unbind(0), dim=dim)


def summed(x: Any, group: Group) -> Any:
    """All-reduces without autograd, into a new tensor."""
    if group.size == 1:
        return x
    total = x.clone(memory_format=torch.contiguous_format)
    dist.all_reduce(total, group=group.handle)
    return total


def summed_share(x: Any, dim: int, group: Group) -> Any:
    """Reduce-scatters without autograd: this rank's share along a dimension of the sum."""
    if group.size == 1:
        return x
    parts = torch.stack(own_shares(x, dim, group))
    share = torch.empty_like(parts[0])
    scatter_sum_into(share.view(-1), parts.view(-1), group)
    return share


def own_shares(x: Any, dim: int, group: Group) -> Any:
    """Cuts into one equal share per rank."""
    assert x.shape[dim] % group.size == 0, f"{group.size} ranks do not divide {tuple(x.shape)} along {dim}"
    return x.chunk(group.size, dim=dim)


def exchanged(x: Any, sent: Sequence[int], received: Sequence[int], group: Group) -> Any:
    """Sends rows to whom they are for, without autograd; see :func:`all_to_all`."""
    assert sum(sent) == len(x), f"{sum(sent)} rows to send, {len(x)} there"
    rows = x.new_empty((sum(received), *x.shape[1:]))
    dist.all_to_all_single(rows, x.contiguous(), list(received), list(sent), group=group.handle)
    return rows


class _CopyTo(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Any, group: Group) -> Any:
        ctx.group = group
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        return summed(grad, ctx.group), None


class _ReduceFrom(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Any, group: Group) -> Any:
        return summed(x, group)

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        return grad, None


class _GatherAlong(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Any, dim: int, group: Group) -> Any:
        ctx.dim, ctx.group = dim, group
        return joined(x, dim, group)

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        return summed_share(grad, ctx.dim, ctx.group), None, None


class _ScatterSum(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Any, dim: int, group: Group) -> Any:
        ctx.dim, ctx.group = dim, group
        return summed_share(x, dim, group)

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        return joined(grad, ctx.dim, ctx.group), None, None


class _AllToAll(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Any, sent: list[int], received: list[int], group: Group) -> Any:
        ctx.sent, ctx.received, ctx.group = sent, received, group
        return exchanged(x, sent, received, group)

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        return exchanged(grad, ctx.received, ctx.sent, ctx.group), None, None, None
