"""Carries activations and gradients over a cut: one message per link and micro-batch.

Order. NCCL ignores tags, and runs what two ranks exchange on one communicator in the order in which each of
them issued it. So both directions of a cut have a group of their own: on one, all messages of a pair go one
way, micro-batch after micro-batch in the order of the schedule, which is the same on both sides; whatever is
posted in advance on the other cannot get between. Communicators of pairs come about when they are first used,
and both sides wait for that; therefore every pair is opened at the start, pair by pair in one order that all
ranks share (:func:`open_links`): the first pair that is not open yet always has both its ranks there.

Where NCCL has one communicator for a whole group instead of one per pair, a rank's messages follow each
other on one stream. Micro-batch by micro-batch, senders go by receiver and receivers by sender, so that all
agree with the order of (micro-batch, sender, receiver), and nobody waits in a circle.

A message is its link's blocks end to end. It is sent from a copy, or from the tensor itself where that is one
block, and kept until it has gone.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

from tangram.runtime.boundary import Block, Layout, Link, links


@dataclass(frozen=True, slots=True)
class Route:
    """One direction of a cut, seen from one rank.

    Attributes:
        outgoing, incoming: Its links, by the other rank.
        shape: Rows and tokens of the tensor that it receives; None where it receives nothing.
        group: Of all ranks of both sides, for this direction alone.
    """

    outgoing: tuple[Link, ...]
    incoming: tuple[Link, ...]
    shape: tuple[int, int] | None
    group: Any


def route(rank: int, src: Layout, dst: Layout, group: Any) -> Route:
    """Returns what a rank sends and receives where a micro-batch goes from one layout to another."""
    found = links(src, dst)
    holding = dst.holdings.get(rank)
    return Route(
        outgoing=tuple(link for link in found if link.src == rank),
        incoming=tuple(link for link in found if link.dst == rank),
        shape=(holding.num_rows, holding.num_tokens) if holding else None,
        group=group,
    )


def open_links(src: Layout, dst: Layout, rank: int, group: Any, device: Any) -> None:
    """Sends one number over every link of this rank, link by link in an order that all ranks share."""
    token = torch.zeros(1, device=device)
    pairs = sorted((link.src, link.dst) for link in links(src, dst))
    for sender, receiver in pairs:
        if rank == sender:
            dist.send(token, receiver, group=group)
        elif rank == receiver:
            dist.recv(token, sender, group=group)


class Sender:
    """Sends tensors over a route.

    Args:
        path: The route.
    """

    def __init__(self, path: Route) -> None:
        self._path = path
        self._under_way: deque[tuple[Any, Any]] = deque()

    def send(self, tensor: Any) -> None:
        """Starts sending this rank's part of a micro-batch, ``[rows, tokens, hidden]``."""
        while self._under_way and self._under_way[0][0].is_completed():
            self._under_way.popleft()
        for link in self._path.outgoing:
            message = _packed(tensor, link.sent)
            self._under_way.append((dist.isend(message, link.dst, group=self._path.group), message))

    def finish(self) -> None:
        """Waits until everything has been sent."""
        while self._under_way:
            self._under_way.popleft()[0].wait()


class Receiver:
    """Receives tensors over a route, in the order in which they are posted.

    Args:
        path: The route.
        width: Hidden size.
        dtype: Of the elements.
        device: Where tensors are to lie.
    """

    def __init__(self, path: Route, width: int, dtype: Any, device: Any) -> None:
        self._path = path
        self._width, self._dtype, self._device = width, dtype, device
        self._posted: deque[list[tuple[Link, Any, Any]]] = deque()

    def post(self) -> None:
        """Makes room for the next micro-batch and starts to receive it."""
        messages = []
        for link in self._path.incoming:
            size = link.num_elements * self._width
            message = torch.empty(size, dtype=self._dtype, device=self._device)
            messages.append((link, message, dist.irecv(message, link.src, group=self._path.group)))
        self._posted.append(messages)

    def take(self) -> Any:
        """Waits for the micro-batch that was posted first; returns its tensor ``[rows, tokens, hidden]``."""
        assert self._path.shape is not None
        messages = self._posted.popleft()
        rows, tokens = self._path.shape
        if len(messages) == 1 and len(messages[0][0].received) == 1:
            messages[0][2].wait()
            return messages[0][1].view(rows, tokens, self._width)
        tensor = torch.empty((rows, tokens, self._width), dtype=self._dtype, device=self._device)
        for link, message, work in messages:
            work.wait()
            _unpack(message, tensor, link.received)
        return tensor


def _packed(tensor: Any, blocks: Sequence[Block]) -> Any:
    """The blocks as one contiguous vector; the tensor's own memory where it is one block of all of it."""
    if len(blocks) == 1:
        return _at(tensor, blocks[0]).contiguous().view(-1)
    return torch.cat([_at(tensor, block).reshape(-1) for block in blocks])


def _unpack(message: Any, tensor: Any, blocks: Sequence[Block]) -> None:
    start = 0
    for block in blocks:
        place = _at(tensor, block)
        place.copy_(message[start : start + place.numel()].view(place.shape))
        start += place.numel()


def _at(tensor: Any, block: Block) -> Any:
    return tensor[block.rows[0] : block.rows[1], block.tokens[0] : block.tokens[1]]
