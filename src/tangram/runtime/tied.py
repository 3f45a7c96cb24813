"""Weights that two stages hold: their gradients are summed, however each stage has split them.

After its own reduction every rank of a stage has the gradient of a piece of the tied matrix: the rows of
its tp index, of which its share of a bucket is one interval, so that the piece is an interval of the matrix
read row by row. Each rank gets from the other stage the gradient of exactly that interval, from as many
ranks as it is spread over there, and adds it. Both copies add the same two numbers (in either order the
same sum), and so stay equal to the last bit. Which replica of the other stage sends is spread over the
replicas.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import torch
import torch.distributed as dist

from tangram.runtime.boundary import Interval
from tangram.runtime.groups import Group
from tangram.runtime.sharding import Sharding


@dataclass(frozen=True, slots=True)
class Held:
    """What a rank holds of a tied matrix.

    Attributes:
        rank: The rank.
        stage: Its stage.
        replica: Number among the ranks of the stage that hold the same interval.
        interval: Elements of the matrix, read row by row; empty where the rank holds none.
    """

    rank: int
    stage: int
    replica: int
    interval: Interval


@dataclass(frozen=True, slots=True)
class Message:
    """Elements of the matrix whose gradient one rank sends to another."""

    src: int
    dst: int
    elements: Interval


def messages(holders: Sequence[Held]) -> tuple[Message, ...]:
    """Returns what is sent: every rank gets its interval from each other stage exactly once."""
    found = []
    for receiver in holders:
        for sender in holders:
            if sender.stage == receiver.stage:
                continue
            alike = sum(h.stage == sender.stage and h.interval == sender.interval for h in holders)
            start = max(sender.interval[0], receiver.interval[0])
            stop = min(sender.interval[1], receiver.interval[1])
            if start < stop and receiver.replica % alike == sender.replica:
                found.append(Message(sender.rank, receiver.rank, (start, stop)))
    return tuple(found)


class TiedWeight:
    """A matrix that this rank's stage shares with others.

    Args:
        sharding: Buckets of the stage.
        name: The parameter's name in the stage module.
        stage: Index of this stage.
        group: All ranks of the stages that hold the matrix.
    """

    def __init__(self, sharding: Sharding, name: str, stage: int, group: Group) -> None:
        self._group = group
        self._rank = group.ranks[group.index]
        self._bucket, slot = next(found for found in sharding.slots() if found[1].parameter.name == name)
        (part,) = slot.parameter.parts
        assert all(
            region == (0, size) for region, size in zip(part.region[1:], part.full_shape[1:], strict=True)
        ), "a tied matrix is split by rows"
        first = part.region[0][0] * prod(part.full_shape[1:])
        own = self._bucket.own_part(slot) or (0, 0)
        begin = self._bucket.share[0] + own[0] - slot.start  # of the parameter, where the share begins
        interval = (first + begin, first + begin + own[1] - own[0]) if own[0] < own[1] else (0, 0)
        self._shift = own[0] - interval[0]
        told: list[Any] = [None] * group.size
        dist.all_gather_object(told, (stage, interval), group=group.handle)
        seen: dict[Any, int] = {}
        holders = []
        for rank, (of_stage, of_rank) in zip(group.ranks, told, strict=True):
            replica = seen.setdefault((of_stage, of_rank), 0)
            seen[of_stage, of_rank] += 1
            holders.append(Held(rank, of_stage, replica, of_rank))
        self._messages = [m for m in messages(holders) if self._rank in (m.src, m.dst)]

    def add_up(self) -> None:
        """Adds the other stages' gradients to this rank's own; all ranks of the group call it together."""
        gradients = self._bucket.own_gradients
        operations, received = [], []
        for message in self._messages:
            start, stop = (place + self._shift for place in message.elements)
            own = gradients[start:stop]
            if message.src == self._rank:
                kind, data, peer = dist.isend, own.clone(), message.dst
            else:
                kind, data, peer = dist.irecv, torch.empty_like(own), message.src
                received.append((own, data))
            operations.append(dist.P2POp(kind, data, peer, group=self._group.handle))
        if operations:
            for work in dist.batch_isend_irecv(operations):
                work.wait()
        for own, data in received:
            own += data
