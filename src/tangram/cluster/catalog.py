"""The GPU catalogue: what Tangram knows of each part, from ``catalog.json``.

An entry of the file holds data-sheet figures with their source. Two things are derived here, by rules that
the file states with their basis:

* usable memory = nominal memory x ``usable_fraction`` of the entry's memory rule (or the figure stated);
* achieved rate = the measured largest matrix product where there is one (never above the data-sheet peak),
  else the family's ``matrix_fraction`` of the peak. fp16, bf16 and tf32 share one fraction, because they
  run on the same units; fp32 has its own.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any

from tangram.cluster.spec import GpuSpec
from tangram.errors import InputError, UnknownNameError
from tangram.job import Precision
from tangram.units import GB, GIB

_GIGA = 10**9
_TERA = 10**12
_VENDOR_WORDS = re.compile(r"(?:nvidia|amd|tesla|geforce|quadro|instinct)-")
_CDNA_MODULES = {"mi250x": "MI250X-GCD"}


@dataclass(frozen=True, slots=True)
class GpuLink:
    """How the GPUs of a node are joined by links of their own.

    Attributes:
        kind: ``nvlink`` or ``xgmi``.
        joins_all: Whether all GPUs of a node are joined, or only pairs of them (by a bridge).
    """

    kind: str
    joins_all: bool


def load_catalog() -> dict[str, GpuSpec]:
    """Returns all parts by name, in the order of the catalogue: by vendor, generation and size."""
    return dict(_parts())


def gpu(name: str, *, where: str | None = None) -> GpuSpec:
    """Returns a part by its full name, such as ``A100-80GB-SXM``.

    Case, spaces, a leading vendor or brand word and the spelling of vendors' tools are forgiven
    (``NVIDIA A100-SXM4-80GB``); a name that leaves the variant open is not.

    Raises:
        InputError: The name fits several variants, or a module rather than one of its devices.
        UnknownNameError: There is no such part; the nearest names are listed.
    """
    parts = _parts()
    if name in parts:
        return parts[name]
    plain = _plain(name)
    known = _spellings()
    if plain in known:
        return parts[known[plain]]
    if plain in _CDNA_MODULES:
        hint = f"write {_CDNA_MODULES[plain]}, two per module"
        raise InputError(f"{name!r} is a module of two devices", where=where, hint=hint)
    words = set(plain.split("-"))
    variants = [part for part in parts if words <= set(_plain(part).split("-"))]
    if variants:
        raise InputError(
            f"GPU {name!r} does not say which variant", where=where, hint="write " + " or ".join(variants)
        )
    raise UnknownNameError("GPU", name, parts, where=where)


def gpu_link(part: GpuSpec) -> GpuLink | None:
    """Returns how GPUs of this part are joined in a node, or None when only PCIe joins them.

    A part that is not in the catalogue counts as joined by PCIe.
    """
    entry = next((e for e in _entries() if e["name"] == part.name), None)
    if entry is None or "link_kind" not in entry:
        return None
    return GpuLink(entry["link_kind"], entry["link_joins"] == "all")


def has_peer_access(part: GpuSpec) -> bool:
    """Whether two GPUs of this part may read each other's memory over PCIe.

    GeForce cards may not: what they send goes through host memory, unless NVLink joins the two. A part that
    is not in the catalogue counts as able to.
    """
    entry = next((e for e in _entries() if e["name"] == part.name), None)
    return entry is None or bool(entry.get("peer_access", True))


def host_path_frac() -> float:
    """Returns the share of PCIe's bandwidth that is left when data goes through host memory."""
    return float(_data()["host_path"]["pcie_fraction"])


def domain_gpus(part: GpuSpec) -> int | None:
    """Returns the GPUs of one domain of several nodes (72 of an NVL72 rack); None for parts without."""
    entry = next((e for e in _entries() if e["name"] == part.name), None)
    return None if entry is None else entry.get("domain_gpus")


@cache
def _data() -> Mapping[str, Any]:
    text = resources.files("tangram.cluster").joinpath("catalog.json").read_text(encoding="utf-8")
    data: Mapping[str, Any] = json.loads(text)
    return data


def _entries() -> Iterable[Mapping[str, Any]]:
    entries: Iterable[Mapping[str, Any]] = _data()["gpus"]
    return entries


@cache
def _parts() -> Mapping[str, GpuSpec]:
    return {entry["name"]: _part(entry) for entry in _entries()}


@cache
def _spellings() -> Mapping[str, str]:
    """Plain spellings of names and aliases, each with the full name."""
    return {
        _plain(spelling): entry["name"]
        for entry in _entries()
        for spelling in (entry["name"], *entry.get("aliases", ()))
    }


def _plain(name: str) -> str:
    plain = re.sub(r"[\s_-]+", "-", name.strip().lower())
    while match := _VENDOR_WORDS.match(plain):
        plain = plain[match.end() :]
    return plain


def _part(entry: Mapping[str, Any]) -> GpuSpec:
    nominal = round(entry["memory_gib"] * GIB)
    peak = {Precision(name): float(rate * _TERA) for name, rate in entry["peak_tflop_per_s"].items()}
    achieved, basis = _achieved(entry, peak)
    return GpuSpec(
        name=entry["name"],
        vendor=entry["vendor"],
        family=entry["family"],
        architecture=entry["architecture"],
        memory_bytes=nominal,
        usable_memory_bytes=_usable_bytes(entry, nominal),
        memory_bandwidth_bytes_per_s=float(entry["memory_bandwidth_gb_per_s"] * GB),
        peak_flop_per_s=peak,
        achieved_flop_per_s=achieved,
        achieved_basis=basis,
        link_bytes_per_s=float(entry["link_gb_per_s"] * GB),
        pcie_bytes_per_s=float(entry["pcie_gb_per_s"] * GB),
        attention_kernel=_data()["families"][entry["family"]]["attention_kernel"],
        gpus_per_node=entry["gpus_per_node"],
        source=_source(entry),
    )


def _usable_bytes(entry: Mapping[str, Any], nominal: int) -> int:
    rule = _data()["memory_rules"][entry["memory_rule"]]
    if "usable_fraction" in rule:
        return int(nominal * rule["usable_fraction"])
    return int(entry["usable_memory_gib"] * GIB)


def _achieved(
    entry: Mapping[str, Any], peak: Mapping[Precision, float]
) -> tuple[dict[Precision, float], str]:
    family = _data()["families"][entry["family"]]
    measured = entry.get("measured_matmul_tflop_per_s")
    if measured is None:
        fraction, basis = family["matrix_fraction"], "estimated"
    else:
        # Boost clocks can carry a measurement above the rated peak; a plan does not count on that.
        fraction, basis = min(1.0, measured * _TERA / peak[Precision.FP16]), "measured"
    rates = {}
    for precision, rate in peak.items():
        share = family["fp32_fraction"] if precision is Precision.FP32 else fraction
        rates[precision] = float(round(rate * share / _GIGA) * _GIGA)
    return rates, basis


def _source(entry: Mapping[str, Any]) -> str:
    text = f"{entry['source']}, {entry['date']}"
    if not entry["cross_checked"]:
        text += ", not cross-checked"
    if "measured_by" in entry:
        text += f"; measured rate: {_data()['measurements'][entry['measured_by']]}"
    else:
        text += f"; rate estimated: {_data()['families'][entry['family']]['basis']}"
    return text
