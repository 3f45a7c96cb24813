"""From measured layers to the time of any layer: as measured, interpolated, or a formula scaled to agree.

Pure functions over a table in memory. In this order:

1. *measured*: the exact shape, tp and micro-batch.
2. *interpolated*: the exact shape and tp, between the two nearest measured micro-batches, on a straight line:
   a pass takes a fixed time and so much per sample. Never beyond the measured range. (On published profiles
   the median error of a straight line was 0.3 to 3.2 %, of a line through logarithms 1.0 to 7.4 %.)
3. A layer or block of which all pieces are measured or interpolated is their sum.
4. *scaled formula*: the formula at the query times measured / formula at up to four of the nearest measured
   points (:mod:`tangram.profiles.measured` says what is near): a geometric mean, weighted by the inverse
   square of the distance. This is also what happens beyond the measured micro-batches.

A source may give less than forward and backward. The sum of both is split as the formula splits it, and
counts as measured; one of them alone gives the other by the formula, scaled alike (an embedding's as it is),
and counts as a scaled formula.

Times with and without tensor-parallel collectives are never mixed: an answer says which it is.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from tangram.profiles.formula import Formula, PassTimes
from tangram.profiles.measured import LayerQuery, MeasuredLayers, Table, nearest
from tangram.profiles.records import LayerTime
from tangram.profiles.shape_pieces import sub_shapes
from tangram.profiles.shapes import LayerKind, LayerShape

NUM_NEIGHBOURS = 4
"""Measured points that a scaled formula agrees with, at most."""


class Basis(StrEnum):
    """What a time rests on, the best first."""

    MEASURED = "measured"
    INTERPOLATED = "interpolated"
    SCALED = "scaled formula"


@dataclass(frozen=True, slots=True)
class LayerEstimate:
    """The time of a layer.

    Attributes:
        forward_s, backward_s: Per micro-batch; backward without recomputation.
        includes_tp_comm: Whether they hold tensor-parallel collectives inside a node; false for tp = 1.
        basis: What they rest on.
        distance: To the nearest measurement that a scaled formula agrees with, in factors of two; else 0.
        sources: Of the measurements used, sorted.
    """

    forward_s: float
    backward_s: float
    includes_tp_comm: bool
    basis: Basis
    distance: float
    sources: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Factors:
    """What a formula has to be multiplied by to agree with measurements.

    Attributes:
        forward, backward: Estimate / formula.
        includes_tp_comm: Whether the factors hold for compute and tensor-parallel collectives together, or
            for compute alone.
        basis, distance: As in :class:`LayerEstimate`.
    """

    forward: float
    backward: float
    includes_tp_comm: bool
    basis: Basis
    distance: float


def layer_times(
    measured: MeasuredLayers, query: LayerQuery, formula: Formula | None = None
) -> LayerEstimate | None:
    """Returns the time of a layer from measurements.

    Args:
        measured: The measurements.
        query: The layer.
        formula: What measurements are set against. Without one, only exact and interpolated answers with
            both passes are given.

    Returns:
        The best answer by the rules above; None where nothing comparable was measured on this GPU in this
        precision.
    """
    table = measured.tables.get((query.gpu, query.precision))
    if table is None:
        return None
    variants = (True, False) if query.tp > 1 else (False,)
    direct = [
        found for v in variants if (found := _direct(table, query.shape, query, v, formula)) is not None
    ]
    best = min(direct, key=lambda found: list(Basis).index(found.basis), default=None)
    if best is not None or formula is None:
        return best
    return _scaled(table, query, formula)


def factors(measured: MeasuredLayers, query: LayerQuery, formula: Formula) -> Factors | None:
    """Returns what the formula has to be multiplied by; arguments as in :func:`layer_times`.

    Returns:
        None where nothing comparable was measured, or the formula has no answer.
    """
    found = layer_times(measured, query, formula)
    if found is None:
        return None
    base = formula(query.shape, query.tp, query.micro_batch, found.includes_tp_comm)
    if base is None or min(base) <= 0:
        return None
    return Factors(
        found.forward_s / base.forward_s,
        found.backward_s / base.backward_s,
        found.includes_tp_comm,
        found.basis,
        found.distance,
    )


def _direct(
    table: Table, shape: LayerShape, query: LayerQuery, with_comm: bool, formula: Formula | None
) -> LayerEstimate | None:
    """Measured or interpolated, the shape itself or the sum of its pieces."""
    series = table.series.get((shape, query.tp, with_comm), ())
    exact = next((r for r in series if r.micro_batch == query.micro_batch), None)
    if exact is not None:
        return _completed(exact, formula)
    below = max((r for r in series if r.micro_batch < query.micro_batch), default=None, key=_micro_batch)
    above = min((r for r in series if r.micro_batch > query.micro_batch), default=None, key=_micro_batch)
    if below is not None and above is not None:
        return _interpolated(below, above, query.micro_batch, formula)
    pieces = sub_shapes(shape)
    found = [_direct(table, piece, query, with_comm, formula) for piece in pieces]
    known = [piece for piece in found if piece is not None]
    return _sum(known) if pieces and len(known) == len(pieces) else None


def _interpolated(
    below: LayerTime, above: LayerTime, micro_batch: int, formula: Formula | None
) -> LayerEstimate | None:
    low, high = _completed(below, formula), _completed(above, formula)
    if low is None or high is None:
        return None
    share = (micro_batch - below.micro_batch) / (above.micro_batch - below.micro_batch)

    def between(a: float, b: float) -> float:
        return (1 - share) * a + share * b

    scaled = Basis.SCALED in (low.basis, high.basis)
    return LayerEstimate(
        between(low.forward_s, high.forward_s),
        between(low.backward_s, high.backward_s),
        low.includes_tp_comm,
        Basis.SCALED if scaled else Basis.INTERPOLATED,
        0.0,
        tuple(sorted({*low.sources, *high.sources})),
    )


def _sum(pieces: Sequence[LayerEstimate]) -> LayerEstimate:
    order = list(Basis)
    return LayerEstimate(
        math.fsum(piece.forward_s for piece in pieces),
        math.fsum(piece.backward_s for piece in pieces),
        pieces[0].includes_tp_comm,
        max((piece.basis for piece in pieces), key=order.index),
        max(piece.distance for piece in pieces),
        tuple(sorted({source for piece in pieces for source in piece.sources})),
    )


def _completed(record: LayerTime, formula: Formula | None) -> LayerEstimate | None:
    """The record as an answer; what it does not give comes from the formula, if it can."""
    comm, sources = record.includes_tp_comm, (record.source,)
    if record.forward_s is not None and record.backward_s is not None:
        times = (record.forward_s, record.backward_s)
        return LayerEstimate(*times, comm, Basis.MEASURED, 0.0, sources)
    base = None if formula is None else formula(record.shape, record.tp, record.micro_batch, comm)
    ratios = None if base is None else _ratios(record, base)
    if base is None or ratios is None:
        return None
    basis = Basis.SCALED if record.forward_backward_s is None else Basis.MEASURED
    times = (base.forward_s * ratios[0], base.backward_s * ratios[1])
    return LayerEstimate(*times, comm, basis, 0.0, sources)


def _ratios(record: LayerTime, base: PassTimes) -> tuple[float, float] | None:
    """Measured / formula of both passes; a pass that was not measured takes the other's.

    Those of an embedding have nothing in common (a lookup and its collective, a scatter), so there the other
    is 1.
    """
    if min(base) <= 0:
        return None
    forward = None if record.forward_s is None else record.forward_s / base.forward_s
    backward = None if record.backward_s is None else record.backward_s / base.backward_s
    if record.forward_backward_s is not None:
        both = record.forward_backward_s / (base.forward_s + base.backward_s)
        forward, backward = forward or both, backward or both
    one = forward if forward is not None else backward
    assert one is not None
    if record.shape.kind is LayerKind.EMBEDDING:
        one = 1.0
    return (forward if forward is not None else one, backward if backward is not None else one)


def _scaled(table: Table, query: LayerQuery, formula: Formula) -> LayerEstimate | None:
    """The formula, scaled to agree with the nearest measurements.

    The nearest one decides whether collectives are in; measurements at tp = 1 have none, and serve both.
    """
    with_comm: bool | None = None
    logs, weights, sources, distances = [], [], [], []
    for distance, record in nearest(table, query):
        if with_comm is not None and record.tp > 1 and record.includes_tp_comm is not with_comm:
            continue
        base = formula(record.shape, record.tp, record.micro_batch, record.includes_tp_comm)
        ratios = None if base is None else _ratios(record, base)
        if ratios is None:
            continue
        if with_comm is None:
            with_comm = record.includes_tp_comm
        logs.append([math.log(ratio) for ratio in ratios])
        weights.append(1 / (distance**2 + 1e-6))  # never infinite: an incomplete record may be at 0
        sources.append(record.source)
        distances.append(distance)
        if len(logs) == NUM_NEIGHBOURS:
            break
    base = formula(query.shape, query.tp, query.micro_batch, bool(with_comm)) if logs else None
    if base is None:
        return None
    total = math.fsum(weights)
    forward, backward = (
        math.exp(math.fsum(w * log[i] for w, log in zip(weights, logs, strict=True)) / total) for i in (0, 1)
    )
    return LayerEstimate(
        base.forward_s * forward,
        base.backward_s * backward,
        bool(with_comm) and query.tp > 1,
        Basis.SCALED,
        distances[0],
        tuple(sorted(set(sources))),
    )


def _micro_batch(record: LayerTime) -> int:
    return record.micro_batch
