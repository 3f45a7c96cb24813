"""What is assumed of a cluster where its description is silent, shared by the file reader and the shorthand.

The latencies are of one message between two GPUs inside a running NCCL collective or point-to-point,
software included. They are estimates: a small all-reduce over 8 NVLink GPUs takes from 30 us (H100) to
90 us (A100, the table that vTrain publishes), which is 2 to 7 us for each of its 14 steps.
"""

from __future__ import annotations

from dataclasses import dataclass

from tangram.cluster.catalog import domain_gpus, gpu_link, has_peer_access, host_path_frac
from tangram.cluster.spec import Assumption, GpuSpec
from tangram.errors import InputError
from tangram.units import parse_bandwidth, parse_duration

NETWORK_BANDWIDTH_BYTES_PER_S = 12.5e9
"""100 Gbit/s, the usual Ethernet of GPU nodes."""

NETWORK_LATENCY_S = 10e-6
LINK_LATENCY_S = 5e-6
PCIE_LATENCY_S = 8e-6
HOST_LATENCY_S = 12e-6
"""Through host memory: two copies and a flag between them in place of one copy. Estimated."""

THROUGH_HOST = "pcie-host"
"""Kind of the link between GPUs without peer access: over PCIe into host memory and out again."""

MAX_GPUS_PER_NODE = 256
MAX_NODES = 65_536

_MIN_BANDWIDTH_BYTES_PER_S = 125e3
_MAX_BANDWIDTH_BYTES_PER_S = 100e12
_MAX_LATENCY_S = 1.0


@dataclass(frozen=True, slots=True)
class IntraLink:
    """How two GPUs of one node talk."""

    kind: str
    bandwidth_bytes_per_s: float
    latency_s: float


def default_intra(part: GpuSpec) -> IntraLink:
    """Returns the link inside a node of this part: its own links when they join all GPUs, else PCIe.

    A bridge that joins only pairs is not counted on: two arbitrary GPUs talk over PCIe.
    """
    link = gpu_link(part)
    if link is not None and link.joins_all:
        return IntraLink(link.kind, part.link_bytes_per_s, LINK_LATENCY_S)
    return pcie(part)


def pcie(part: GpuSpec) -> IntraLink:
    """Returns how two GPUs of this part talk over PCIe: directly, or through host memory."""
    if has_peer_access(part):
        return IntraLink("pcie", part.pcie_bytes_per_s, PCIE_LATENCY_S)
    return through_host(part)


def through_host(part: GpuSpec) -> IntraLink:
    """Returns how two GPUs talk that have no access to each other's memory."""
    return IntraLink(THROUGH_HOST, part.pcie_bytes_per_s * host_path_frac(), HOST_LATENCY_S)


def named_intra(kind: str, part: GpuSpec, num_gpus: int, *, where: str) -> IntraLink:
    """Returns the link inside a node when the user names its kind: ``nvlink``, ``xgmi``, ``pcie`` or
    ``pcie-host``.

    ``pcie`` on cards without peer access is ``pcie-host``.

    Raises:
        InputError: The part has no such link, or its bridge cannot join so many GPUs.
    """
    if kind == "pcie":
        return pcie(part)
    if kind == THROUGH_HOST:
        return through_host(part)
    link = gpu_link(part)
    if link is None or link.kind != kind:
        legal = ["pcie"] if link is None else [link.kind, "pcie"]
        hint = "legal: " + " or ".join([*legal, "a bandwidth such as 300GB/s"])
        raise InputError(f"{part.name} has no {kind}", where=where, hint=hint)
    if not link.joins_all and num_gpus > 2:
        raise InputError(
            f"the {kind} bridge of {part.name} joins pairs, not {num_gpus} GPUs",
            where=where,
            hint=f"write {kind}-pairs, or pcie where there are no bridges",
        )
    return IntraLink(kind, part.link_bytes_per_s, LINK_LATENCY_S)


def named_bridge(kind: str, part: GpuSpec, *, where: str) -> IntraLink:
    """Returns the link of a bridge when the user names its kind: ``nvlink`` or ``xgmi``.

    Raises:
        InputError: The part has no such link, or it joins all GPUs of a node anyway.
    """
    link = gpu_link(part)
    if link is None or link.kind != kind:
        hint = "legal: a bandwidth such as 56GB/s" if link is None else f"legal: {link.kind} or a bandwidth"
        raise InputError(f"{part.name} has no {kind}", where=where, hint=hint)
    if link.joins_all:
        raise InputError(
            f"{kind} joins all GPUs of a node of {part.name}, not groups", where=where, hint=f"write {kind}"
        )
    return IntraLink(kind, part.link_bytes_per_s, LINK_LATENCY_S)


def domain_nodes(part: GpuSpec, num_gpus: int) -> int:
    """Returns how many nodes of so many GPUs a domain of this part has: 18 trays of an NVL72 rack, else 1."""
    return max(1, (domain_gpus(part) or 0) // num_gpus)


def domains_of(name: str, count: int, size: int) -> tuple[str | None, ...]:
    """Divides nodes into domains, in order; the last may be smaller, and none has a single node.

    Args:
        name: Of the nodes together.
        count: How many there are.
        size: Nodes of a domain.
    """
    if size == 1 or count == 1:
        return (None,) * count
    several = count > size
    return tuple(f"{name}/{idx // size}" if several else name for idx in range(count))


def domain_assumption(name: str, part: GpuSpec, domains: int) -> Assumption:
    """Says that nodes were taken to be joined, because this part comes in domains."""
    what = "one domain" if domains == 1 else f"{domains} domains"
    size = domain_gpus(part)
    why = f"{part.name} comes in domains of {size} GPUs; write domain: none if yours does not"
    return Assumption(f"one link joins the nodes of {name} to {what}", why)


def bandwidth(text: str, *, where: str) -> float:
    """Parses a bandwidth that a real link can have, in bytes per second.

    Raises:
        InputError: It is no bandwidth, or outside 1 Mbit/s to 100 TB/s.
    """
    rate = parse_bandwidth(text, where=where)
    if not _MIN_BANDWIDTH_BYTES_PER_S <= rate <= _MAX_BANDWIDTH_BYTES_PER_S:
        raise InputError(f"{text!r} is out of range", where=where, hint="legal: 1Mbit to 100TB/s")
    return rate


def latency(text: str, *, where: str) -> float:
    """Parses a latency that a real link can have, in seconds.

    Raises:
        InputError: It is no duration, or above 1 s.
    """
    duration = parse_duration(text, where=where)
    if not duration <= _MAX_LATENCY_S:
        raise InputError(f"{text!r} is out of range", where=where, hint="legal: 0s to 1s")
    return duration


def format_rate(bytes_per_s: float) -> str:
    """Formats a network bandwidth the way people enter it, in Gbit/s."""
    return f"{bytes_per_s * 8 / 1e9:g} Gbit/s"
