"""Between two runs of atoms with different degrees: activations change their layout, gradients change back.

Both ways are one uneven all-to-all over the ranks of the stage, of the same links as between two stages
(:mod:`tangram.runtime.boundary`). Where the next run's ranks are replicas, each gets all it needs, and their
gradients are equal, so each part of the way back is sent by one of them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from tangram.runtime.boundary import Block, Layout, links
from tangram.runtime.collectives import exchanged
from tangram.runtime.groups import Group


@dataclass(frozen=True, slots=True)
class _Way:
    """One direction: the blocks that go to and come from each rank of the group, and the result's shape."""

    sent: tuple[tuple[Block, ...], ...]
    received: tuple[tuple[Block, ...], ...]
    shape: tuple[int, int]


class Join:
    """Changes the layout of activations inside of a stage.

    Args:
        src, dst: The layouts; of the same ranks.
        group: All ranks of the stage.
    """

    def __init__(self, src: Layout, dst: Layout, group: Group) -> None:
        assert src.ranks == dst.ranks == group.ranks
        self._group = group
        self._there, self._back = _way(src, dst, group), _way(dst, src, group)

    def __call__(self, hidden: Any) -> Any:
        """Returns this rank's part of the second layout, ``(rows, tokens, hidden)``."""
        return _Joined.apply(hidden, self._there, self._back, self._group)


class _Joined(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, hidden: Any, there: _Way, back: _Way, group: Group) -> Any:
        ctx.back, ctx.group = back, group
        return _moved(hidden, there, group)

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        return _moved(grad, ctx.back, ctx.group), None, None, None


def _way(src: Layout, dst: Layout, group: Group) -> _Way:
    rank = group.ranks[group.index]
    sent: dict[int, tuple[Block, ...]] = {}
    received: dict[int, tuple[Block, ...]] = {}
    for link in links(src, dst):
        if link.src == rank:
            sent[link.dst] = link.sent
        if link.dst == rank:
            received[link.src] = link.received
    holding = dst.holdings[rank]
    return _Way(
        tuple(sent.get(other, ()) for other in group.ranks),
        tuple(received.get(other, ()) for other in group.ranks),
        (holding.num_rows, holding.num_tokens),
    )


def _moved(tensor: Any, way: _Way, group: Group) -> Any:
    width = tensor.shape[-1]
    blocks = [_cut(tensor, block).reshape(-1, width) for of_rank in way.sent for block in of_rank]
    packed = torch.cat(blocks) if blocks else tensor.new_empty((0, width))
    sent, received = ([_num_pairs(of_rank) for of_rank in side] for side in (way.sent, way.received))
    came = exchanged(packed, sent, received, group) if group.size > 1 else packed
    result = tensor.new_empty((*way.shape, width))
    start = 0
    for block in (block for of_rank in way.received for block in of_rank):
        stop = start + _num_pairs((block,))
        _cut(result, block).copy_(came[start:stop].view(*block.shape, width))
        start = stop
    return result


def _cut(tensor: Any, block: Block) -> Any:
    return tensor[slice(*block.rows), slice(*block.tokens)]


def _num_pairs(blocks: tuple[Block, ...]) -> int:
    return sum(block.shape[0] * block.shape[1] for block in blocks)
