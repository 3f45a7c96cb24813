"""What the cost model's time of an atom has to be multiplied by, to agree with measured layers.

* An atom that was timed with its tensor-parallel collectives, or at tp = 1, is set against the cost model's
  time of that very atom on that very node, so what was measured is predicted as measured.
* A rank that was timed alone ran norms and residuals of all tokens; it is set against the formula of what it
  ran, and the factor is that of compute alone.
* Where the layers of one atom were timed both ways, or where nothing comparable was measured, there is none.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from math import fsum

from tangram.job import Precision
from tangram.profiles.formula import Formula
from tangram.profiles.lookup import Basis, LayerEstimate, layer_times
from tangram.profiles.measured import LayerQuery, MeasuredLayers
from tangram.profiles.shapes import LayerShape


@dataclass(frozen=True, slots=True)
class AtomFactor:
    """Factors of one atom.

    Attributes:
        forward, backward: Of the two passes; backward without recomputation.
        includes_tp_comm: Whether they hold for compute and tensor-parallel collectives inside a node
            together, or for compute alone.
        basis: The weakest of what its layers rest on.
    """

    forward: float
    backward: float
    includes_tp_comm: bool
    basis: Basis


@dataclass(frozen=True, slots=True)
class AtomQuery:
    """An atom as it runs; see :class:`tangram.profiles.measured.LayerQuery`.

    Attributes:
        gpu: Name of the part.
        precision: Arithmetic of the matrix products.
        shapes: What it consists of, unsharded.
        tp: Tensor-parallel degree, inside one node.
        micro_batch: Samples on the rank.
    """

    gpu: str
    precision: Precision
    shapes: tuple[LayerShape, ...]
    tp: int
    micro_batch: int


def atom_factor(
    measured: MeasuredLayers, query: AtomQuery, formula: Formula, base: tuple[float, float]
) -> AtomFactor | None:
    """Returns the factors of an atom; None where nothing comparable was measured.

    Args:
        measured: The measurements.
        query: The atom.
        formula: What measurements of other layers are set against.
        base: The cost model's times of this very atom, forward and backward, its tensor-parallel collectives
            included; seconds.
    """
    estimates: list[LayerEstimate] = []
    alone: list[tuple[float, float]] = []
    for shape in query.shapes:
        layer = LayerQuery(query.gpu, query.precision, shape, query.tp, query.micro_batch)
        found = layer_times(measured, layer, formula)
        if found is None:
            return None
        estimates.append(found)
        if query.tp > 1 and not found.includes_tp_comm:
            share = formula(shape, query.tp, query.micro_batch, False)
            if share is None:
                return None
            alone.append(share)
    if alone and len(alone) < len(estimates):
        return None
    if alone:
        base = fsum(one[0] for one in alone), fsum(one[1] for one in alone)
    if not estimates or min(base) <= 0:
        return None
    return AtomFactor(
        fsum(e.forward_s for e in estimates) / base[0],
        fsum(e.backward_s for e in estimates) / base[1],
        includes_tp_comm=query.tp > 1 and not alone,
        basis=weakest(estimate.basis for estimate in estimates),
    )


def weakest(bases: Iterable[Basis]) -> Basis:
    """Returns the worst of some bases; at least one."""
    order = list(Basis)
    return max(bases, key=order.index)
