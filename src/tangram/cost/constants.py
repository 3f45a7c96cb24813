"""The numbers of the cost model that are not in the model, the cluster or the job.

They live in ``constants.json`` on three shelves: GPU family, software stack, cluster; each with its unit and
its source. What ``tangram calibrate`` fitted to measured runs stands in ``calibration.json`` and comes first.
This is the only module of the cost model that reads a file, once.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, fields
from enum import StrEnum
from functools import cache, lru_cache
from importlib import resources
from typing import Any, TypeVar

from tangram.cluster.spec import GpuSpec
from tangram.errors import InputError
from tangram.job import Precision

GENERIC_FAMILY = "generic"
DEFAULT_STACK = "tangram-runtime"
DEFAULT_CLUSTER = "default"


@dataclass(frozen=True, slots=True)
class GpuConstants:
    """Rates of a GPU family, relative to a part's catalogue; meanings and units in ``constants.json``."""

    gemm_efficiency: float
    gemm_overhead_rows: float
    flash_efficiency: float
    unfused_efficiency: float
    score_efficiency: float
    memory_efficiency: float
    unaligned_ratio: float
    fp8_efficiency: float
    fp8_overhead_rows: float
    fp4_efficiency: float
    blas_workspace_bytes: float
    fused_workspace_bytes: float


@dataclass(frozen=True, slots=True)
class StackConstants:
    """What the software that trains adds; meanings and units in ``constants.json``."""

    launch_s: float
    collective_launch_s: float
    compute_hides_frac: float
    exposed_floor_frac: float
    p2p_exposed_frac: float
    expert_imbalance: float
    moe_launch_ratio: float
    elementwise_ratio: float
    kernel_ratio: float
    tp_exposed_frac: float
    cp_exposed_frac: float
    ep_exposed_frac: float
    ep_overlapped_frac: float
    fused_dispatch_ratio: float
    graph_launch_ratio: float
    logit_fixed_bytes: float
    logit_element_ratio: float
    logit_traffic_fixed_bytes: float
    logit_traffic_element_ratio: float
    head_gradient_bytes: float
    activation_ratio: float
    gradient_bucket_bytes: float
    reduce_buffer_elements: float
    host_bandwidth_bytes_per_s: float
    context_bytes: float
    communicator_bytes: float
    fragmentation_frac: float
    blas_workspaces: float
    fused_workspaces: float
    upper_memory_ratio: float


@dataclass(frozen=True, slots=True)
class ClusterConstants:
    """What links carry, relative to their stated bandwidth; meanings and units in ``constants.json``."""

    nvlink_efficiency: float
    xgmi_efficiency: float
    pcie_efficiency: float
    other_efficiency: float
    nic_efficiency: float
    all_to_all_efficiency: float
    host_copy_efficiency: float

    def intra_efficiency(self, kind: str) -> float:
        """Share of a node's stated bandwidth that collectives reach; ``kind`` as in ``Node.intra_kind``."""
        shares = (self.nvlink_efficiency, self.xgmi_efficiency, self.pcie_efficiency, self.other_efficiency)
        return shares[link_kind(kind)]


def link_kind(kind: str) -> int:
    """Sorts the names of links inside nodes: 0 NVLink, 1 xGMI, 2 PCIe, 3 any other."""
    lowered = kind.lower()
    if "nvlink" in lowered or "nvswitch" in lowered:
        return 0
    if "xgmi" in lowered or "infinity" in lowered:
        return 1
    return 2 if "pci" in lowered else 3


@dataclass(frozen=True, slots=True)
class Constants:
    """One of each shelf: what the cost model needs for a stage."""

    gpu: GpuConstants
    stack: StackConstants
    cluster: ClusterConstants


class Shelf(StrEnum):
    """Where a constant belongs: what changes between two runs changes one shelf only."""

    GPU = "gpu_family"
    STACK = "stack"
    CLUSTER = "cluster"


@dataclass(frozen=True, slots=True)
class Definition:
    """What a constant means.

    Attributes:
        unit, meaning: In words.
        low, high: What is physically possible.
        spread: Standard deviation of its logarithm before any row is seen.
    """

    unit: str
    meaning: str
    low: float
    high: float
    spread: float


_KINDS: Mapping[Shelf, type] = {
    Shelf.GPU: GpuConstants,
    Shelf.STACK: StackConstants,
    Shelf.CLUSTER: ClusterConstants,
}
_Shelf = TypeVar("_Shelf", GpuConstants, StackConstants, ClusterConstants)


def gpu_constants(gpu: GpuSpec) -> GpuConstants:
    """Returns the constants of a GPU's family (the generic shelf when the family is unknown)."""
    return _family_shelves()[family_shelf(gpu)]


