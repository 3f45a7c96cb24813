"""Slices by what they hold, in order: the states of the inter-operator pass.

Unlike the content of a stage, which is a matter of counts (:mod:`tangram.parallelizers.contents`), how a
slice can be cut depends on the order of its atoms. Slices of equal classes in equal order are one run; a
model of equal layers has some four runs per layer instead of half a slice per pair of layers.

A run is cut between layers only: what is finer is clustered, as Alpa clusters operators to layers, and of a
model of many layers a few are clustered to one. Runs are then told apart by where their clusters begin.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from tangram.cost.types import IntArray

MOST_CLUSTERS = 48
"""Of a model of more layers, neighbouring ones are clustered; Alpa's benchmarks have 6 to 16 clusters."""


@dataclass(frozen=True, slots=True, eq=False)
class Runs:
    """The runs of a model, and how each falls into two.

    Attributes:
        number: Run of every slice; shape ``(num_atoms + 1, num_atoms + 1)``, -1 where ``start >= stop``.
        start, stop: First slice of each run; shape ``(num_runs,)``.
        whole: Run of the whole model.
        cut, front, rear: A run, and the two that it falls into at one cut; shape ``(num_cuts,)``, ordered by
            ``rear``.
    """

    number: IntArray
    start: IntArray
    stop: IntArray
    whole: int
    cut: IntArray
    front: IntArray
    rear: IntArray


@lru_cache(maxsize=4)
def runs_of(
    classes: tuple[int, ...], layers: tuple[int | None, ...], dictated: tuple[int, ...] | None
) -> Runs:
    """Returns the runs of a model.

    Args:
        classes: Of the atoms; equal atoms, equal class.
        layers: First layer of each atom; None for the ends of the model.
        dictated: The only places where stages may end, ascending, where the user says so. Runs are then told
            apart by their place as well.
    """
    num = len(classes)
    places = _places(layers) if dictated is None else dictated
    phases = _phases(num, places)
    known: dict[object, int] = {}
    number = np.full((num + 1, num + 1), -1, dtype=np.int64)
    slices: list[tuple[int, int]] = []
    for start in range(num):
        for stop in range(start + 1, num + 1):
            key = (classes[start:stop], phases[start]) if dictated is None else (start, stop)
            run = known.setdefault(key, len(known))
            number[start, stop] = run
            if run == len(slices):
                slices.append((start, stop))
    rows = [
        (number[start, k], number[start, stop], number[k, stop])
        for start, stop in slices
        for k in places
        if start < k < stop
    ]
    front, cut, rear = np.array(sorted(rows, key=lambda row: row[2]), dtype=np.int64).reshape(-1, 3).T
    first, last = np.array(slices, dtype=np.int64).T
    return Runs(number, first, last, int(number[0, num]), cut, front, rear)


def _places(layers: Sequence[int | None]) -> tuple[int, ...]:
    """Returns the atoms in front of which a stage may begin: where a cluster of layers ends."""
    numbers = [-1 if layer is None else layer for layer in layers]
    size = -(-(1 + max(numbers)) // MOST_CLUSTERS)
    found = []
    for k in range(1, len(numbers)):
        behind, here = numbers[k - 1], numbers[k]
        if behind != here and (min(behind, here) < 0 or here % size == 0):
            found.append(k)
    return tuple(found)


def _phases(num: int, places: Sequence[int]) -> list[int]:
    """Returns how far the next place is from every atom; equal atoms behind equal distances are cut alike."""
    distance = [0] * (num + 1)
    for k in range(num - 1, -1, -1):
        distance[k] = 0 if k in places else distance[k + 1] + 1
    return distance
