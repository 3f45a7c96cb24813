from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tangram.report.bars import bar, fill_style, shades


@given(st.floats(-1, 3), st.integers(1, 40), st.booleans())
def test_a_bar_has_its_width(fraction: float, width: int, unicode: bool) -> None:
    assert len(bar(fraction, width, unicode=unicode)) == width


@given(st.floats(0, 1), st.floats(0, 1), st.integers(2, 40))
def test_a_fuller_bar_is_never_shorter(a: float, b: float, width: int) -> None:
    low, high = sorted((a, b))
    assert bar(low, width, unicode=False).count("#") <= bar(high, width, unicode=False).count("#")


@pytest.mark.parametrize(
    ("fraction", "ascii_bar", "block_bar"),
    [
        (0.0, "........", "░░░░░░░░"),
        (0.001, "#.......", "▏░░░░░░░"),
        (0.5, "####....", "████░░░░"),
        (0.999, "#######.", "███████▉"),
        (1.0, "########", "████████"),
        (1.7, "########", "████████"),
    ],
)
def test_bars(fraction: float, ascii_bar: str, block_bar: str) -> None:
    assert bar(fraction, 8, unicode=False) == ascii_bar
    assert bar(fraction, 8, unicode=True) == block_bar


def test_only_a_full_gpu_alarms() -> None:
    assert [fill_style(x) for x in (0.5, 0.95, 1.0, 1.01)] == ["green", "yellow", "yellow", "red"]


def test_shades() -> None:
    assert shades([0, 0.1, 0.5, 1], unicode=False) == " .:#"
    assert shades([0, 0.1, 0.5, 1], unicode=True) == " ░▒█"
