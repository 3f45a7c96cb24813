"""Dropout whose choice depends on the sample, the layer, the place and the element: not on the plan."""

from __future__ import annotations

from typing import Any

import torch

from tangram.runtime.models.chance import bits, key_of
from tangram.runtime.models.share import Context, Share

_WORD = (1 << 32) - 1


def residual_dropout(share: Share, x: Any, context: Context, share_dropped: float, place: str) -> Any:
    """Drops elements of ``(rows, tokens, hidden)``, this rank's rows and tokens.

    Args:
        share: Of this rank.
        x: The tensor.
        context: Says the samples and positions.
        share_dropped: Probability of an element to become 0; the others are scaled up.
        place: Name of the place in the model.
    """
    if not share_dropped:
        return x
    width = torch.arange(x.shape[-1], device=x.device)
    index = context.own_positions(share)[:, None] * x.shape[-1] + width
    return dropped(x, index, _sample_keys(share, context, place)[:, None, None], share_dropped)


def score_dropout(share: Share, x: Any, context: Context, numbers: tuple[Any, Any, Any], place: str) -> Any:
    """Drops attention shares ``(rows, heads, queries, keys)``; the numbers of these three are given."""
    length = share.seq_len
    heads, queries, keys = numbers
    index = (heads[:, None, None] * length + queries[:, None]) * length + keys
    sample_keys = _sample_keys(share, context, place)[:, None, None, None]
    return dropped(x, index, sample_keys, share.hyper.attention_dropout)


def dropped(x: Any, index: Any, keys: Any, share_dropped: float) -> Any:
    """Drops elements by the hash of their index; scales those that stay."""
    stays = (bits(keys, index) & _WORD) >= round(share_dropped * (_WORD + 1))
    return torch.where(stays, x / (1.0 - share_dropped), 0.0)


def _sample_keys(share: Share, context: Context, place: str) -> Any:
    """One key per row."""
    return context.once(
        ("dropout", place), lambda: bits(key_of("dropout", share.seed, place), context.batch.sample_ids)
    )
