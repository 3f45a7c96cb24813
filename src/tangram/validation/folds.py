"""Which rows to fit on and which to score: folds by configuration, and a few rows spread over all."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from tangram.job import Recompute
from tangram.validation.run import Run

FloatArray = NDArray[np.float64]


def assign_folds(keys: Sequence[str], num_folds: int, seed: int) -> list[int]:
    """Returns the fold of each row: rows of one key share one, and folds have as many keys as can be.

    Args:
        keys: One per row, such as the configuration's, the model's or the source's.
        num_folds: At least 2.
        seed: Another seed gives another split; the same gives the same on any machine.
    """
    assert num_folds >= 2
    order = sorted(set(keys), key=lambda key: hashlib.sha256(f"{seed}:{key}".encode()).digest())
    fold_of = {key: idx % num_folds for idx, key in enumerate(order)}
    return [fold_of[key] for key in keys]


def spread_choice(runs: Sequence[Run], count: int) -> list[int]:
    """Chooses rows that are spread over the configurations: each next one is farthest from those chosen.

    Distance is that of doublings: log2 of degrees, sizes and batch, one doubling for another recomputation or
    precision. The first row is the one nearest to the middle; ties go by key and line. Rows of a
    configuration that is chosen already come last.

    Args:
        runs: The rows.
        count: How many; all of them where there are fewer.

    Returns:
        Positions in ``runs``, ascending.
    """
    if count >= len(runs):
        return list(range(len(runs)))
    points = np.array([_point(run) for run in runs], dtype=np.float64)
    order = sorted(range(len(runs)), key=lambda idx: (runs[idx].key, runs[idx].origin.line, idx))
    middle = np.median(points, axis=0)
    chosen = [min(order, key=lambda idx: float(np.abs(points[idx] - middle).sum()))]
    nearest = _distance(points, points[chosen[0]])
    while len(chosen) < count:
        left = [idx for idx in order if idx not in chosen]
        best = max(left, key=lambda idx: float(nearest[idx]))
        chosen.append(best)
        nearest = np.minimum(nearest, _distance(points, points[best]))
    return sorted(chosen)


def _distance(points: FloatArray, point: FloatArray) -> FloatArray:
    distances: FloatArray = np.abs(points - point).sum(axis=1)
    return distances


def _point(run: Run) -> list[float]:
    d, model = run.degrees, run.model
    sizes = (
        d.dp,
        d.tp,
        d.pp,
        d.cp,
        d.ep,
        d.vpp,
        run.micro_batch,
        run.num_micro_batches,
        run.seq_len,
        model.hidden_size,
        model.num_layers,
    )
    kinds = [
        float(list(Recompute).index(run.saving.recompute)),
        float(d.zero),
        0.0 if run.numbers.fp8 == "none" else 1.0,
        1.0 if run.is_moe else 0.0,
        1.0 if run.is_mixed else 0.0,
    ]
    return [math.log2(size) for size in sizes] + kinds
