"""Random numbers that depend on what they are for, not on who draws them.

Number ``i`` of a stream is a hash of the stream's key and of ``i`` (the finaliser of SplitMix64: Steele, Lea
and Flood, OOPSLA 2014), in integer arithmetic that is the same on every device. So a rank draws the numbers
of its region alone, and they are those that one rank would draw for the whole tensor, whatever the plan.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from math import pi
from typing import Any

import torch

_GOLDEN = 0x9E3779B97F4A7C15
_MIX = ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB))
_LAST_SHIFT = 31
_FRACTION_BITS = 52

CHUNK_ELEMENTS = 1 << 20
"""Initial weights are drawn so many at a time, so that intermediate results stay small."""


def key_of(*words: int | str) -> int:
    """Returns the key of a stream: 64 bits (as a signed number) that depend on all words."""
    digest = hashlib.sha256("\0".join(map(str, words)).encode()).digest()
    return int.from_bytes(digest[:8], "little", signed=True)


def bits(key: Any, index: Any) -> Any:
    """Returns the random 64 bits of each index; a tensor of keys is broadcast against the indices."""
    value = index * _signed(_GOLDEN) + key
    for shift, factor in _MIX:
        value = (value ^ _shifted(value, shift)) * _signed(factor)
    return value ^ _shifted(value, _LAST_SHIFT)


def uniform(key: Any, index: Any) -> Any:
    """Returns float64 numbers in the open interval (0, 1)."""
    return (_shifted(bits(key, index), 64 - _FRACTION_BITS).double() + 0.5) * 2.0**-_FRACTION_BITS


def normal(key: int, index: Any) -> Any:
    """Returns standard normal float64 numbers (Box and Muller, 1958)."""
    radius = torch.sqrt(-2.0 * torch.log(uniform(key, 2 * index)))
    return radius * torch.cos(2.0 * pi * uniform(key, 2 * index + 1))


def region_index(full_shape: Sequence[int], region: Sequence[tuple[int, int]], device: Any) -> Any:
    """Returns the places of a region's elements in the whole tensor, row-major; of the region's shape."""
    index = torch.zeros((), dtype=torch.int64, device=device)
    for size, (start, stop) in zip(full_shape, region, strict=True):
        index = (index * size).unsqueeze(-1) + torch.arange(start, stop, device=device)
    return index


def fill_normal(
    target: Any, key: int, std: float, full_shape: Sequence[int], region: Sequence[tuple[int, int]]
) -> None:
    """Fills a tensor with the normal numbers of its region of the whole tensor, of this deviation."""
    rows = max(1, CHUNK_ELEMENTS // max(1, target[0].numel()))
    (first, last), rest = region[0], region[1:]
    for start in range(first, last, rows):
        stop = min(start + rows, last)
        index = region_index(full_shape, [(start, stop), *rest], target.device)
        target[start - first : stop - first] = (std * normal(key, index)).to(target.dtype)


def _signed(number: int) -> int:
    """The 64-bit pattern as torch's int64 has it."""
    return number - (1 << 64) if number >= 1 << 63 else number


def _shifted(value: Any, count: int) -> Any:
    """Logical shift to the right; torch's own keeps the sign."""
    return (value >> count) & ((1 << (64 - count)) - 1)
