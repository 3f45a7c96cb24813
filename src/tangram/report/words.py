"""Numbers and lists as people read them.

>>> counted(1, "stage"), counted(1200, "GPU")
('1 stage', '1,200 GPUs')
>>> big(12_853_473_280), big(2_097_152), percent(0.0142)
('12.9 B', '2.1 M', '1.4%')
>>> listed(["a", "b", "c"])
'a, b and c'
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from tangram.plan.schema import PlanDocument

_SCALES = ((1e12, "T"), (1e9, "B"), (1e6, "M"), (1e3, "k"))


def counted(number: int, noun: str, plural: str | None = None) -> str:
    """Returns a number with its noun, in the plural where it belongs."""
    return f"{number:,} {noun if number == 1 else plural or noun + 's'}"


def big(number: float) -> str:
    """Returns a count in three digits: k, M, B (10^9) or T."""
    for idx, (scale, letter) in enumerate(_SCALES):
        if abs(number) >= scale:
            digits = _three_digits(number / scale)
            if float(digits) >= 1000 and idx:
                scale, letter = _SCALES[idx - 1]
                digits = _three_digits(number / scale)
            return f"{digits} {letter}"
    return _three_digits(number)


def percent(fraction: float) -> str:
    """Returns a fraction in per cent: one digit behind the point below ten, none from there."""
    value = fraction * 100
    return f"{value:.1f}%" if abs(value) < 9.95 else f"{value:.0f}%"


def times(ratio: float) -> str:
    """Returns a ratio: ``1.41x``, ``12.6x``, ``130x``."""
    if ratio < 9.995:
        return f"{ratio:.2f}x"
    return f"{ratio:.1f}x" if ratio < 99.95 else f"{ratio:,.0f}x"


def listed(items: Iterable[str], last: str = "and") -> str:
    """Returns ``a, b and c``."""
    words = list(items)
    if len(words) <= 1:
        return "".join(words)
    return f"{', '.join(words[:-1])} {last} {words[-1]}"


def ranges(numbers: Sequence[int]) -> str:
    """Returns ascending numbers as ranges: ``0-3, 5, 7-8``.

    >>> ranges([0, 1, 2, 3, 5, 7, 8])
    '0-3, 5, 7-8'
    """
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return ", ".join(str(a) if a == b else f"{a}-{b}" for a, b in runs)


def sentence(text: str) -> str:
    """Returns the text with a full stop, unless it has an end already."""
    stripped = text.strip()
    return stripped if not stripped or stripped[-1] in ".!?:" else stripped + "."


def _three_digits(value: float) -> str:
    text = f"{value:.3g}"
    return f"{value:.0f}" if "e" in text else text


def band_of(doc: PlanDocument) -> str:
    """How far off the predicted step may be: `` +-25%``; empty where nobody knows."""
    width = doc.prediction.time_band_frac
    return "" if width is None else f" +-{percent(width)}"
