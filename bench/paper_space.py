"""Figure 4: how many plans there are, on equal GPUs, on two kinds of GPUs, and with islands.

A plan cuts ``L`` layers into ``S`` stages at ``L - 1`` places and gives every stage a number of units of
GPUs, such that all are used; a stage of ``n`` GPUs has as many configurations as ``n`` has ways of being
dp x tp. Units per stage (of either kind) are powers of two, or 0 of one kind. A unit is one GPU, or a node of
4 or of 8. The paper does not say how it counts; the table shows how much the count depends on that.

The count is the coefficient of ``x^a y^b`` in ``sum over S of C(L - 1, S - 1) P(x, y)^S``, where ``P`` has
one term per number of units of either kind that a stage may have.
"""

from __future__ import annotations

from math import comb, log2

import numpy as np

LAYERS, GPUS = 40, 512
UNITS = (1, 4, 8)


def ways(num_gpus: int) -> float:
    """Returns how many pairs (dp, tp) multiply to a number of GPUs that is a sum of powers of two."""
    return float(sum(num_gpus % tp == 0 for tp in range(1, num_gpus + 1)))


def count(layers: int, first: int, second: int, unit: int, *, together: bool) -> float:
    """Returns the number of plans on two kinds of GPUs; on one, where ``second`` is 0.

    Args:
        layers: To cut.
        first, second: Units of either kind.
        unit: GPUs of a unit.
        together: Whether a stage may hold both kinds; else it is on one island.
    """
    terms = [
        (a, b, ways(unit * (a + b)))
        for a in _sizes(first)
        for b in _sizes(second)
        if a + b and (together or not (a and b))
    ]
    power = np.zeros((first + 1, second + 1))
    power[0, 0] = 1.0
    total = 0.0
    for stages in range(1, layers + 1):
        longer = np.zeros_like(power)
        for a, b, number in terms:
            longer[a:, b:] += number * power[: first + 1 - a, : second + 1 - b]
        power = longer
        total += comb(layers - 1, stages - 1) * float(power[first, second])
    return total


def _sizes(units: int) -> list[int]:
    return [0, *(2**k for k in range(int(log2(units)) + 1))] if units else [0]


def rows() -> list[dict[str, object]]:
    """Returns the counts of the paper's case, one row per unit."""
    found: list[dict[str, object]] = []
    for unit in UNITS:
        units = GPUS // unit
        equal = count(LAYERS, units, 0, unit, together=False)
        both = count(LAYERS, units // 2, units // 2, unit, together=True)
        islands = count(LAYERS, units // 2, units // 2, unit, together=False)
        found.append(
            {
                "unit": "a GPU" if unit == 1 else f"a node of {unit}",
                "equal GPUs": equal,
                "two kinds, any stage": both,
                "two kinds, islands": islands,
                "two kinds over equal": both / equal,
                "any stage over islands": both / islands,
            }
        )
    return found
