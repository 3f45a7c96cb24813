"""Groups of GPUs: all of them without prunings, fewer with."""

from __future__ import annotations

from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tangram.baselines.metis.groups import device_groups


def every(num_stages: int, num_gpus: int, least: float) -> set[tuple[int, ...]]:
    """By brute force."""
    sizes = [1 << bit for bit in range(num_gpus.bit_length()) if 1 << bit >= least]
    return {groups for groups in product(sizes, repeat=num_stages) if sum(groups) == num_gpus}


@settings(deadline=None)
@given(st.integers(1, 6), st.integers(1, 20), st.sampled_from([0.0, 0.5, 1.0]))
def test_without_blocks_all_sequences_come(num_stages: int, num_gpus: int, variance: float) -> None:
    found = list(device_groups(num_stages, num_gpus, variance, max_blocks=num_stages))
    assert len(found) == len(set(found))
    least = max(num_gpus // num_stages, num_stages // num_gpus) * variance
    assert set(found) == every(num_stages, num_gpus, least)


@settings(deadline=None)
@given(st.integers(1, 12), st.integers(1, 24), st.integers(1, 6))
def test_blocks_leave_some_of_them(num_stages: int, num_gpus: int, max_blocks: int) -> None:
    found = set(device_groups(num_stages, num_gpus, 0.5, max_blocks))
    everything = set(device_groups(num_stages, num_gpus, 0.5, num_stages))
    assert found <= everything
    # Of every multiset of sizes at least one order is left.
    assert {tuple(sorted(groups)) for groups in found} == {tuple(sorted(groups)) for groups in everything}


@pytest.mark.parametrize(
    ("num_stages", "num_gpus", "max_blocks", "orders"),
    [
        (7, 8, 6, 4),  # 1 1 1 1 1 1 2 in blocks of 1 1, 1 1, 1 1, 2
        (8, 8, 4, 1),
        (3, 8, 4, 3),  # 2 2 4
    ],
)
def test_counts(num_stages: int, num_gpus: int, max_blocks: int, orders: int) -> None:
    assert len(set(device_groups(num_stages, num_gpus, 0.5, max_blocks))) == orders
