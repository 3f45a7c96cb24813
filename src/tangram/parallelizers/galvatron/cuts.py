"""Where to cut a slice into stages: the fastest pipeline of given stages, over all cuts.

A stage takes ``v = t + u / m`` per micro-batch: its time, and its step end shared out. A pipeline takes

    sum v + (m - 1) max v;

transfers inside of a portion are left to the referee. For a cap on the maximum the least sum is a programme
over (stages so far, atoms so far). The cap starts without limit and falls: below the slowest stage of the
plan just found, and below what a better plan's slowest stage may take, since sums only grow as the cap falls.
"""

from __future__ import annotations

import numpy as np

from tangram.cost.types import FloatArray


def best_cuts(value_s: FloatArray, num_micro_batches: int) -> tuple[float, tuple[int, ...]] | None:
    """Returns the time of the fastest pipeline and its inner cuts; None where none fits.

    Args:
        value_s: ``v`` of stage ``k`` from position ``i`` to position ``j``; shape ``(num_stages,
            num_positions, num_positions)``; ``inf`` where it does not fit.
        num_micro_batches: ``m``, per step.
    """
    cap, further = np.inf, num_micro_batches - 1
    best: tuple[float, tuple[int, ...]] | None = None
    while (found := _least_sum(np.where(value_s < cap, value_s, np.inf))) is not None:
        total, cuts = found
        bounds = [0, *cuts, value_s.shape[1] - 1]
        slowest = max(float(value_s[k, bounds[k], bounds[k + 1]]) for k in range(len(value_s)))
        if best is None or total + further * slowest < best[0]:
            best = total + further * slowest, cuts
        cap = min(slowest, (best[0] - total) / further) if further else 0.0
    return best


def _least_sum(value_s: FloatArray) -> tuple[float, tuple[int, ...]] | None:
    """Returns the least sum of stages that cover all positions, and the inner cuts."""
    front, choices = value_s[0, 0], []
    for stage in value_s[1:]:
        through = front[:, None] + stage
        choices.append(through.argmin(axis=0))
        front = through.min(axis=0)
    if not np.isfinite(front[-1]):
        return None
    at, cuts = len(front) - 1, []
    for before in reversed(choices):
        at = int(before[at])
        cuts.append(at)
    return float(front[-1]), tuple(reversed(cuts))
