"""Measured layers in place of formulas: the factors of a batch of runs, and what each run then rests on.

A stage's layers are looked up by the part that it runs on, the precision, their shapes, tp and samples on the
rank (:mod:`tangram.profiles.lookup`), and set against the cost model's time of the very same atoms
(:mod:`tangram.profiles.factors`). So at the shipped constants what was measured is predicted as measured; a
fit that changes constants afterwards scales it as it would scale the formula.

Runs under context or expert parallelism, and fine-tuning, rest on formulas: layers were timed whole, on whole
sequences, with gradients of all weights. Where an engine runs no LM head, the time of the last norm alone
takes the place of the head's. Memory rests on formulas either way.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from enum import StrEnum

import numpy as np

from tangram.basis import CostBasis
from tangram.cost import work
from tangram.cost.batch import AtomFactors
from tangram.cost.constants import Shelf
from tangram.model.atoms import Atom
from tangram.profiles.factors import AtomFactor, AtomQuery, atom_factor
from tangram.profiles.formula import CostFormula
from tangram.profiles.lookup import Basis
from tangram.profiles.measured import MeasuredLayers
from tangram.profiles.shapes import LayerShape, atom_shapes, final_norm_shape, has_window
from tangram.validation.pipelines import RunBatch
from tangram.validation.run import Run, Tuning
from tangram.validation.slots import Base, Shelves, owners_of


class RowBasis(StrEnum):
    """What the times of a run's layers rest on.

    ``measured``: every layer was measured, or lies between two measured micro-batches (so do the ends of the
    model, or their formulas are scaled to agree with measurements). ``mixed``: some were, or formulas are
    scaled to agree with other layers. ``formula``: nothing was measured that says anything of it.
    """

    FORMULA = "formula"
    MIXED = "mixed"
    MEASURED = "measured"


def measured_batch(
    runs: Sequence[Run], measured: MeasuredLayers | None, base: Base = ()
) -> tuple[RunBatch, tuple[RowBasis, ...]]:
    """Returns runs side by side, with what measured layers say of them.

    Args:
        runs: At least one.
        measured: Measured layers; None for formulas alone.
        base: Constants in place of the shipped ones.

    Returns:
        The batch, and what each run rests on.
    """
    if measured is None:
        return RunBatch.of(runs), (RowBasis.FORMULA,) * len(runs)
    batch = RunBatch.of(runs, as_engine=True)
    times = batch.stages.times(Shelves(batch, (), base).constants(()))
    forward, backward = times[: work.BACKWARD_S].sum(axis=0), times[work.BACKWARD_S :].sum(axis=0)
    factors = AtomFactors(
        np.ones_like(forward), np.ones_like(forward), np.zeros(forward.shape, dtype=np.bool_)
    )
    found: list[list[tuple[bool, Basis | None]]] = [[] for _ in runs]
    for column, number in enumerate(batch.run_of_column.tolist()):
        for row, atom in enumerate(batch.parts[column].rows()):
            if atom is None:
                continue
            own = float(forward[row, column]), float(backward[row, column])
            factor = _factor(batch, column, atom, measured, own)
            found[number].append((bool(atom.layer_idxs), None if factor is None else factor.basis))
            if factor is not None:
                factors.forward[row, column] = factor.forward
                factors.backward[row, column] = factor.backward
                factors.with_tp[row, column] = factor.includes_tp_comm
    stages = replace(batch.stages, factors=factors)
    return replace(batch, stages=stages), tuple(_basis(bases) for bases in found)


def _factor(
    batch: RunBatch, column: int, atom: Atom, measured: MeasuredLayers, base: tuple[float, float]
) -> AtomFactor | None:
    run, host = batch.runs[batch.run_of_column[column]], batch.hosts[column]
    setting = batch.parts[column].setting
    degrees, precision = run.degrees, setting.job.precision
    whole = degrees.cp == 1 and degrees.ep == 1 and run.tuning is Tuning.PRETRAIN
    if not whole or setting.is_fp4 or (host.gpu.name, precision) not in measured.tables:
        return None
    if has_window(run.model, atom, run.seq_len):
        return None
    owners = owners_of(run)
    basis = CostBasis(stack=owners[Shelf.STACK], cluster=owners[Shelf.CLUSTER])
    formula = CostFormula.of_part(host.gpu, precision, host.gpus_per_node)
    query = AtomQuery(host.gpu.name, precision, _shapes(run, atom), degrees.tp, run.micro_batch)
    return atom_factor(measured, query, replace(formula, basis=basis), base)


def _shapes(run: Run, atom: Atom) -> tuple[LayerShape, ...]:
    if atom.is_head and run.software.headless:
        return (final_norm_shape(run.model, run.seq_len),)
    return atom_shapes(run.model, atom, run.seq_len)


def _basis(found: Sequence[tuple[bool, Basis | None]]) -> RowBasis:
    """What a run rests on, from (whether it is a layer, what it rests on) of its atoms."""
    bases = [basis for _, basis in found]
    if not any(bases):
        return RowBasis.FORMULA
    exact = all(basis in (Basis.MEASURED, Basis.INTERPOLATED) for is_layer, basis in found if is_layer)
    return RowBasis.MEASURED if exact and all(bases) else RowBasis.MIXED
