"""How unequal the GPUs and links of one island may be."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tangram.errors import InputError

FloatArray = npt.NDArray[np.float64]
BoolArray = npt.NDArray[np.bool_]

_SLACK = 1e-12
"""Relative slack of a comparison, so that 1.05 / 1.00 passes a tolerance of 0.05 in spite of rounding."""


@dataclass(frozen=True, slots=True)
class Tolerances:
    """Largest ratio, minus 1, of best to worst within an island; ``inf`` switches a condition off.

    The defaults hold apart what a plan should treat differently and no more: parts of one kind differ by
    less than 5 % in rate (the boost clock of single cards) and memory, and different parts of the catalogue
    by more; 10 % of link bandwidth is below what a link measurement repeats to. In the network, half as
    much again is the spread of equal links under load, while different racks, fabrics or NICs differ by a
    factor of two and more.

    Attributes:
        compute: Of the achieved matrix rate in the job's precision (the paper's eps_c).
        memory: Of the usable memory (eps_m).
        intra: Of the bandwidth inside a node (eps_i).
        network: Of the bandwidth between nodes: a link may not be slower than 1 / (1 + network) of the
            fastest link of its island. The paper has no such rule: ``inf`` gives the paper's islands.
    """

    compute: float = 0.05
    memory: float = 0.05
    intra: float = 0.10
    network: float = 0.50

    def __post_init__(self) -> None:
        for name in ("compute", "memory", "intra", "network"):
            value = getattr(self, name)
            if math.isnan(value) or value < 0:
                raise InputError(
                    f"{value} is no tolerance", where=f"{name} tolerance", hint="legal: 0 and more, or inf"
                )


def alike(low: float, high: float, tolerance: float) -> bool:
    """Whether ``high / low <= 1 + tolerance``; zero (no such arithmetic at all) is only like zero."""
    if low <= 0:
        return high <= 0
    return high <= low * (1 + tolerance) * (1 + _SLACK)


def all_alike(low: FloatArray, high: FloatArray, tolerance: float) -> BoolArray:
    """:func:`alike`, element by element; no links at all (``low`` infinite) are alike."""
    none = ~np.isfinite(low)
    positive = np.where((low > 0) & ~none, low, 1.0)
    within = high <= positive * (1 + tolerance) * (1 + _SLACK)
    found: BoolArray = np.where(low > 0, within, high <= 0) | none
    return found
