"""Who sends what to whom between two layouts of the activations: the intersection of their slices.

A layout says which rows (samples of a micro-batch) and which tokens each rank of a stage holds. Both sides
of a cut know both layouts from the plan, so both compute the same links and nothing is negotiated. Any two
layouts go together: dp with uneven rows, cp zigzag or contiguous, tp with or without sequence parallelism.
This module is arithmetic alone; :mod:`tangram.runtime.transfers` carries the links out.

A link is one message: all that one rank sends to another for one micro-batch. Where senders hold replicas (tp
without sequence parallelism), receiver number i of the replicas gets everything from sender i modulo their
number, so that no sender carries all of it. Gradients take the links of the two layouts with their roles
exchanged. Where nothing is replicated these are the forward links turned round; where receivers are replicas,
their gradients are equal, and each is sent by one of them.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, pairwise

from tangram.plan.schema import LayerConfig, StageSection

Interval = tuple[int, int]
"""Half-open: ``[start, stop)``."""


@dataclass(frozen=True, slots=True)
class Holding:
    """What one rank holds of a micro-batch's activations ``[rows, tokens, hidden]``.

    Attributes:
        rows: Its samples, counted from the first of the micro-batch.
        tokens: Its tokens as intervals of the sequence, in the order in which they lie in its tensor.
        replica: Which of the equal copies this is, from 0.
        num_replicas: How many there are.
    """

    rows: Interval
    tokens: tuple[Interval, ...]
    replica: int = 0
    num_replicas: int = 1

    @property
    def num_rows(self) -> int:
        """Samples held."""
        return self.rows[1] - self.rows[0]

    @property
    def num_tokens(self) -> int:
        """Tokens held of each sample."""
        return sum(stop - start for start, stop in self.tokens)


@dataclass(frozen=True)
class Layout:
    """How the activations of a micro-batch lie on the ranks of a stage.

    Attributes:
        ranks: Global ranks, row-major in (dp, cp, tp).
        rows_per_dp: Samples of each dp index; consecutive.
        cp, tp: Degrees.
        seq_len: Tokens of a sample.
        zigzag: Whether a cp index holds chunks i and 2 cp - 1 - i of 2 cp, else chunk i of cp.
        sequence_parallel: Whether the tokens of a cp index are split over tp, in order, else replicated.
    """

    ranks: tuple[int, ...]
    rows_per_dp: tuple[int, ...]
    cp: int
    tp: int
    seq_len: int
    zigzag: bool
    sequence_parallel: bool

    @cached_property
    def holdings(self) -> dict[int, Holding]:
        """What each global rank holds."""
        rows = self._rows()
        found = {}
        for idx, rank in enumerate(self.ranks):
            dp_idx, rest = divmod(idx, self.cp * self.tp)
            cp_idx, tp_idx = divmod(rest, self.tp)
            tokens = context_share(self.seq_len, self.cp, cp_idx, zigzag=self.zigzag)
            if self.sequence_parallel:
                size = self.seq_len // self.cp // self.tp
                tokens = _cut(tokens, tp_idx * size, (tp_idx + 1) * size)
                found[rank] = Holding(rows[dp_idx], tokens)
            else:
                found[rank] = Holding(rows[dp_idx], tokens, tp_idx, self.tp)
        return found

    def _rows(self) -> list[Interval]:
        """The rows of each dp index."""
        return list(pairwise(accumulate(self.rows_per_dp, initial=0)))


@dataclass(frozen=True, slots=True)
class Block:
    """A rectangle of rows and tokens, as places in one rank's own tensor: ``tensor[rows, tokens]``."""

    rows: Interval
    tokens: Interval

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and tokens."""
        return self.rows[1] - self.rows[0], self.tokens[1] - self.tokens[0]


@dataclass(frozen=True, slots=True)
class Link:
    """One message of a micro-batch.

    Attributes:
        src, dst: Global ranks.
        sent: The blocks of the message in the sender's tensor, in order.
        received: The same blocks in the receiver's tensor.
    """

    src: int
    dst: int
    sent: tuple[Block, ...]
    received: tuple[Block, ...]

    @property
    def num_elements(self) -> int:
        """Pairs of row and token."""
        return sum(block.shape[0] * block.shape[1] for block in self.sent)


def stage_layout(
    stage: StageSection | LayerConfig, ranks: tuple[int, ...], zigzag: bool, seq_len: int
) -> Layout:
    """Returns the layout of the activations between the atoms of a stage, or of a run of its atoms.

    Args:
        stage: Degrees and rows.
        ranks: Global ranks in the order of the mesh.
        zigzag: Whether cp holds tokens in zigzag.
        seq_len: Tokens of a sample.
    """
    return Layout(
        ranks=ranks,
        rows_per_dp=tuple(stage.micro_batch_per_dp_rank),
        cp=stage.cp,
        tp=stage.tp,
        seq_len=seq_len,
        zigzag=zigzag,
        sequence_parallel=stage.sequence_parallel and stage.tp > 1,
    )


def context_share(seq_len: int, cp: int, index: int, *, zigzag: bool) -> tuple[Interval, ...]:
    """Returns the tokens of a cp index as they lie: one interval, or two for ``zigzag``."""
    if cp == 1:
        return ((0, seq_len),)
    if not zigzag:
        size = seq_len // cp
        return ((index * size, (index + 1) * size),)
    size = seq_len // (2 * cp)
    mirror = 2 * cp - 1 - index
    pair = ((index * size, (index + 1) * size), (mirror * size, (mirror + 1) * size))
    return _joined(pair)


def links(src: Layout, dst: Layout) -> tuple[Link, ...]:
    """Returns the messages that bring a micro-batch from one layout to another, by receiver and sender.

    Every receiver gets each of its rows and tokens exactly once. A rank that is in both layouts "sends" to
    itself what it keeps.
    """
    found = []
    for dst_rank, wanted in dst.holdings.items():
        for src_rank, held in src.holdings.items():
            if wanted.replica % held.num_replicas != held.replica:
                continue
            link = _link(src_rank, held, dst_rank, wanted)
            if link is not None:
                found.append(link)
    return tuple(found)


def _link(src_rank: int, held: Holding, dst_rank: int, wanted: Holding) -> Link | None:
    rows = _meet(held.rows, wanted.rows)
    if rows is None:
        return None
    sent, received = [], []
    for have, at_src in zip(held.tokens, _places(held.tokens), strict=True):
        for want, at_dst in zip(wanted.tokens, _places(wanted.tokens), strict=True):
            tokens = _meet(have, want)
            if tokens is not None:
                sent.append(Block(_shift(rows, -held.rows[0]), _shift(tokens, at_src - have[0])))
                received.append(Block(_shift(rows, -wanted.rows[0]), _shift(tokens, at_dst - want[0])))
    return Link(src_rank, dst_rank, tuple(sent), tuple(received)) if sent else None


def _cut(intervals: tuple[Interval, ...], start: int, stop: int) -> tuple[Interval, ...]:
    """Cuts places ``[start, stop)`` out of intervals laid end to end."""
    found = []
    for (first, _), (low, high) in zip(
        intervals, pairwise(accumulate((b - a for a, b in intervals), initial=0)), strict=True
    ):
        part = _meet((low, high), (start, stop))
        if part is not None:
            found.append(_shift(part, first - low))
    return tuple(found)


def _joined(pair: tuple[Interval, Interval]) -> tuple[Interval, ...]:
    """The innermost index of a zigzag holds two chunks that are neighbours: one interval."""
    return ((pair[0][0], pair[1][1]),) if pair[0][1] == pair[1][0] else pair


def _places(intervals: tuple[Interval, ...]) -> list[int]:
    """Where each interval starts in the tensor that holds them end to end."""
    return list(accumulate((stop - start for start, stop in intervals[:-1]), initial=0))


def _meet(one: Interval, other: Interval) -> Interval | None:
    start, stop = max(one[0], other[0]), min(one[1], other[1])
    return (start, stop) if start < stop else None


def _shift(interval: Interval, by: int) -> Interval:
    return interval[0] + by, interval[1] + by
