from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tangram.validation.cells import Cells, RowError


@pytest.mark.parametrize(("text", "value"), [("8", 8), (" 8 ", 8), ("8.0", 8), ("1024.00", 1024)])
def test_counts(text: str, value: int) -> None:
    assert Cells({"tp": text}).count("tp") == value


@pytest.mark.parametrize("text", ["0", "-1", "2.5", "eight", "8x", "1e3", "nan", "9" * 16, "٨"])
def test_what_is_no_count(text: str) -> None:
    with pytest.raises(RowError, match="is no whole number above 0") as caught:
        Cells({"tp": text}, {"tp": "tensor parallelism"}).count("tp")
    assert caught.value.code == "not-a-number"
    assert caught.value.column == "tensor parallelism"


@pytest.mark.parametrize("text", ["0", "-1", "fast", "inf", "nan", "1,5", "OOM"])
def test_what_is_no_number(text: str) -> None:
    with pytest.raises(RowError, match="is no number above 0"):
        Cells({"iter_s": text}).optional_number("iter_s")


def test_empty_and_missing_cells() -> None:
    cells = Cells({"tp": "", "cp": " "})
    assert cells.count("cp", 1) == 1
    assert cells.optional_count("tp") is None
    assert cells.optional_number("iter_s") is None
    with pytest.raises(RowError, match="is empty"):
        cells.count("tp")
    with pytest.raises(RowError, match="is missing from the table"):
        cells.count("pp")


@given(st.text(max_size=30))
def test_any_text_is_a_number_or_a_row_error(text: str) -> None:
    cells = Cells({"a": text})
    for read in (cells.optional_count, cells.optional_number):
        with contextlib.suppress(RowError):
            value = read("a")
            assert value is None or value > 0
