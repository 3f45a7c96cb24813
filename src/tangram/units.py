"""Units at the border: people write "80GiB" and "100Gbit", the inside uses plain bytes and bytes per second.

Bytes print in GiB, bandwidth in GB/s, NICs are entered in Gbit/s, time prints in s or ms.

>>> parse_bandwidth("100Gbit")
12500000000.0
>>> parse_bytes("80GiB") == 80 * GIB
True
"""

from __future__ import annotations

import math
import re

from tangram.errors import InputError

KIB = 1024
MIB = 1024**2
GIB = 1024**3
GB = 10**9
NS_PER_S = 10**9

_BYTES = {"B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}
_BYTES |= {"KIB": 1024, "MIB": 1024**2, "GIB": 1024**3, "TIB": 1024**4}
_BITS = {"BIT": 1, "KBIT": 10**3, "MBIT": 10**6, "GBIT": 10**9, "TBIT": 10**12}
_TIMES = {"S": 1.0, "MS": 1e-3, "US": 1e-6, "NS": 1e-9}
_NUMBER_UNIT = re.compile(r"\s*([0-9]+(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?)\s*([A-Za-z]*(?:/s)?)\s*")


def parse_bytes(text: str, *, where: str | None = None) -> int:
    """Parses a size such as ``80GiB`` or ``16GB`` into bytes.

    Raises:
        InputError: The text is not a number followed by a unit of bytes.
    """
    value, unit = _split(text, "a size such as 80GiB", where)
    factor = _BYTES.get(unit.upper())
    if factor is None:
        raise InputError(
            f"{text!r} has no unit of bytes", where=where, hint="write for example 80GiB or 16GB"
        )
    return round(value * factor)


def parse_bandwidth(text: str, *, where: str | None = None) -> float:
    """Parses a bandwidth such as ``100Gbit``, ``100Gbit/s`` or ``300GB/s`` into bytes per second.

    Raises:
        InputError: The text is not a number followed by a unit of bandwidth, or is not above zero.
    """
    value, unit = _split(text, "a bandwidth such as 100Gbit or 300GB/s", where)
    upper = unit.upper()
    bits = _BITS.get(upper.removesuffix("/S"))
    size = _BYTES.get(upper.removesuffix("/S")) if upper.endswith("/S") else None
    if bits is None and size is None:
        raise InputError(
            f"{text!r} has no unit of bandwidth", where=where, hint="write for example 100Gbit or 300GB/s"
        )
    rate = value * (bits / 8 if bits is not None else float(size or 0))
    if not 0 < rate < math.inf:
        problem = "is not above zero" if rate == 0 else "is too large a number"
        raise InputError(
            f"bandwidth {text!r} {problem}", where=where, hint="write for example 100Gbit or 300GB/s"
        )
    return rate


def parse_duration(text: str, *, where: str | None = None) -> float:
    """Parses a duration such as ``5us`` into seconds.

    Raises:
        InputError: The text is not a number followed by s, ms, us or ns.
    """
    value, unit = _split(text, "a duration such as 5us", where)
    factor = _TIMES.get(unit.upper())
    if factor is None:
        raise InputError(f"{text!r} has no unit of time", where=where, hint="write for example 5us")
    return value * factor


def format_bytes(num_bytes: float) -> str:
    """Formats bytes in GiB, as the project prints all sizes."""
    gib = num_bytes / GIB
    return f"{gib:.2f} GiB" if abs(gib) < 10 else f"{gib:.1f} GiB"


def format_bandwidth(bytes_per_s: float) -> str:
    """Formats a bandwidth in GB/s."""
    rate = bytes_per_s / GB
    return f"{rate:.4g} GB/s"


def format_duration(seconds: float) -> str:
    """Formats a duration in s or ms, with three digits that matter."""
    if abs(seconds) >= 1:
        return f"{seconds:.2f} s" if abs(seconds) < 100 else f"{seconds:.1f} s"
    return f"{seconds * 1e3:.3g} ms"


def count_of(number: int, noun: str) -> str:
    """Formats a count with its noun: ``1 stage``, ``2 stages``."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _split(text: str, expected: str, where: str | None) -> tuple[float, str]:
    match = _NUMBER_UNIT.fullmatch(text)
    if match is None:
        raise InputError(f"{text!r} is not {expected}", where=where)
    return float(match.group(1)), match.group(2)