def stack_constants(name: str = DEFAULT_STACK) -> StackConstants:
    """Returns the constants of a software stack; what is not known of it is as in Tangram's own runtime."""
    return _stack_shelf(name)


def cluster_constants(name: str = DEFAULT_CLUSTER) -> ClusterConstants:
    """Returns the constants of a cluster; what is not known of it is as in an uncalibrated one."""
    return _cluster_shelf(name)


def definition(constant: str) -> Definition:
    """Returns what is known of a constant before any measurement.

    Raises:
        KeyError: There is no such constant.
    """
    entry = _document()["definitions"][constant]
    return Definition(entry["unit"], entry["meaning"], entry["low"], entry["high"], entry["spread"])


def shelf_of(constant: str) -> Shelf:
    """Returns the shelf on which a constant stands.

    Raises:
        KeyError: There is no such constant.
    """
    for shelf, kind in _KINDS.items():
        if constant in (field.name for field in fields(kind)):
            return shelf
    raise KeyError(constant)


def constants_of(gpu: GpuSpec) -> Constants:
    """Returns the shipped constants for stages on a GPU."""
    return Constants(gpu_constants(gpu), stack_constants(), cluster_constants())


def family_shelf(gpu: GpuSpec) -> str:
    """Returns a GPU's shelf: its family, else the longest shelf name its family starts with, else generic."""
    known = [name for name in _document()["gpu_family"] if gpu.family.lower().startswith(name)]
    return max(known, key=len, default=GENERIC_FAMILY)


def matmul_flop_per_s(gpu: GpuSpec, precision: Precision) -> float:
    """Returns the achieved rate of large matrix products: the catalogue's, not the datasheet's peak.

    Raises:
        InputError: The part has no matrix arithmetic in this precision.
    """
    rate = gpu.achieved_flop_per_s.get(precision)
    if rate is None or not gpu.supports(precision):
        legal = [p.value for p in Precision if gpu.supports(p)]
        raise InputError(
            f"{gpu.name} has no {precision.value} arithmetic",
            where="--precision",
            hint="supported: " + ", ".join(legal),
        )
    return rate


def constants_fingerprint() -> str:
    """Returns a short hash of all constants: equal predictions need equal fingerprints."""
    return hashlib.sha256((_text("constants") + _text("calibration")).encode()).hexdigest()[:16]


@lru_cache(maxsize=1)
def calibration_document() -> Mapping[str, Any]:
    """Returns the shipped calibration, as ``tangram calibrate`` wrote it."""
    document: dict[str, Any] = json.loads(_text("calibration"))
    return document


def basis_note(gpu: GpuSpec) -> str:
    """Says in one sentence what predictions for this GPU rest on, and how far they have been off."""
    shelf = family_shelf(gpu)
    checked = _document()["checked"].get(shelf)
    basis = f"formulas with the constants of {shelf} GPUs ({constants_fingerprint()})"
    if shelf == GENERIC_FAMILY:
        return f"{basis}: the family {gpu.family!r} is unknown, and nothing was measured on {gpu.name}"
    if checked is None:
        return f"{basis}: estimates for this family, not checked against measurements"
    return (
        f"{basis}: time was off by {checked['median_error_frac']:.0%} in the median and "
        f"{checked['worst_error_frac']:.0%} at worst over {checked['num_rows']} published {checked['what']}"
    )


@cache
def _text(name: str) -> str:
    return resources.files("tangram.cost").joinpath(f"{name}.json").read_text(encoding="utf-8")


@lru_cache(maxsize=1)
def _document() -> dict[str, Any]:
    document: dict[str, Any] = json.loads(_text("constants"))
    return document


@lru_cache(maxsize=1)
def _family_shelves() -> Mapping[str, GpuConstants]:
    return {
        name: _shelf(GpuConstants, {**entries, **_fitted(Shelf.GPU, name)})
        for name, entries in _document()["gpu_family"].items()
    }


@cache
def _stack_shelf(name: str) -> StackConstants:
    return _shelf(StackConstants, _entries(Shelf.STACK, DEFAULT_STACK) | _entries(Shelf.STACK, name))


@cache
def _cluster_shelf(name: str) -> ClusterConstants:
    return _shelf(ClusterConstants, _entries(Shelf.CLUSTER, DEFAULT_CLUSTER) | _entries(Shelf.CLUSTER, name))


def _entries(shelf: Shelf, name: str) -> dict[str, Any]:
    return {**_document()[shelf.value].get(name, {}), **_fitted(shelf, name)}


def _fitted(shelf: Shelf, name: str) -> dict[str, Any]:
    return dict(calibration_document()[shelf.value].get(name, {}))


def _shelf(kind: type[_Shelf], entries: Mapping[str, Mapping[str, Any]]) -> _Shelf:
    return kind(**{field.name: float(entries[field.name]["value"]) for field in fields(kind)})
