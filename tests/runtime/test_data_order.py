"""Every sample of an epoch is used exactly once, in an order that depends on nothing but seed and epoch."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tangram.errors import InputError
from tangram.runtime.data.order import SampleOrder

SIZES = st.integers(1, 300)
SEEDS = st.integers(0, 2**70)


@given(SIZES, SEEDS, st.integers(0, 5), st.booleans())
def test_an_epoch_has_every_sample_once(size: int, seed: int, epoch: int, shuffle: bool) -> None:
    ids = SampleOrder(size, seed, shuffle).sample_ids(epoch * size, (epoch + 1) * size)
    assert sorted(ids.tolist()) == list(range(epoch * size, (epoch + 1) * size))


@settings(deadline=None, max_examples=40)
@given(st.integers(1, 60), SEEDS, st.integers(1, 40), st.integers(1, 40))
def test_the_order_knows_no_batches(size: int, seed: int, batch: int, other: int) -> None:
    """Whatever is read at a time, over the ends of epochs too."""
    order, total = SampleOrder(size, seed), 3 * size

    def read_by(width: int) -> list[int]:
        return [
            int(idx)
            for start in range(0, total, width)
            for idx in order.sample_ids(start, min(start + width, total))
        ]

    assert read_by(batch) == read_by(other)


def test_seeds_and_epochs_have_orders_of_their_own() -> None:
    size = 200
    found = {
        tuple((SampleOrder(size, seed).sample_ids(e * size, (e + 1) * size) % size).tolist())
        for seed in (0, 1, 2, 2**64, 2**64 + 1)
        for e in range(4)
    }
    assert len(found) == 20


def test_without_shuffling() -> None:
    assert SampleOrder(3, shuffle=False).sample_ids(1, 7).tolist() == [1, 2, 3, 4, 5, 6]


def test_orders_look_like_chance() -> None:
    """Where a sample lands, and the distance between neighbours, are spread as those of random orders."""
    size, num_seeds = 64, 400
    places = np.array([SampleOrder(size, seed).sample_ids(0, size) for seed in range(num_seeds)])
    counts = np.array([np.bincount(places[:, p], minlength=size) for p in range(size)])
    expected = num_seeds / size
    chi2 = ((counts - expected) ** 2 / expected).sum()
    degrees = (size - 1) ** 2
    assert abs(chi2 - degrees) < 5 * np.sqrt(2 * degrees)
    steps = np.abs(np.diff(places, axis=1)).mean()
    assert abs(steps - (size + 1) / 3) < 0.5  # the mean distance of two different numbers below size


def test_the_order_never_changes() -> None:
    """A run that goes on after an update must not see samples twice."""
    assert SampleOrder(10, 7).sample_ids(0, 20).tolist() == GOLDEN
    code = (
        "from tangram.runtime.data.order import SampleOrder as O; print(O(10, 7).sample_ids(0, 20).tolist())"
    )
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == str(GOLDEN)


GOLDEN = [1, 0, 7, 5, 4, 2, 8, 9, 6, 3, 12, 16, 14, 19, 18, 11, 15, 10, 13, 17]


def test_many_samples_need_no_memory() -> None:
    ids = SampleOrder(2**48, 1).sample_ids(2**47, 2**47 + 1000)
    assert len(set(ids.tolist())) == 1000


@pytest.mark.parametrize(("size", "seed"), [(0, 0), (2**48 + 1, 0), (5, -1)])
def test_out_of_range(size: int, seed: int) -> None:
    with pytest.raises(InputError):
        SampleOrder(size, seed)
