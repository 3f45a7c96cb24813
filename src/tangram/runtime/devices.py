"""Which device every rank of a host takes, and whether it is what the plan counts on.

``gpu_idx`` counts the GPUs of one part on the host, in PCI order; a rank's ``gpu_uuid``, where somebody has
filled it in, wins. torch is asked once; all decisions are made on what it says.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tangram.cluster import catalog
from tangram.errors import InputError
from tangram.job import Precision
from tangram.plan.schema import RankSlot
from tangram.profiler.torch_extra import TENSOR_CORES
from tangram.units import count_of

CPU_PRECISIONS = (Precision.FP32, Precision.BF16, Precision.FP16)


@dataclass(frozen=True, slots=True)
class FoundDevice:
    """A GPU of this host.

    Attributes:
        index: As torch counts it.
        name: As the driver calls it.
        uuid: Its own identifier; empty where the driver tells none.
        precisions: Arithmetic that it has.
    """

    index: int
    name: str
    uuid: str
    precisions: tuple[Precision, ...]

    @property
    def part(self) -> str | None:
        """Its name in the catalogue, or None where it stands for no one part."""
        try:
            return catalog.gpu(self.name).name
        except InputError:
            return None

    def __str__(self) -> str:
        return f"{self.index}: {self.name}"


def found_devices() -> tuple[FoundDevice, ...]:
    """Returns the GPUs that torch finds here, in PCI order."""
    os.environ.setdefault("CUDA_DEVICE_ORDER", "PCI_BUS_ID")  # else the fastest comes first
    import torch

    if not torch.cuda.is_available():
        return ()
    return tuple(_found(torch, index) for index in range(torch.cuda.device_count()))


def _found(torch: Any, index: int) -> FoundDevice:
    properties = torch.cuda.get_device_properties(index)
    capable = torch.version.hip is not None or (properties.major, properties.minor) >= TENSOR_CORES
    precisions = [Precision.FP32, Precision.FP16, *([Precision.BF16, Precision.TF32] if capable else [])]
    uuid = str(getattr(properties, "uuid", ""))
    return FoundDevice(index, str(properties.name), uuid, tuple(precisions))


def assigned(
    slots: Sequence[RankSlot],
    devices: Sequence[FoundDevice],
    precision: Precision,
    *,
    any_gpu: bool = False,
) -> tuple[FoundDevice, ...]:
    """Returns the device of each rank of a host.

    Args:
        slots: The ranks of this host.
        devices: Its GPUs.
        precision: Of the job.
        any_gpu: Whether other GPUs than the plan's will do; they are then taken in order.

    Raises:
        InputError: There are too few, they are not the plan's, or they lack the job's precision.
    """
    if len(devices) < len(slots):
        raise InputError(
            f"the plan wants {count_of(len(slots), 'GPU')} here ({_wanted(slots)}), and PyTorch finds "
            f"{len(devices)}",
            where="this host",
            hint=f"{_listed(devices)}; --cpu runs the plan on CPUs, slowly; or plan for what there is",
        )
    if any_gpu:
        found = tuple(devices[: len(slots)])
    else:
        found = tuple(_device(slot, devices) for slot in slots)
        _check_once(slots, found)
    for slot, device in zip(slots, found, strict=True):
        if precision not in device.precisions:
            legal = ", ".join(one.value for one in device.precisions)
            raise InputError(
                f"the device of rank {slot.rank} ({device}) has no {precision.value}",
                where=f"rank {slot.rank}, node {slot.node}",
                hint=f"it has {legal}: plan again with --precision",
            )
    return found


def check_cpu_precision(precision: Precision) -> None:
    """Refuses arithmetic that CPUs do not have.

    Raises:
        InputError: It is tf32 or fp8.
    """
    if precision not in CPU_PRECISIONS:
        legal = ", ".join(one.value for one in CPU_PRECISIONS)
        raise InputError(
            f"a CPU has no {precision.value}",
            where="--cpu",
            hint=f"legal: {legal}; plan with --precision fp32",
        )


def _device(slot: RankSlot, devices: Sequence[FoundDevice]) -> FoundDevice:
    if slot.gpu_uuid is not None:
        by_uuid = {_plain(device.uuid): device for device in devices if device.uuid}
        found = by_uuid.get(_plain(slot.gpu_uuid))
        if found is None:
            raise InputError(
                f"rank {slot.rank} wants the GPU {slot.gpu_uuid}, which is not here",
                where=f"rank {slot.rank}, node {slot.node}",
                hint=_listed(devices),
            )
        return found
    alike = [device for device in devices if _is_part(device, slot.gpu)]
    if slot.gpu_idx >= len(alike):
        have = f"{len(alike)} of them" if alike else "none"
        raise InputError(
            f"rank {slot.rank} wants GPU {slot.gpu_idx} of kind {slot.gpu}, and there is {have} here",
            where=f"rank {slot.rank}, node {slot.node}",
            hint=f"{_listed(devices)}; plan for what there is, or --any-gpu takes GPUs in order",
        )
    return alike[slot.gpu_idx]


def _is_part(device: FoundDevice, part: str) -> bool:
    """By the catalogue, or, where a part is not in it, by the driver's name itself."""
    return device.part == part or device.name == part


def _check_once(slots: Sequence[RankSlot], found: Sequence[FoundDevice]) -> None:
    taken: dict[int, int] = {}
    for slot, device in zip(slots, found, strict=True):
        other = taken.setdefault(device.index, slot.rank)
        if other != slot.rank:
            raise InputError(
                f"ranks {other} and {slot.rank} both take the device {device}",
                where=f"rank {slot.rank}, node {slot.node}",
                hint="a gpu_uuid of the plan names a GPU that another rank has by its number",
            )


def _plain(uuid: str) -> str:
    return uuid.lower().removeprefix("gpu-")


def _wanted(slots: Sequence[RankSlot]) -> str:
    counts: dict[str, int] = {}
    for slot in slots:
        counts[slot.gpu] = counts.get(slot.gpu, 0) + 1
    return ", ".join(f"{count}x {part}" for part, count in counts.items())


def _listed(devices: Sequence[FoundDevice]) -> str:
    return "there are " + "; ".join(map(str, devices)) if devices else "there is no GPU"
