from __future__ import annotations

import doctest

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tangram.validation import layers
from tangram.validation.cells import RowError
from tangram.validation.layers import (
    checked_split,
    parse_boundaries,
    parse_split,
    spread_layers,
    without_ends,
)


def test_examples() -> None:
    assert doctest.testmod(layers).failed == 0


@pytest.mark.parametrize(
    ("num_layers", "pp", "vpp", "split"),
    [
        (12, 4, 3, (3, 3, 3, 3)),
        (6, 4, 2, (1, 2, 2, 1)),
        (94, 8, 4, (11, 12, 12, 12, 12, 12, 12, 11)),
        (70, 12, 1, (5, *(6,) * 10, 5)),
        (7, 1, 1, (7,)),
        (5, 2, 1, (3, 2)),
    ],
)
def test_what_megatron_and_deepspeed_do(num_layers: int, pp: int, vpp: int, split: tuple[int, ...]) -> None:
    assert spread_layers(num_layers, pp, vpp) == split


@given(st.integers(1, 200), st.integers(1, 64), st.integers(1, 8))
def test_a_spread_holds_all_layers_and_is_nearly_even(num_layers: int, pp: int, vpp: int) -> None:
    try:
        split = spread_layers(num_layers, pp, vpp)
    except RowError:
        assert num_layers + 2 < 2 * pp
        return
    assert len(split) == pp
    assert sum(split) == num_layers
    ends = [size + (i == 0) + (i == pp - 1) for i, size in enumerate(split)]
    assert max(split) - min(split) <= 2
    assert max(ends) - min(ends) <= 1 or len(set(split)) == 1


def test_too_many_stages() -> None:
    with pytest.raises(RowError, match="1 layers are too few for 8 stages"):
        spread_layers(1, 8, 1)


def test_stated_splits() -> None:
    assert parse_split("7/9/9/7") == (7, 9, 9, 7)
    assert parse_boundaries("0, 7, 14, 20, 30") == (7, 7, 6, 10)
    assert without_ends((26,), 1, 1) == (24,)
    assert without_ends((1, 3, 2), 2, 1) == (0, 2, 1)
    assert checked_split((3, 5), 8, 2) == (3, 5)


@pytest.mark.parametrize("text", ["", "7-9", "7/x", "7//9", "-1/9"])
def test_what_is_no_split(text: str) -> None:
    with pytest.raises(ValueError, match="is no split"):
        parse_split(text)


@pytest.mark.parametrize("text", ["", "3", "a, b"])
def test_what_is_no_list_of_boundaries(text: str) -> None:
    with pytest.raises(ValueError, match="is no list of boundaries"):
        parse_boundaries(text)


def test_splits_that_do_not_fit() -> None:
    with pytest.raises(ValueError, match="does not ascend"):
        parse_boundaries("0, 9, 7")
    with pytest.raises(ValueError, match="does not split 8 layers over 2 stages"):
        checked_split((4, 5), 8, 2)
