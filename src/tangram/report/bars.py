"""Bars of a given width, in block characters or in ASCII.

>>> bar(0.5, 8, unicode=False)
'####....'
"""

from __future__ import annotations

from collections.abc import Sequence

_EIGHTHS = " ▏▎▍▌▋▊▉"
_SHADES = " ░▒▓█"
_ASCII_SHADES = " .:*#"


def bar(fraction: float, width: int, *, unicode: bool) -> str:
    """Returns a bar of ``width`` characters that is full at 1; what is above 1 does not show.

    Anything above zero shows at least a sliver, and anything below one leaves a gap in ASCII.
    """
    share = min(max(fraction, 0.0), 1.0)
    if not unicode:
        full = round(share * width)
        if share > 0:
            full = max(full, 1)
        if share < 1:
            full = min(full, width - 1)
        return "#" * full + "." * (width - full)
    eighths = round(share * width * 8)
    if share > 0:
        eighths = max(eighths, 1)
    if share < 1:
        eighths = min(eighths, width * 8 - 1)
    full, rest = divmod(eighths, 8)
    partial = _EIGHTHS[rest] if rest else ""
    return "█" * full + partial + "░" * (width - full - len(partial))


def fill_style(fraction: float) -> str:
    """Returns the colour of a memory bar: green, yellow from 90 %, red above the capacity."""
    if fraction > 1:
        return "red"
    return "yellow" if fraction >= 0.9 else "green"


def shades(fractions: Sequence[float], *, unicode: bool) -> str:
    """Returns one character per fraction: blank for nothing, solid for 1."""
    glyphs = _SHADES if unicode else _ASCII_SHADES
    steps = len(glyphs) - 1
    texts = []
    for fraction in fractions:
        share = min(max(fraction, 0.0), 1.0)
        level = round(share * steps)
        texts.append(glyphs[max(level, 1) if share > 0.02 else level])
    return "".join(texts)
