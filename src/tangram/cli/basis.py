"""From the options about a calibration and about profiles to what predictions rest on."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from tangram.basis import DEFAULT_STACK, SHIPPED_BASIS, CostBasis
from tangram.cli.options import BasisOptions
from tangram.errors import InputError, UnknownNameError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from tangram.cluster.spec import Assumption
    from tangram.profiles.measured import MeasuredLayers
    from tangram.profiles.records import LayerTime


@dataclass(frozen=True, slots=True)
class BasisInputs:
    """What predictions rest on.

    Attributes:
        basis: Constants.
        measured: Measured layers; None without ``--profiles``.
        assumptions: What was chosen without being asked for.
    """

    basis: CostBasis = SHIPPED_BASIS
    measured: MeasuredLayers | None = None
    assumptions: tuple[Assumption, ...] = field(default=())


def read_basis(options: BasisOptions) -> BasisInputs:
    """Reads a calibration and a profile store, if any is given, and chooses between what is in them.

    Raises:
        InputError: A file cannot be used, or holds several stacks or clusters of which none is chosen, or the
            memory margin is out of range.
        UnknownNameError: A stack or cluster has no constants, or a file names something that there is not.
    """
    if options == BasisOptions():
        return BasisInputs()  # nothing to read, nothing to import
    from tangram.cost.calibration import choose_basis, read_calibration

    calibration = read_calibration(options.calibration) if options.calibration is not None else None
    store = options.profiles
    records = None if store is None else _records(store)
    chosen = choose_basis(
        calibration,
        options.stack,
        options.cluster_constants,
        other_stacks={record.stack for record in records or ()},
    )
    basis = replace(chosen.basis, memory_margin_frac=options.memory_margin)
    measured = None if records is None or store is None else _measured(records, options, basis, store)
    return BasisInputs(basis, measured, chosen.assumptions)


def measured_layers(store: Path, stack: str | None) -> MeasuredLayers:
    """Reads the measured layers of a store.

    Args:
        store: The profile store.
        stack: Whose layers count; by default those of Tangram's own runtime, or of the only stack there is.

    Raises:
        InputError: The store cannot be used, holds no layers, none of that stack, or those of several stacks
            of which none is chosen.
    """
    records = _records(store)
    known = sorted({record.stack for record in records})
    if stack is not None and stack not in known:
        raise UnknownNameError("stack", stack, known, where="--stack")
    return _layers_of(records, stack, store)


def _measured(
    records: Sequence[LayerTime], options: BasisOptions, basis: CostBasis, store: Path
) -> MeasuredLayers:
    """Layers of the stack that was chosen, by the user or by the calibration; else of Tangram's own runtime,
    or of the only one that there is.
    """
    stack = options.stack
    if stack is None and basis.stack != DEFAULT_STACK and basis.stack in {r.stack for r in records}:
        stack = basis.stack
    return _layers_of(records, stack, store)


def _layers_of(records: Sequence[LayerTime], stack: str | None, store: Path) -> MeasuredLayers:
    from tangram.profiles.measured import MeasuredLayers

    try:
        return MeasuredLayers.of(records, stack)
    except InputError as error:
        where = f"{store}: {error.where}"
        raise InputError(error.message, where=where, hint=f"{error.hint} (--stack)") from None


def _records(store: Path) -> Sequence[LayerTime]:
    """All layers of a store."""
    from tangram.profiles.store import load

    records = load(store).layers
    if not records:
        raise InputError(
            "holds no measured layers",
            where=str(store),
            hint="tangram profile MODEL measures them, tangram profiles import reads those of other tools",
        )
    return records
