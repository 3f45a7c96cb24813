"""Fits constants to measured runs: robust least squares with priors and bounds.

Residuals are differences of logarithms, so that 10 % too slow counts as much as 10 % too fast and a step of a
minute as much as one of a second; their loss is soft (quadratic up to ``SCALE``, linear beyond), so that a
bad row cannot pull far, and repeats of one configuration count less than as many configurations. Every
constant is fitted by its logarithm, from its shipped value, with the spread and the bounds that
``constants.json`` gives it: a prior counts like one row that is off by ``SCALE`` for each spread from it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import numpy as np

from tangram.cost.constants import Constants, definition
from tangram.cost.types import FloatArray
from tangram.errors import InputError
from tangram.units import GIB
from tangram.validation.pipelines import RunBatch, predict_batch
from tangram.validation.run import Run
from tangram.validation.slots import Base, Shelves, Slot

SCALE = 0.05
"""Relative error up to which residuals count quadratically: about what repeats of a run differ by."""

REPEATS_SHARE = 0.75
"""How far errors of repeats of a configuration are correlated: they share what the form gets wrong there,
some 4 %, and differ by some 2 to 3 %; 4^2 / (4^2 + 2.3^2) = 0.75."""

_TOLERANCE, _MOST_STEPS = 1e-5, 60
_STEP = 1e-4  # of a logarithm, for derivatives

ON_BOUND = 0.01
"""A constant this close to one of its bounds, as a share of its range, sits on it."""


class Target(StrEnum):
    """What is fitted."""

    TIME = "time"
    MEMORY = "memory"


@dataclass(frozen=True, slots=True)
class Fitted:
    """A slot after a fit.

    Attributes:
        slot: Which constant.
        value: Its best value.
        low, high: Its value at one standard deviation of the logarithm either side, from the curvature of the
            loss.
        on_bound: Whether it sits on a physical bound: the form is wrong then, and the value means nothing.
    """

    slot: Slot
    value: float
    low: float
    high: float
    on_bound: bool


def measured(runs: Sequence[Run], target: Target) -> FloatArray:
    """Returns seconds or bytes, and nan where a run has no such figure or its source says not to trust it."""
    found = []
    for run in runs:
        figures = run.measured
        if target is Target.TIME:
            value = figures.iter_s if figures.scores_time else None
        else:
            gib = figures.peak_memory_gib if figures.scores_memory else None
            value = None if gib is None else gib * GIB
        found.append(np.nan if value is None else value)
    return np.array(found, dtype=np.float64)


def predicted(batch: RunBatch, constants: Constants, target: Target) -> FloatArray:
    """Returns seconds or bytes of all runs of a batch."""
    predictions = predict_batch(batch, constants)
    return predictions.iter_s if target is Target.TIME else predictions.peak_bytes


def fit(
    batch: RunBatch,
    slots: Sequence[Slot],
    target: Target,
    start: Sequence[Fitted] = (),
    base: Base = (),
) -> list[Fitted]:
    """Fits slots to the runs of a batch; runs without the figure count nothing.

    Args:
        batch: Measured runs.
        slots: What may change. Slots that no run takes keep their shipped value.
        target: Which figure to fit.
        start: A fit of the same slots to much the same runs, to start from; by default the shipped values.
        base: Values in place of the shipped ones.

    Returns:
        One entry per slot, in order.

    Raises:
        InputError: scipy is missing.
    """
    shelves, truth = Shelves(batch, slots, base), measured(batch.runs, target)
    known = np.isfinite(truth)
    definitions = [definition(slot.constant) for slot in slots]
    low, high = (np.log([getattr(d, side) for d in definitions]) for side in ("low", "high"))
    spread = np.array([d.spread for d in definitions])
    prior = np.clip(np.log(np.maximum(shelves.shipped(), 1e-300)), low + 1e-6, high - 1e-6)
    if not slots or not known.any():
        return [_fitted(s, p, 0.0, -1e9, 1e9) for s, p in zip(slots, prior, strict=True)]

    groups = shelves.groups(batch.run_of_column)
    weight = _weights([run.key for run, has in zip(batch.runs, known, strict=True) if has])
    row_of_run = np.cumsum(known) - 1

    def off(logs: FloatArray) -> FloatArray:
        values = predicted(batch, shelves.constants(np.exp(logs)), target)
        found: FloatArray = np.log(values[known] / truth[known]) / SCALE
        return found

    def residuals(logs: FloatArray) -> FloatArray:
        return np.concatenate([weight * _soft(off(logs)), (logs - prior) / spread])

    def jacobian(logs: FloatArray) -> FloatArray:
        base, rows = off(logs), np.zeros((int(known.sum()), len(slots)))
        for group in groups:
            step = np.zeros(len(slots))
            step[[position for position, _ in group]] = _STEP
            change = (off(logs + step) - base) / _STEP
            for position, runs in group:
                taken = row_of_run[runs & known]
                rows[taken, position] = change[taken]
        return np.concatenate([rows * (weight * _soft_slope(base))[:, None], np.diag(1 / spread)])

    begin = np.log([entry.value for entry in start]) if start else prior
    found = _least_squares()(
        residuals,
        np.clip(begin, low + 1e-6, high - 1e-6),
        jac=jacobian,
        bounds=(low, high),
        x_scale=spread,
        ftol=_TOLERANCE,
        xtol=_TOLERANCE,
        max_nfev=_MOST_STEPS,
    )
    sd = np.sqrt(np.maximum(np.diag(np.linalg.pinv(found.jac.T @ found.jac)), 0.0))
    return [
        _fitted(slot, x, deviation, lowest, highest)
        for slot, x, deviation, lowest, highest in zip(slots, found.x, sd, low, high, strict=True)
    ]


def _weights(keys: Sequence[str]) -> FloatArray:
    """Factors on residuals: n repeats of a configuration count as ``n / (1 + REPEATS_SHARE (n - 1))`` runs.

    That is how many independent ones would have a mean of the same variance.
    """
    repeats = Counter(keys)
    return np.array([(1 + REPEATS_SHARE * (repeats[key] - 1)) ** -0.5 for key in keys], dtype=np.float64)


def _soft(off: FloatArray) -> FloatArray:
    """A residual whose square is quadratic for small errors and linear for large ones."""
    values: FloatArray = np.sign(off) * np.sqrt(2 * (np.sqrt(1 + off * off) - 1))
    return values


def _soft_slope(off: FloatArray) -> FloatArray:
    """Derivative of :func:`_soft`; 1 at zero."""
    root = np.sqrt(1 + off * off)
    soft = np.sqrt(2 * (root - 1))
    with np.errstate(invalid="ignore", divide="ignore"):
        slope: FloatArray = np.where(np.abs(off) > 1e-6, np.abs(off) / (root * soft), 1.0)
    return slope


def _fitted(slot: Slot, log: float, deviation: float, low: float, high: float) -> Fitted:
    edge = ON_BOUND * (high - low)
    value, below, above = (float(np.exp(x)) for x in (log, log - deviation, log + deviation))
    return Fitted(slot, value, below, above, bool(log < low + edge or log > high - edge))


def _least_squares() -> Callable[..., Any]:
    try:
        from scipy.optimize import least_squares  # type: ignore[import-untyped]
    except ImportError:
        raise InputError(
            "fitting needs scipy", where="tangram calibrate", hint="pip install 'tangram-llm[calibrate]'"
        ) from None
    solver: Callable[..., Any] = least_squares
    return solver
