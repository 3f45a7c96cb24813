"""Parts of published runs that the GPU catalogue does not list, from ``sources.yaml``."""

from __future__ import annotations

from functools import cache
from importlib import resources
from typing import Any

import yaml

from tangram.cluster.spec import GpuSpec
from tangram.job import Precision
from tangram.units import GB, GIB

_TERA = 1e12


def extra_part(name: str) -> GpuSpec | None:
    """Returns a part by the exact name that the rows have for it, or None."""
    return _parts().get(name)


def source_data() -> dict[str, Any]:
    """Returns the table of sources as plain data."""
    text = resources.files("tangram.validation").joinpath("sources.yaml").read_text(encoding="utf-8")
    data: dict[str, Any] = yaml.safe_load(text)
    return data


@cache
def _parts() -> dict[str, GpuSpec]:
    return {entry["name"]: _part(entry) for entry in source_data()["parts"]}


def _part(entry: dict[str, Any]) -> GpuSpec:
    peak = {Precision(name): float(rate) * _TERA for name, rate in entry["peak_tflop_per_s"].items()}
    fractions = entry["achieved_frac"]
    return GpuSpec(
        name=entry["name"],
        vendor="NVIDIA",
        family=entry["family"],
        architecture=entry["architecture"],
        memory_bytes=round(entry["memory_gib"] * GIB),
        usable_memory_bytes=round(entry["memory_gib"] * entry["usable_frac"] * GIB),
        memory_bandwidth_bytes_per_s=float(entry["memory_bandwidth_gb_per_s"]) * GB,
        peak_flop_per_s=peak,
        achieved_flop_per_s={name: rate * fractions[name.value] for name, rate in peak.items()},
        achieved_basis="estimated",
        link_bytes_per_s=float(entry.get("link_gb_per_s", 0)) * GB,
        pcie_bytes_per_s=float(entry["pcie_gb_per_s"]) * GB,
        attention_kernel=entry["attention_kernel"],
        gpus_per_node=entry["gpus_per_node"],
        source=entry["source"],
    )
