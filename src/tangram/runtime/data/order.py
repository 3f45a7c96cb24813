"""In which order samples are used: a function of seed and epoch, and of nothing else.

Every epoch is a permutation of all samples, and steps read on over the end of one epoch into the next, so
that no sample is left out, whatever the global batch. The permutation is computed sample by sample (a Feistel
network over the next even number of bits, Luby and Rackoff 1988, walked until it falls below the number of
samples, Black and Rogaway 2002). So it needs no memory, and it is the same on every host, with any version of
numpy.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tangram.errors import InputError

Int64Array = NDArray[np.int64]
_Uint64Array = NDArray[np.uint64]

_ROUNDS = 6
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_LARGEST = 2**48
"""Samples that an order can have; far more than any data holds."""


@dataclass(frozen=True, slots=True)
class SampleOrder:
    """The order of samples over all epochs.

    Attributes:
        num_samples: Of an epoch.
        seed: Another seed, another order.
        shuffle: False keeps samples in the order of the data.
    """

    num_samples: int
    seed: int = 0
    shuffle: bool = True

    def __post_init__(self) -> None:
        if not 1 <= self.num_samples <= _LARGEST:
            raise InputError(f"{self.num_samples} samples are out of range", hint=f"legal: 1 to {_LARGEST:,}")
        if self.seed < 0:
            raise InputError(f"{self.seed} is no seed", where="--seed", hint="legal: 0 or more")

    def sample_ids(self, start: int, stop: int) -> Int64Array:
        """Returns which samples stand at the positions ``[start, stop)``, counted over all epochs.

        Returns:
            ``epoch * num_samples + sample``, so that a sample of another epoch has another number.
        """
        positions = np.arange(start, stop, dtype=np.int64)
        epochs, places = np.divmod(positions, self.num_samples)
        found = places.copy()
        if self.shuffle and self.num_samples > 1:
            for epoch in np.unique(epochs).tolist():
                inside = epochs == epoch
                found[inside] = _permuted(places[inside], self.num_samples, (self.seed, epoch))
        return epochs * self.num_samples + found


def _permuted(places: Int64Array, size: int, key: tuple[int, int]) -> Int64Array:
    half = np.uint64(max((size - 1).bit_length() + 1, 2) // 2)
    mask = np.uint64((1 << int(half)) - 1)
    rounds = _round_keys(key)
    found = _feistel(places.astype(np.uint64), half, mask, rounds)
    # The network permutes up to four times as many numbers. Following it from a number below `size` comes
    # back below `size` at last, and no two walks end at the same number.
    while (outside := found >= np.uint64(size)).any():
        found[outside] = _feistel(found[outside], half, mask, rounds)
    return found.astype(np.int64)


def _feistel(
    numbers: _Uint64Array, half: np.uint64, mask: np.uint64, rounds: list[np.uint64]
) -> _Uint64Array:
    left, right = numbers >> half, numbers & mask
    for key in rounds:
        left, right = right, left ^ (_mixed(right ^ key) & mask)
    return (left << half) | right


def _round_keys(key: tuple[int, int]) -> list[np.uint64]:
    state = np.zeros(1, dtype=np.uint64)
    for word in key:
        while True:
            state = _mixed(state ^ np.uint64(word & 0xFFFFFFFFFFFFFFFF))
            word >>= 64
            if not word:
                break
    return [_mixed(state + np.uint64(number))[0] for number in range(1, _ROUNDS + 1)]


def _mixed(values: _Uint64Array) -> _Uint64Array:
    """Every bit of the result depends on every bit of the value: the finaliser of SplitMix64.

    Steele, Lea and Flood 2014, "Fast splittable pseudorandom number generators".
    """
    values = values + _GOLDEN
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))
