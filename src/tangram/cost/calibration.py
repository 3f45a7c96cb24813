"""A user's calibration: constants that were fitted to their own runs, read from a file and put to use.

{"format": "tangram-calibration", "version": 1,
 "gpu_family": {"hopper": {"gemm_efficiency": {"value": 0.91}}},
 "stack": {"megatron-2025": {"launch_s": {"value": 5e-05}}},
 "cluster": {"rack-7": {"nic_efficiency": {"value": 0.62}}}}

Other keys, at the top and beside ``value``, are for people and for the command that wrote the file; nothing
here reads them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from tangram.basis import DEFAULT_CLUSTER, DEFAULT_STACK, CostBasis, Override
from tangram.cluster.spec import Assumption
from tangram.cost.constants import Shelf, check_override, shelf_names
from tangram.errors import InputError, UnknownNameError
from tangram.model.fields import describe
from tangram.model.json_file import parse_json_object, printable, read_json_text
from tangram.model.json_lines import lines_named

FORMAT = "tangram-calibration"
VERSION = 1
MAX_FILE_BYTES = 8 * 1024**2


@dataclass(frozen=True, slots=True)
class Calibration:
    """Constants of a calibration file.

    Attributes:
        where: The file, for messages.
        overrides: The constants, sorted.
    """

    where: str
    overrides: tuple[Override, ...]

    def owners(self, shelf: Shelf) -> tuple[str, ...]:
        """Returns whose constants of a shelf are in it, sorted."""
        return tuple(sorted({o.owner for o in self.overrides if o.shelf == shelf.value}))


class Chosen(NamedTuple):
    """The constants to plan with, and what was chosen without being asked for."""

    basis: CostBasis
    assumptions: tuple[Assumption, ...]


def read_calibration(path: Path) -> Calibration:
    """Reads a calibration file.

    Raises:
        InputError: The file cannot be read, is not JSON, no calibration, of another version, or holds a value
            that is no number or cannot be.
        UnknownNameError: It names a constant or a GPU family that there is not.
    """
    where = printable(str(path))
    text = read_json_text(path, max_bytes=MAX_FILE_BYTES)
    data = parse_json_object(text, where=where)
    with lines_named(text, where):
        return calibration_of(data, where)


def calibration_of(data: Mapping[str, object], where: str) -> Calibration:
    """Reads the content of a calibration file; ``where`` names it in messages.

    Raises:
        InputError: As :func:`read_calibration`.
        UnknownNameError: Likewise.
    """
    found = data.get("format")
    if found != FORMAT:
        what = "has no 'format'" if found is None else f"has format {describe(found)}"
        raise InputError(
            f"this is no calibration: it {what}",
            where=where,
            hint=f'tangram calibrate -o FILE writes one; it says "format": "{FORMAT}"',
        )
    version = data.get("version")
    if version != VERSION or isinstance(version, bool | float):
        raise InputError(
            f"the version is {'missing' if version is None else describe(version)}",
            where=f"{where}: version",
            hint=f"this release reads version {VERSION}; for a newer one, use a newer Tangram",
        )
    overrides = [override for shelf in Shelf for override in _shelf(shelf, data, where)]
    if not overrides:
        raise InputError(
            "holds no constants",
            where=where,
            hint="it must have one of the keys " + ", ".join(shelf.value for shelf in Shelf),
        )
    return Calibration(where, tuple(sorted(overrides)))


def _shelf(shelf: Shelf, data: Mapping[str, object], where: str) -> Iterable[Override]:
    place = f"{where}: {shelf.value}"
    for owner, constants in _object(data.get(shelf.value, {}), place).items():
        if not owner.strip():
            raise InputError("a name is empty", where=place, hint="name whose constants these are")
        if shelf is Shelf.GPU and owner not in shelf_names(shelf):
            raise UnknownNameError("GPU family", owner, shelf_names(shelf), where=place)
        for constant, entry in _object(constants, f"{place}.{owner}").items():
            at = f"{place}.{owner}.{constant}"
            value = _object(entry, at).get("value")
            if isinstance(value, bool) or not isinstance(value, int | float):
                what = "the key 'value' is missing" if value is None else f"value is {describe(value)}"
                raise InputError(what, where=at, hint='write for example {"value": 0.8}')
            override = Override(shelf.value, owner, constant, _as_float(value))
            check_override(override, at)
            yield override


def _as_float(value: int | float) -> float:
    try:
        return float(value)
    except OverflowError:  # a whole number of hundreds of digits
        return math.inf


def _object(value: object, where: str) -> dict[str, object]:
    if not isinstance(value, dict):
        raise InputError(f"is {describe(value)}, but must be an object", where=where)
    return value


def choose_basis(
    calibration: Calibration | None = None,
    stack: str | None = None,
    cluster: str | None = None,
    *,
    other_stacks: Iterable[str] = (),
) -> Chosen:
    """Chooses the constants to plan with.

    A calibration of one stack besides Tangram's own is one for that stack; of one cluster, for that cluster.
    Of several, the user chooses: nobody's measurements are left out in silence.

    Args:
        calibration: The user's constants; None leaves the shipped ones.
        stack, cluster: What the user chose; None where nothing was chosen.
        other_stacks: Further stacks that may be chosen, which have no constants of their own.

    Raises:
        InputError: Several owners are in the file, and none was chosen.
        UnknownNameError: What was chosen has no constants.
    """
    known = {*shelf_names(Shelf.STACK), *other_stacks}
    chosen_stack, stack_notes = _owner(Shelf.STACK, calibration, stack, known)
    chosen_cluster, cluster_notes = _owner(Shelf.CLUSTER, calibration, cluster, shelf_names(Shelf.CLUSTER))
    owners = {
        Shelf.STACK.value: (DEFAULT_STACK, chosen_stack),
        Shelf.CLUSTER.value: (DEFAULT_CLUSTER, chosen_cluster),
    }
    overrides = tuple(
        override
        for override in (calibration.overrides if calibration is not None else ())
        if override.shelf not in owners or override.owner in owners[override.shelf]
    )
    return Chosen(CostBasis(chosen_stack, chosen_cluster, overrides), (*stack_notes, *cluster_notes))


_OPTION = {Shelf.STACK: "--stack", Shelf.CLUSTER: "--cluster-constants"}
_DEFAULT = {Shelf.STACK: DEFAULT_STACK, Shelf.CLUSTER: DEFAULT_CLUSTER}
_WORD = {Shelf.STACK: "software stack", Shelf.CLUSTER: "constants of cluster"}


def _owner(
    shelf: Shelf, calibration: Calibration | None, chosen: str | None, shipped: Iterable[str]
) -> tuple[str, list[Assumption]]:
    """Whose constants of a shelf count, and a note where the file decided that."""
    option, default = _OPTION[shelf], _DEFAULT[shelf]
    fitted = calibration.owners(shelf) if calibration is not None else ()
    if chosen is not None:
        if chosen not in {*shipped, *fitted}:
            raise UnknownNameError(
                _WORD[shelf].removeprefix("constants of "), chosen, {*shipped, *fitted}, where=option
            )
        return chosen, []
    # Tangram's own runtime is the one to plan for where it alone is fitted; no cluster has such a place.
    others = [owner for owner in fitted if shelf is not Shelf.STACK or owner != default]
    if calibration is None or not others:
        return default, []
    if len(others) > 1:
        raise InputError(
            f"holds constants of {len(others)} {shelf.value}s, and none is chosen",
            where=calibration.where,
            hint=f"choose with {option}: " + ", ".join(dict.fromkeys((*others, default))),
        )
    if others[0] == default:
        return default, []
    why = f"the only one in {calibration.where}; {option} chooses another"
    return others[0], [Assumption(f"{_WORD[shelf]} {others[0]}", why)]
