"""How far a prediction may be off: the band of the runs that are most like it.

Bands come with the calibration (``calibration.json``): each says within what 9 of 10 measured runs of its
kind were, with constants that had not seen them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tangram.cluster.spec import GpuSpec
from tangram.cost.constants import calibration_document, family_shelf

UNMEASURED_FRAC = 0.5
"""Half-width where nothing like it was ever measured; an estimate."""


@dataclass(frozen=True, slots=True)
class Band:
    """How far off the true time may be.

    Attributes:
        half_width_frac: Share of the predicted time, either side.
        basis: What it rests on, in words.
    """

    half_width_frac: float
    basis: str


def time_band(gpus: Sequence[GpuSpec], stack: str, *, moe: bool) -> Band:
    """Returns the widest band of the GPUs of a plan.

    Args:
        gpus: The parts that take part; at least one.
        stack: Name of the software stack.
        moe: Whether the model has experts.
    """
    found = [_band_of(family, stack, moe=moe) for family in sorted({family_shelf(gpu) for gpu in gpus})]
    return max(found, key=lambda band: band.half_width_frac)


def _band_of(family: str, stack: str, *, moe: bool) -> Band:
    kind = "models with experts" if moe else "dense models"
    if (entry := _entry(family, stack, moe=moe)) is not None:
        rows = f"{entry['num_rows']} measured runs of {kind} on {family} GPUs with {stack}"
        return Band(entry["half_width_frac"], f"9 of 10 of {rows} were within it")
    if (entry := _entry(family, None, moe=moe)) is not None:
        rows = f"{entry['num_rows']} measured runs of {kind} on {family} GPUs"
        basis = f"uncalibrated for {stack}: so far off were 9 of 10 of {rows}, blind"
        return Band(entry["half_width_frac"], basis)
    if (entry := _entry(None, None, moe=moe)) is not None:
        rows = f"{entry['num_rows']} measured runs of {kind} on other GPUs"
        width = max(entry["half_width_frac"], UNMEASURED_FRAC)
        return Band(width, f"nothing was measured on {family} GPUs; an estimate beside {rows}")
    return Band(UNMEASURED_FRAC, "an estimate: there is no calibration")


def _entry(family: str | None, stack: str | None, *, moe: bool) -> Mapping[str, Any] | None:
    """The measured band of exactly these, if there is one."""
    entries: Sequence[Mapping[str, Any]] = calibration_document().get("bands", ())
    wanted = (family, stack, moe)
    return next((e for e in entries if (e["gpu_family"], e["stack"], e["moe"]) == wanted), None)
