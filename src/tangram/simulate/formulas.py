"""Closed forms and bounds of 1F1B with unequal stages, in exact arithmetic (a period may be a fraction).

Notation, per stage ``i`` from the front: forward ``f``, backward ``b``, ``t = f + b``, step end ``u``, window
``w`` (micro-batches in flight); per edge behind stage ``i``: ``x`` the forward transfer, ``X`` forward and
backward together, each latency plus occupancy; ``m`` micro-batches, period ``P``. Arguments carry the same
names. A pipeline whose point-to-point blocks is folded first
(:meth:`~tangram.simulate.pipeline.SimPipeline.folded`).

The formulas are Tangram's own; each says why it holds, or how far it has been tried.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

Ints = Sequence[int]


def closed_form_ns(f: Ints, b: Ints, u: Ints, x: Ints, X: Ints, m: int, P: int | Fraction) -> int:  # noqa: N803
    """Returns the iteration time that ranks plans: fill, ``m - 1`` periods, drain, step end.

    ``T = max_i (sum_{j<i} (f_j + x_j) + sum_{j>=i} (t_j + X_j) + (m - 1) P + u_i)``, rounded up.

    Exact for equal stages without transfers. It is a ranking, not a bound. In simulation (several 10^5 random
    pipelines, ``f <= b <= 3 f``) it was never too low for minimal windows with the period of those windows,
    nor for windows by :func:`extra_warmup` while transfers take up to half of a mean stage. It was up to 1 %
    low where the ratio of backward to forward differs much more between stages, and up to 8 % where a link is
    as busy as the slowest stage.

    Args:
        f, b, u: Per stage.
        x, X: Per edge.
        m: Micro-batches.
        P: Steady period, for example the largest ``t``, or :func:`period_for_windows`.
    """
    rest = 0  # A_i = sum of (t_j + X_j) from stage i to the end
    fill = 0  # U_i, of the stages from i to the end
    for i in reversed(range(len(f))):
        is_last = i == len(f) - 1
        rest += f[i] + b[i] + (0 if is_last else X[i])
        fill = rest + u[i] if is_last else max(f[i] + x[i] + fill, rest + u[i])
    return fill + _ceil_div((m - 1) * P.numerator, P.denominator)


def period_for_windows(t: Ints, X: Ints, w: Ints, occupancy: Ints = ()) -> Fraction:  # noqa: N803
    """Returns the steady period of given windows.

    ``P = max over i <= j of (sum_{i..j} t + sum_{i..j-1} X) / (w_i - w_j + 1)``, and no less than any link's
    occupancy. (A cycle of the event graph that zigzags splits into nested up-and-down cycles of the same
    total, so one interval decides.)

    Args:
        t: Forward plus backward per stage.
        X: Per edge, both directions.
        w: Windows, falling by at least one per stage; many more micro-batches than the largest.
        occupancy: Per edge and direction, in any order; empty when links carry any number of transfers at
            once.
    """
    best, best_windows = max(occupancy, default=0), 1
    for i in range(len(t)):
        total = 0
        for j in range(i, len(t)):
            total += t[j] + (X[j - 1] if j > i else 0)
            windows = w[i] - w[j] + 1
            if total * best_windows > best * windows:
                best, best_windows = total, windows
    return Fraction(best, best_windows)


def extra_warmup(t: int, X: int, P: int | Fraction) -> int:  # noqa: N803
    """Returns how many more micro-batches than plain 1F1B a stage holds to hide its edge at period ``P``.

    ``e = max(0, ceil((t + X) / P) - 1)``; the windows ``w_i = w_{i+1} + 1 + e_i`` then keep the period at
    ``P`` if ``P`` is at least every ``t`` and every link's occupancy. Sufficient, and local: it looks at one
    stage and one edge.

    Args:
        t: Forward plus backward of the stage.
        X: Both directions of the edge behind it.
        P: Period, above zero.
    """
    return max(0, _ceil_div((t + X) * P.denominator, P.numerator) - 1)


def lower_bound_ns(
    f: Ints,
    b: Ints,
    u: Ints,
    x: Ints,
    X: Ints,  # noqa: N803
    w: Ints,
    m: int,
    o: Ints = (),
    n: Ints = (),
) -> int:
    """Returns an iteration time that no execution of these windows beats, with or without shared resources.

    From the back, with ``A_i`` the round trip of one micro-batch from stage ``i``, ``V_i`` the time from the
    first forward to the last backward of stage ``i``, and ``W_i`` the same up to the last step end of the
    stages from ``i``::

        A_i = t_i + X_i + A_{i+1}
        V_i = max(t_i + X_i + V_{i+1},  m t_i + idle_i,  A_i + (m - 1) o_i,
                  t_i + X_i - x_i + m (n_i + n_{i+1}))
        W_i = max(f_i + x_i + W_{i+1},  V_i + u_i)
        idle_i = max(0, X_i + A_{i+1} - (w_i - 1) f_i) + max(0, X_i + A_{i+1} - (w_i - 1) b_i)

    The idle time: between the first forward of the stage and its backward a round trip ``X_i + A_{i+1}``
    passes, in which the stage has only ``w_i - 1`` forwards to run; between its last forward and that
    backward it has only ``w_i - 1`` backwards. With ``m > w_i`` these are two different times, and the bound
    is exact for equal stages; else they may be the same, and the longer counts. Windows count up to ``m``.

    The last two terms: the edge behind a stage carries ``m`` tensors one after the other between its first
    forward and its last backward; and the NICs of the stage behind that edge carry those and the ``m`` that
    go the same way over the edge behind it.

    Args:
        f, b, u, w: Per stage.
        x, X: Per edge.
        m: Micro-batches.
        o: Occupancy per edge, one direction; empty when links carry any number of transfers at once.
        n: What of the occupancy holds the NICs at both ends, per edge; empty when none does.
    """
    o, n = (tuple(values) or (0,) * len(x) for values in (o, n))
    n = (*n, 0)
    last = len(f) - 1
    trip = f[last] + b[last]
    busy = m * trip
    end = busy + u[last]
    for i in reversed(range(last)):
        t = f[i] + b[i]
        others = min(w[i], m) - 1
        fill, drain = max(0, X[i] + trip - others * f[i]), max(0, X[i] + trip - others * b[i])
        idle = fill + drain if m > w[i] else max(fill, drain)
        busy = max(t + X[i] + busy, m * t + idle)
        trip += t + X[i]
        busy = max(busy, trip + (m - 1) * o[i], t + X[i] - x[i] + m * (n[i] + n[i + 1]))
        end = max(f[i] + x[i] + end, busy + u[i])
    return end


def _ceil_div(a: int, b: int) -> int:
    return -(-a // b)
