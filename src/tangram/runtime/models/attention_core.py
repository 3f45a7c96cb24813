"""Scores and values: each query of a rank's tokens against all keys up to its own.

With cp, keys and values of all tokens are gathered first (one collective for both), and put into the order of
the sequence. A rank's tokens are one or two runs of neighbours, and the queries of a run see the keys from
its first query's window (or the start) to its own end: the mask is causal, aligned to the last key. Where the
plan exchanges heads for tokens instead (Jacobs et al. 2023, DeepSpeed Ulysses, arXiv 2309.14509), a rank has
all tokens of some heads in between.

``flash`` is PyTorch's fused attention, ``unfused`` stores scores. Dropout of scores works on stored scores
only, whatever the kernel: fused kernels draw numbers that depend on the plan.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import sqrt
from typing import Any

import torch
from torch.nn import functional

from tangram.model.spec import AttentionSpec
from tangram.profiler.attention import shares_keys
from tangram.runtime.boundary import Interval
from tangram.runtime.collectives import all_to_all, gather_along
from tangram.runtime.models.dropout import score_dropout
from tangram.runtime.models.share import Context, Share

_HEADS, _TOKENS = 1, 2

FEWEST_QUERIES = 1024
"""Queries that are worth kernels of their own, where a window would cut them smaller."""


class AttentionCore:
    """Scores and values of one layer.

    Args:
        share: What this rank builds.
        spec: Heads and window.
        place: Name of the layer's attention, for dropout.
    """

    def __init__(self, share: Share, spec: AttentionSpec, place: str) -> None:
        self._share, self._spec, self._place = share, spec, place
        self._unfused = share.unfused or share.hyper.attention_dropout > 0
        self._order: Any = None if share.groups.cp.size == 1 else _sequence_order(share)

    def __call__(self, query: Any, key: Any, value: Any, context: Context) -> Any:
        """Returns the values that queries see, ``(rows, heads, tokens, head_dim)`` as the queries."""
        if self._share.swaps_heads:
            return self._swapped(query, key, value, context)
        if self._order is not None:
            both = gather_along(torch.cat((key, value), dim=_HEADS), _TOKENS, self._share.groups.cp)
            key, value = both.index_select(_TOKENS, self._order_on(both.device, context)).chunk(2, dim=_HEADS)
        return self._runs(query, key, value, self._share.own_tokens, context)

    def _runs(self, query: Any, key: Any, value: Any, runs: Sequence[Interval], context: Context) -> Any:
        """Attention of queries in runs of neighbours, which a window cuts further: keys, scores and masks of
        a piece are then at most twice what the window needs.
        """
        if self._spec.window is not None:
            size = max(self._spec.window, FEWEST_QUERIES)
            runs = [(at, min(at + size, stop)) for start, stop in runs for at in range(start, stop, size)]
        lengths = [stop - start for start, stop in runs]
        mixed = [
            self._run(part, key, value, start, context)
            for part, (start, _) in zip(query.split(lengths, dim=_TOKENS), runs, strict=True)
        ]
        return mixed[0] if len(mixed) == 1 else torch.cat(mixed, dim=_TOKENS)

    def _swapped(self, query: Any, key: Any, value: Any, context: Context) -> Any:
        cp = self._share.groups.cp
        heads = [x.shape[_HEADS] // cp.size for x in (query, key, value)]
        order = self._order_on(query.device, context)
        # One message holds the queries, keys and values of the heads that are the receiver's.
        groups = [x.unflatten(_HEADS, (cp.size, -1)) for x in (query, key, value)]
        sent = torch.cat(groups, dim=_HEADS + 1).movedim(_HEADS, 0)
        came = all_to_all(sent.contiguous(), [1] * cp.size, [1] * cp.size, cp)
        whole = came.movedim(0, _TOKENS).flatten(_TOKENS, _TOKENS + 1).index_select(_TOKENS, order)
        query, key, value = whole.split(heads, dim=_HEADS)
        mixed = self._runs(query, key, value, [(0, self._share.seq_len)], context)
        back = mixed.index_select(_TOKENS, torch.argsort(order)).unflatten(_TOKENS, (cp.size, -1))
        came = all_to_all(back.movedim(_TOKENS, 0).contiguous(), [1] * cp.size, [1] * cp.size, cp)
        return came.movedim(0, _HEADS).flatten(_HEADS, _HEADS + 1)

    def _run(self, query: Any, key: Any, value: Any, start: int, context: Context) -> Any:
        """Attention of neighbouring queries, the first of which is token ``start``."""
        window = self._spec.window
        stop = start + query.shape[_TOKENS]
        first = 0 if window is None else max(0, start - window + 1)
        key, value = key[:, :, first:stop], value[:, :, first:stop]
        if window is not None and stop - window <= first:
            window = None  # the last query still sees the first key
        if self._unfused:
            return self._scored(query, key, value, (start, stop, first, window), context)
        groups = query.shape[_HEADS] // key.shape[_HEADS]
        if groups > 1 and not shares_keys(query.device, query.dtype):
            key, value = (x.repeat_interleave(groups, dim=_HEADS) for x in (key, value))
            groups = 1
        is_square = start == first and window is None
        mask = None if is_square else _fused_mask(query.device, start, stop, first, window)
        return functional.scaled_dot_product_attention(
            query, key, value, attn_mask=mask, is_causal=is_square, enable_gqa=groups > 1
        )

    def _scored(
        self, query: Any, key: Any, value: Any, at: tuple[int, int, int, int | None], context: Context
    ) -> Any:
        groups = query.shape[_HEADS] // key.shape[_HEADS]
        if groups > 1:
            key, value = (x.repeat_interleave(groups, dim=_HEADS) for x in (key, value))
        scores = query @ key.transpose(-1, -2) / sqrt(self._spec.head_dim)
        scores = scores.masked_fill(~causal_mask(query.device, *at), float("-inf"))
        wide = torch.promote_types(scores.dtype, torch.float32)
        shares = functional.softmax(scores, dim=-1, dtype=wide).to(query.dtype)
        if self._share.hyper.attention_dropout:
            start, stop, first, _ = at
            num_heads = query.shape[_HEADS]
            head = self._first_head(num_heads)
            ranges = ((head, head + num_heads), (start, stop), (first, stop))
            heads, queries, keys = (torch.arange(*pair, device=query.device) for pair in ranges)
            shares = score_dropout(self._share, shares, context, (heads, queries, keys), self._place)
        return shares @ value

    def _order_on(self, device: Any, context: Context) -> Any:
        return context.once("sequence order", lambda: self._order.to(device))

    def _first_head(self, num_heads: int) -> int:
        """The number of the first of the heads in hand."""
        groups = self._share.groups
        place = groups.tp.index
        if self._share.swaps_heads:
            place = place * groups.cp.size + groups.cp.index
        return place * num_heads


def causal_mask(device: Any, start: int, stop: int, first: int, window: int | None) -> Any:
    """Returns which keys ``first`` to ``stop`` the queries ``start`` to ``stop`` see."""
    queries = torch.arange(start, stop, device=device)[:, None]
    keys = torch.arange(first, stop, device=device)
    sees = keys <= queries
    return sees if window is None else sees & (keys > queries - window)


def _fused_mask(device: Any, start: int, stop: int, first: int, window: int | None) -> Any:
    """The mask as the fused kernels take it: on a GPU without a window nothing is stored."""
    if device.type == "cuda" and window is None:
        from torch.nn.attention.bias import causal_lower_right

        return causal_lower_right(stop - start, stop - first)
    return causal_mask(device, start, stop, first, window)


def _sequence_order(share: Share) -> Any:
    """Where in the gathered tokens each token of the sequence lies."""
    return torch.argsort(torch.cat([torch.arange(*run) for runs in share.tokens for run in runs]))
