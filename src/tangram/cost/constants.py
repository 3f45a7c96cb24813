"""The numbers of the cost model that are not in the model, the cluster or the job.

They live in ``constants.json`` on three shelves: GPU family, software stack, cluster; each with its unit and
its source. What ``tangram calibrate`` fitted to measured runs stands in ``calibration.json`` and comes first.
This is the only module of the cost model that reads a file, once.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from enum import StrEnum
from functools import cache, lru_cache
from importlib import resources
from typing import Any, TypeVar

from tangram.basis import DEFAULT_CLUSTER, DEFAULT_STACK, SHIPPED_BASIS, CostBasis, Override
from tangram.cluster.spec import GpuSpec
from tangram.errors import InputError, UnknownNameError
from tangram.job import Precision

GENERIC_FAMILY = "generic"
_ROUNDING = 1e-9  # a fit that ends on a bound may exceed it in the last digits


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
    expert_peak_imbalance: float
    moe_launch_ratio: float
    elementwise_ratio: float
    kernel_ratio: float
    attention_ratio: float
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


Overrides = tuple[Override, ...]


def gpu_constants(gpu: GpuSpec, overrides: Overrides = ()) -> GpuConstants:
    """Returns the constants of a GPU's family (the generic shelf when the family is unknown).

    Args:
        gpu: The part.
        overrides: Constants that take the place of the shipped ones, here as below.

    Raises:
        UnknownNameError: An override has an unknown name, here as below.
        InputError: An override is out of range, likewise.
    """
    return _gpu_shelf(family_shelf(gpu), overrides)


def stack_constants(name: str = DEFAULT_STACK, overrides: Overrides = ()) -> StackConstants:
    """Returns the constants of a software stack; what is not known of it is as in Tangram's own runtime."""
    return _stack_shelf(name, overrides)


def upper_memory_ratio(basis: CostBasis) -> float:
    """Returns the factor on the best estimate of all but model states that gives the upper one, which has to
    fit.

    The user's margin counts, else the stack's constant.

    Raises:
        UnknownNameError: An override of the basis has an unknown name.
        InputError: An override is out of range.
    """
    if basis.memory_margin_frac is not None:
        return 1.0 + basis.memory_margin_frac
    return stack_constants(basis.stack, basis.overrides).upper_memory_ratio


def cluster_constants(name: str = DEFAULT_CLUSTER, overrides: Overrides = ()) -> ClusterConstants:
    """Returns the constants of a cluster; what is not known of it is as in an uncalibrated one."""
    return _cluster_shelf(name, overrides)


def shelf_names(shelf: Shelf) -> tuple[str, ...]:
    """Returns who has shipped constants on a shelf: GPU families, stacks or clusters."""
    return tuple(dict.fromkeys([*_document()[shelf.value], *calibration_document()[shelf.value]]))


def constant_names(shelf: Shelf) -> tuple[str, ...]:
    """Returns the names of the constants on a shelf."""
    return tuple(field.name for field in fields(_KINDS[shelf]))


def check_override(override: Override, where: str) -> None:
    """Refuses a constant that there is not, and a value that cannot be.

    Args:
        override: What takes the place of a shipped constant.
        where: Where it was read, for messages.

    Raises:
        UnknownNameError: There is no such shelf, or no such constant on it.
        InputError: The value is out of the range that is physically possible.
    """
    if override.shelf not in [shelf.value for shelf in Shelf]:
        raise UnknownNameError("shelf", override.shelf, [shelf.value for shelf in Shelf], where=where)
    shelf = Shelf(override.shelf)
    names = constant_names(shelf)
    elsewhere = [other.value for other in Shelf if override.constant in constant_names(other)]
    if override.constant not in names and elsewhere:
        raise InputError(
            f"{override.constant} is no constant of the shelf {shelf.value}",
            where=where,
            hint=f"it stands on the shelf {elsewhere[0]}",
        )
    if override.constant not in names:
        raise UnknownNameError(f"constant of the shelf {shelf.value}", override.constant, names, where=where)
    known = definition(override.constant)
    if known.low * (1 - _ROUNDING) <= override.value <= known.high * (1 + _ROUNDING):
        return
    shipped = {owner[override.constant]["value"] for owner in _owners(shelf) if override.constant in owner}
    if override.value in shipped:  # some stand outside of what a fit may find: a share of exactly 0
        return
    raise InputError(
        f"{override.constant} of {override.value:g} is out of range",
        where=where,
        hint=f"legal: {known.low:g} to {known.high:g} ({known.unit})",
    )


def first_value(shelf: Shelf, owner: str, constant: str) -> float:
    """Returns the value of a constant before the shipped calibration: its owner's, else the default one's.

    Raises:
        KeyError: There is no such constant on the shelf.
    """
    default = {Shelf.GPU: GENERIC_FAMILY, Shelf.STACK: DEFAULT_STACK, Shelf.CLUSTER: DEFAULT_CLUSTER}[shelf]
    shelves = _document()[shelf.value]
    entry = shelves.get(owner, {}).get(constant) or shelves[default][constant]
    return float(entry["value"])


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


