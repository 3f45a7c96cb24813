"""From the options about a calibration and about profiles to what predictions rest on."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from tangram.basis import DEFAULT_STACK, SHIPPED_BASIS, CostBasis
from tangram.cli.options import BasisOptions

if TYPE_CHECKING:
    from collections.abc import Sequence

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
    records = _records(options)
    chosen = choose_basis(
        calibration,
        options.stack,
        options.cluster_constants,
        other_stacks={record.stack for record in records or ()},
    )
    basis = replace(chosen.basis, memory_margin_frac=options.memory_margin)
    measured = None if records is None else _measured(records, options, basis)
    return BasisInputs(basis, measured, chosen.assumptions)


def _measured(records: Sequence[LayerTime], options: BasisOptions, basis: CostBasis) -> MeasuredLayers:
    """Layers of the stack that was chosen, by the user or by the calibration; else of Tangram's own runtime,
    or of the only one that there is.
    """
    from tangram.errors import InputError
    from tangram.profiles.measured import MeasuredLayers

    stack = options.stack
    if stack is None and basis.stack != DEFAULT_STACK and basis.stack in {r.stack for r in records}:
        stack = basis.stack
    try:
        return MeasuredLayers.of(records, stack)
    except InputError as error:
        raise InputError(
            error.message, where=f"{options.profiles}: {error.where}", hint=f"{error.hint} (--stack)"
        ) from None


def _records(options: BasisOptions) -> Sequence[LayerTime] | None:
    """All layers of the store; None when none is given."""
    if options.profiles is None:
        return None
    from tangram.errors import InputError
    from tangram.profiles.store import load

    records = load(options.profiles).layers
    if not records:
        raise InputError(
            "holds no measured layers",
            where=str(options.profiles),
            hint="tangram profile MODEL measures them, tangram profiles import reads those of other tools",
        )
    return records
