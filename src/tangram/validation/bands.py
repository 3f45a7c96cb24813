"""Bands: how far off predictions of runs like these have been, for runs that the fit had not seen."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tangram.cost.constants import Shelf
from tangram.cost.types import FloatArray
from tangram.validation.run import Run
from tangram.validation.slots import owners_of

COVERED = 0.9
"""A band holds so many of the rows that it was made of."""

FEWEST_ROWS = 8
"""Of a band; fewer rows say nothing about their like."""


@dataclass(frozen=True, slots=True)
class MeasuredBand:
    """How far off predictions were.

    Attributes:
        gpu_family: Of the runs; None for all together.
        stack: Of the runs; None where their own source was left out of the fit, as for a stack that nobody
            has measured.
        moe: Whether the models have experts; None for both.
        num_rows: Runs.
        half_width_frac: Relative error that ``COVERED`` of the rows stay within.
    """

    gpu_family: str | None
    stack: str | None
    moe: bool | None
    num_rows: int
    half_width_frac: float


def bands(runs: Sequence[Run], seen: FloatArray, unseen: FloatArray) -> list[MeasuredBand]:
    """Makes bands.

    Args:
        runs: Measured runs.
        seen: Their relative errors where other configurations of their source were fitted on; any number of
            splits, shape ``(num_splits, num_runs)``.
        unseen: Their relative errors where their source was left out; shape ``(num_runs,)``.
    """
    family = [owners_of(run)[Shelf.GPU] for run in runs]
    stack = [owners_of(run)[Shelf.STACK] for run in runs]
    moe = [run.is_moe for run in runs]
    found = []
    for key in sorted(set(zip(family, stack, moe, strict=True))):
        where = [idx for idx, own in enumerate(zip(family, stack, moe, strict=True)) if own == key]
        found.append(_band(*key, seen[:, where]))
    for name, kind in sorted(set(zip(family, moe, strict=True))):
        where = [idx for idx, own in enumerate(zip(family, moe, strict=True)) if own == (name, kind)]
        found.append(_band(name, None, kind, unseen[None, where]))
    everywhere = ([idx for idx, own in enumerate(moe) if own is kind] for kind in (False, True))
    found += [_band(None, None, moe[where[0]], unseen[None, where]) for where in everywhere if where]
    return [band for band in found if band.num_rows >= FEWEST_ROWS]


def _band(family: str | None, stack: str | None, moe: bool | None, errors: FloatArray) -> MeasuredBand:
    known = errors[:, np.isfinite(errors).all(axis=0)]
    width = float(np.quantile(np.abs(known), COVERED)) if known.size else 0.0
    return MeasuredBand(family, stack, moe, known.shape[1], width)
