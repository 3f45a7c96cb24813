from __future__ import annotations

import pytest

from tangram.report import words


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (0, "0"),
        (950, "950"),
        (1000, "1 k"),
        (999_999, "1 M"),
        (2_097_152, "2.1 M"),
        (12_853_473_280, "12.9 B"),
        (4.5e13, "45 T"),
        (3e16, "30000 T"),
    ],
)
def test_big(number: float, text: str) -> None:
    assert words.big(number) == text


@pytest.mark.parametrize(
    ("fraction", "text"), [(0, "0.0%"), (0.0142, "1.4%"), (0.0999, "10%"), (0.5, "50%"), (1.234, "123%")]
)
def test_percent(fraction: float, text: str) -> None:
    assert words.percent(fraction) == text


@pytest.mark.parametrize(
    ("ratio", "text"),
    [(1.0, "1.00x"), (1.409, "1.41x"), (9.996, "10.0x"), (99.96, "100x"), (1234.5, "1,234x")],
)
def test_times(ratio: float, text: str) -> None:
    assert words.times(ratio) == text


def test_lists() -> None:
    assert words.listed([]) == ""
    assert words.listed(["a"]) == "a"
    assert words.listed(["a", "b"], "or") == "a or b"
    assert words.ranges([]) == ""
    assert words.ranges([4]) == "4"


def test_sentences_end_once() -> None:
    assert words.sentence("it fits ") == "it fits."
    assert words.sentence("does it?") == "does it?"
    assert words.sentence("") == ""


def test_counted() -> None:
    assert words.counted(1, "micro-batch", "micro-batches") == "1 micro-batch"
    assert words.counted(0, "micro-batch", "micro-batches") == "0 micro-batches"
