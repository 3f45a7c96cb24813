from __future__ import annotations

import doctest

from hypothesis import given
from hypothesis import strategies as st

from tangram.model import vocabulary
from tangram.model.vocabulary import padded_vocab_size


def test_examples() -> None:
    assert doctest.testmod(vocabulary).failed == 0
    assert padded_vocab_size(51200, tp=8) == 51200
    assert padded_vocab_size(32000, tp=1) == 32000
    assert padded_vocab_size(32000, tp=8) == 32768
    assert padded_vocab_size(151936, tp=4) == 152064
    assert padded_vocab_size(1, tp=3, multiple=2) == 6


@given(st.integers(1, 300_000), st.integers(1, 64), st.integers(1, 256))
def test_the_smallest_multiple(vocab_size: int, tp: int, multiple: int) -> None:
    padded = padded_vocab_size(vocab_size, tp, multiple)
    assert padded % (tp * multiple) == 0
    assert vocab_size <= padded < vocab_size + tp * multiple