def constants_of(gpu: GpuSpec, basis: CostBasis) -> Constants:
    """Returns the constants for stages on a GPU.

    Raises:
        UnknownNameError: An override of the basis has an unknown name.
        InputError: An override is out of range.
    """
    return Constants(
        gpu_constants(gpu, basis.overrides),
        stack_constants(basis.stack, basis.overrides),
        cluster_constants(basis.cluster, basis.overrides),
    )


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


def constants_fingerprint(basis: CostBasis = SHIPPED_BASIS) -> str:
    """Returns a short hash of all constants: equal predictions need equal fingerprints."""
    text = _text("constants") + _text("calibration")
    if not basis.has_shipped_constants:
        text += json.dumps([basis.stack, basis.cluster, basis.overrides])
    return hashlib.sha256(text.encode()).hexdigest()[:16]


@lru_cache(maxsize=1)
def calibration_document() -> Mapping[str, Any]:
    """Returns the shipped calibration, as ``tangram calibrate`` wrote it."""
    document: dict[str, Any] = json.loads(_text("calibration"))
    return document


def basis_note(gpu: GpuSpec) -> str:
    """Says in one sentence what formulas for this GPU rest on, with what Tangram ships."""
    shelf = family_shelf(gpu)
    text = f"formulas with the constants of {shelf} GPUs ({constants_fingerprint()})"
    if shelf == GENERIC_FAMILY:
        return f"{text}: the family {gpu.family!r} is unknown, and nothing was measured on {gpu.name}"
    if shelf not in calibration_document()[Shelf.GPU.value]:
        return f"{text}: estimates for this family, not fitted to measurements"
    return text


def own_basis_note(gpus: Iterable[GpuSpec], basis: CostBasis) -> str:
    """Says in one sentence what formulas for these GPUs rest on, with another basis than what is shipped."""
    families = sorted({family_shelf(gpu) for gpu in gpus})
    owners = [(Shelf.GPU, name) for name in families]
    owners += [(Shelf.STACK, basis.stack), (Shelf.CLUSTER, basis.cluster)]
    counts = [
        f"{number} of {shelf.value.replace('_', ' ')} {owner}"
        for shelf, owner in owners
        if (number := sum(1 for o in basis.overrides if (o.shelf, o.owner) == (shelf, owner)))
    ]
    named = f"{' and '.join(families)} GPUs, stack {basis.stack}, cluster {basis.cluster}"
    fitted = f", recalibrated: {', '.join(counts)}" if counts else ""
    return f"formulas with the constants of {named}{fitted} ({constants_fingerprint(basis)})"


@cache
def _text(name: str) -> str:
    return resources.files("tangram.cost").joinpath(f"{name}.json").read_text(encoding="utf-8")


@lru_cache(maxsize=1)
def _document() -> dict[str, Any]:
    document: dict[str, Any] = json.loads(_text("constants"))
    return document


def _owners(shelf: Shelf) -> list[Mapping[str, Any]]:
    return [*_document()[shelf.value].values(), *calibration_document()[shelf.value].values()]


@lru_cache(maxsize=256)
def _gpu_shelf(name: str, overrides: Overrides) -> GpuConstants:
    return _shelf(GpuConstants, _values(Shelf.GPU, name, overrides))


@lru_cache(maxsize=256)
def _stack_shelf(name: str, overrides: Overrides) -> StackConstants:
    return _shelf(StackConstants, _values(Shelf.STACK, DEFAULT_STACK, overrides, name))


@lru_cache(maxsize=256)
def _cluster_shelf(name: str, overrides: Overrides) -> ClusterConstants:
    return _shelf(ClusterConstants, _values(Shelf.CLUSTER, DEFAULT_CLUSTER, overrides, name))


def _values(shelf: Shelf, default: str, overrides: Overrides, name: str | None = None) -> dict[str, float]:
    """Values of a shelf by constant: the default owner's, then the named one's; a user's win over shipped
    ones of the same owner.
    """
    for override in overrides:
        check_override(override, f"{override.shelf}.{override.owner}")
    values: dict[str, float] = {}
    for owner in (default,) if name is None else (default, name):
        for document in (_document(), calibration_document()):
            values |= {
                key: float(entry["value"]) for key, entry in document[shelf.value].get(owner, {}).items()
            }
        values |= {o.constant: o.value for o in overrides if (o.shelf, o.owner) == (shelf.value, owner)}
    return values


def _shelf(kind: type[_Shelf], values: Mapping[str, float]) -> _Shelf:
    return kind(**{field.name: values[field.name] for field in fields(kind)})
