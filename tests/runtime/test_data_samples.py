"""A step's batch, cut as plans cut it: every sample exactly once; and what samples hold."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tangram.errors import InputError
from tangram.runtime.data.order import Int64Array
from tangram.runtime.data.samples import Feed, Samples


class Counted:
    """The tokens 0, 1, 2 ..."""

    place = "numbers"

    def __init__(self, num_tokens: int) -> None:
        self.num_tokens = num_tokens

    def read(self, start: int, stop: int) -> Int64Array:
        return np.arange(start, min(stop, self.num_tokens), dtype=np.int64)


def samples(num_samples: int, seq_len: int = 4, tail: int = 0) -> Samples:
    num_tokens = num_samples * seq_len + 1 + tail
    return Samples(Counted(num_tokens), seq_len, num_tokens)


@st.composite
def cuts(draw: st.DrawFn, micro_batch: int) -> list[int]:
    """Shares of a micro-batch over dp, none of them empty."""
    left, shares = micro_batch, []
    while left:
        shares.append(draw(st.integers(1, left)))
        left -= shares[-1]
    return shares


@settings(deadline=None)
@given(st.data())
def test_every_sample_of_an_epoch_exactly_once_whatever_the_plan(data: st.DataObject) -> None:
    """Micro-batches and unequal dp rows cut the step's batch; all that its ranks read is each row once."""
    num_samples = data.draw(st.integers(1, 60))
    micro_batch, num_micro_batches = data.draw(st.integers(1, 6)), data.draw(st.integers(1, 4))
    shares = data.draw(cuts(micro_batch))
    of = samples(num_samples, tail=data.draw(st.integers(0, 3)))
    feed = Feed.of(of, micro_batch * num_micro_batches, seed=data.draw(st.integers(0, 9)))
    num_epochs = 2
    num_steps = -(-num_epochs * num_samples // feed.global_batch)
    seen: list[int] = []
    for step in range(num_steps):
        batch, rows = feed.batch(step), []
        for k in range(num_micro_batches):
            start = k * micro_batch
            for share in shares:
                ids, labels = batch.rows(start, start + share)
                assert ids.shape == labels.shape == (share, of.seq_len)
                rows += ids[:, 0].tolist()
                start += share
        assert rows == (of.seq_len * (batch.sample_ids % num_samples)).tolist()
        seen += rows
    first_epochs = Counter(seen[: num_epochs * num_samples])
    assert first_epochs == {of.seq_len * i: num_epochs for i in range(num_samples)}
    assert all(
        abs(feed.epoch(s) - (s + 1) * feed.global_batch / num_samples) < 1e-12 for s in range(num_steps)
    )


def test_a_faulty_cut_would_be_seen() -> None:
    """What the test above compares has teeth: a row read twice changes the rows."""
    batch = Feed.of(samples(8), 4).batch(0)
    once = [batch.rows(i, i + 1)[0][0, 0] for i in range(4)]
    twice = [batch.rows(i, i + 1)[0][0, 0] for i in (0, 1, 1, 3)]
    assert sorted(once) != sorted(twice)


@given(st.integers(1, 9), st.integers(1, 9), st.integers(0, 8))
def test_samples_and_labels_cover_the_tokens(num_samples: int, seq_len: int, tail: int) -> None:
    tail = min(tail, seq_len - 1)
    of = samples(num_samples, seq_len, tail)
    assert of.num_samples == num_samples
    assert of.tail_tokens == tail
    ids, labels = Feed.of(of, num_samples, shuffle=False).batch(0).rows(0, num_samples)
    assert ids.ravel().tolist() == list(range(num_samples * seq_len))
    assert (labels == ids + 1).all()


def test_a_sample_of_another_epoch_has_another_number() -> None:
    feed = Feed.of(samples(3), 2)
    ids = np.concatenate([feed.batch(step).sample_ids for step in range(3)])
    assert sorted(ids.tolist()) == list(range(6))


def test_no_rows() -> None:
    ids, labels = Feed.of(samples(3), 2).batch(0).rows(1, 1)
    assert ids.shape == labels.shape == (0, 4)


def test_too_little_text() -> None:
    with pytest.raises(InputError, match="holds 4 tokens; one sample needs 5"):
        Samples(Counted(4), 4, 99)


def test_tokens_of_another_vocabulary() -> None:
    of = Samples(Counted(21), 4, 20)
    of.read(3)
    with pytest.raises(InputError, match="token 20 of sample 4 is not in the model's vocabulary") as caught:
        of.read(4)
    assert caught.value.hint is not None
    assert "0 to 19" in caught.value.hint
