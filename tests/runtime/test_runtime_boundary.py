"""Links between any two layouts, against a table of (row, token) pairs."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tangram.runtime.boundary import Holding, Layout, Link, context_share, links

ROWS, SEQ_LEN = 7, 72  # cp 4 x tp 3, and 2 cp for zigzag, divide it


@st.composite
def layouts(draw: st.DrawFn, first_rank: int) -> Layout:
    dp = draw(st.integers(1, 4))
    cuts = draw(st.lists(st.integers(1, ROWS - 1), min_size=dp - 1, max_size=dp - 1, unique=True))
    rows = [b - a for a, b in itertools.pairwise([0, *sorted(cuts), ROWS])]
    cp, tp = draw(st.sampled_from([1, 2, 3, 4])), draw(st.sampled_from([1, 2, 3]))
    zigzag, sequence_parallel = draw(st.booleans()), draw(st.booleans())
    count = dp * cp * tp
    order = draw(st.permutations(range(first_rank, first_rank + count)))
    return Layout(tuple(order), tuple(rows), cp, tp, SEQ_LEN, zigzag, sequence_parallel)


def cells(holding: Holding) -> np.ndarray:
    """The number of each (row, token) pair, laid out as in the rank's tensor."""
    tokens = np.concatenate([np.arange(start, stop) for start, stop in holding.tokens])
    return np.arange(*holding.rows)[:, None] * SEQ_LEN + tokens[None, :]


def carry(found: tuple[Link, ...], src: Layout, dst: Layout) -> dict[int, np.ndarray]:
    """Executes the links; what nobody sent stays -1, and what two sent fails."""
    have = {rank: cells(holding) for rank, holding in src.holdings.items()}
    got = {rank: np.full_like(cells(holding), -1) for rank, holding in dst.holdings.items()}
    for link in found:
        for one, other in zip(link.sent, link.received, strict=True):
            place = got[link.dst][slice(*other.rows), slice(*other.tokens)]
            assert one.shape == other.shape == place.shape
            assert (place == -1).all(), "sent twice"
            place[:] = have[link.src][slice(*one.rows), slice(*one.tokens)]
    return got


@given(layouts(0), layouts(100))
@settings(max_examples=150, deadline=None)
def test_every_receiver_gets_everything_once(src: Layout, dst: Layout) -> None:
    for one, other in ((src, dst), (dst, src)):
        found = links(one, other)
        assert len({(link.src, link.dst) for link in found}) == len(found), "one message per pair"
        for rank, got in carry(found, one, other).items():
            np.testing.assert_array_equal(got, cells(other.holdings[rank]))


@given(layouts(0), layouts(100))
@settings(max_examples=100, deadline=None)
def test_gradients_take_the_way_back(src: Layout, dst: Layout) -> None:
    """Reversed forward links where nothing is replicated; else never more than those."""
    forward = {(link.src, link.dst): link for link in links(src, dst)}
    back = {(link.dst, link.src): link for link in links(dst, src)}
    replicated = any(h.num_replicas > 1 for layout in (src, dst) for h in layout.holdings.values())
    if replicated:
        return
    assert forward.keys() == back.keys()
    for pair, link in forward.items():
        assert set(zip(link.sent, link.received, strict=True)) == set(
            zip(back[pair].received, back[pair].sent, strict=True)
        )


@given(layouts(0), layouts(100))
@settings(max_examples=60, deadline=None)
def test_messages_of_a_direction_do_not_lock_up_on_one_stream(src: Layout, dst: Layout) -> None:
    """As NCCL may do it: a rank's messages go one after the other, and each waits for the other side."""
    src, dst = (replace(layout, ranks=tuple(sorted(layout.ranks))) for layout in (src, dst))
    for one, other in ((src, dst), (dst, src)):
        queues: dict[int, list[tuple[int, int, int]]] = {rank: [] for rank in (*one.ranks, *other.ranks)}
        for micro_batch in range(2):
            for link in links(one, other):
                for rank in (link.src, link.dst):
                    queues[rank].append((micro_batch, link.src, link.dst))
        moved = True
        while moved:
            heads = [queue[0] for queue in queues.values() if queue]
            met = {head for head in heads if heads.count(head) == 2}
            for _, sender, receiver in met:
                queues[sender].pop(0)
                queues[receiver].pop(0)
            moved = bool(met)
        assert not any(queues.values())


@given(layouts(0))
@settings(max_examples=50, deadline=None)
def test_a_layout_covers_the_micro_batch_as_often_as_it_has_replicas(layout: Layout) -> None:
    count = np.zeros(ROWS * SEQ_LEN, dtype=int)
    for holding in layout.holdings.values():
        assert holding.num_rows * holding.num_tokens == cells(holding).size
        np.add.at(count, cells(holding).ravel(), 1)
    assert (count == (1 if layout.sequence_parallel else layout.tp)).all()


def test_replicas_share_the_sending() -> None:
    """Four receivers, two equal senders: each sends to two."""
    src = Layout((0, 1), (4,), 1, 2, 8, True, False)
    dst = Layout((2, 3, 4, 5), (4,), 1, 4, 8, True, False)
    assert [(link.src, link.dst) for link in links(src, dst)] == [(0, 2), (1, 3), (0, 4), (1, 5)]
    assert [(link.src, link.dst) for link in links(dst, src)] == [(2, 0), (3, 1)]


@pytest.mark.parametrize(
    ("cp", "index", "zigzag", "tokens"),
    [
        (1, 0, True, ((0, 24),)),
        (2, 0, True, ((0, 6), (18, 24))),
        (2, 1, True, ((6, 18),)),
        (3, 1, True, ((4, 8), (16, 20))),
        (2, 1, False, ((12, 24),)),
    ],
)
def test_tokens_of_a_cp_index(cp: int, index: int, zigzag: bool, tokens: tuple[tuple[int, int], ...]) -> None:
    assert context_share(24, cp, index, zigzag=zigzag) == tokens
