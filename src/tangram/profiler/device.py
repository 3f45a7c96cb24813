"""The device that is profiled: which one, what it is called in the store, and what it can do."""

from __future__ import annotations

import os
import platform
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from tangram.cluster import catalog
from tangram.errors import InputError
from tangram.job import Precision
from tangram.profiler.torch_extra import INSTALL, TENSOR_CORES


@dataclass(frozen=True, slots=True)
class Device:
    """A device.

    Attributes:
        torch_device: As torch knows it.
        gpu: The name in the store.
        words: What it is, for people.
    """

    torch_device: Any
    gpu: str
    words: str

    @property
    def is_cuda(self) -> bool:
        """Whether it is a GPU (CUDA or ROCm)."""
        return bool(self.torch_device.type == "cuda")

    def free_bytes(self) -> int | None:
        """Returns the memory that can be had on it, or None where nobody says."""
        if self.is_cuda:
            return int(torch.cuda.mem_get_info(self.torch_device)[0])
        try:
            lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
        except OSError:
            return None
        found = [line.split() for line in lines if line.startswith("MemAvailable:")]
        return int(found[0][1]) * 1024 if found else None


def find_device(kind: str | None, gpu: str | None, local_rank: int = 0) -> Device:
    """Returns the device to profile.

    Args:
        kind: ``cuda`` or ``cpu``; None for CUDA where there is one.
        gpu: Its name in the store; None to find it out, which a CPU's name cannot be.
        local_rank: Which GPU of this node.

    Raises:
        InputError: There is no such device, it has no name, or it is given the name of another one.
    """
    if kind not in (None, "cuda", "cpu"):
        raise InputError(f"unknown device {kind!r}", where="--device", hint="cuda or cpu")
    if kind is None:
        kind = "cuda" if torch.cuda.is_available() else "cpu"
    if kind == "cpu":
        return _cpu(gpu)
    if not torch.cuda.is_available():
        raise InputError(
            "PyTorch finds no GPU",
            where="--device cuda",
            hint=f"--device cpu, or PyTorch for your GPU's driver ({INSTALL})",
        )
    if local_rank >= torch.cuda.device_count():
        raise InputError(
            f"this node has {torch.cuda.device_count()} GPUs, and {local_rank + 1} processes or more",
            where="torchrun",
            hint="one process per GPU: --nproc-per-node=gpu",
        )
    torch.cuda.set_device(local_rank)
    found = torch.cuda.get_device_name(local_rank)
    words = f"{found}, {torch.cuda.get_device_properties(local_rank).total_memory / 2**30:.1f} GiB"
    return Device(torch.device("cuda", local_rank), gpu_name(found, gpu), words)


def gpu_name(found: str, given: str | None) -> str:
    """Returns the name of a GPU in the store.

    Args:
        found: What the driver calls it.
        given: What the user calls it, if anything.

    Raises:
        InputError: The driver's name is not in the catalogue and none is given, or both are and differ.
    """
    part = _part(found)
    if given is None:
        if part is None:
            raise _unnamed(found)
        return part
    named = _part(given)
    if named is not None and part is not None and named != part:
        raise InputError(
            f"this GPU is {found!r} ({part}), not {named}",
            where="--gpu",
            hint=f"{part}, or a name of your own",
        )
    return named or _own(given)


def check_precision(device: Device, precision: Precision) -> None:
    """Refuses arithmetic that the device does not have.

    Raises:
        InputError: It does not.
    """
    if not device.is_cuda:
        if precision is Precision.TF32:
            raise InputError("a CPU has no tf32", where="--precision", hint="fp32, bf16 or fp16")
        return
    wanted = precision in (Precision.BF16, Precision.TF32)
    if wanted and torch.version.hip is None:
        capability = torch.cuda.get_device_capability(device.torch_device)
        if capability < TENSOR_CORES:
            raise InputError(
                f"{device.words} has no {precision}", where="--precision", hint="legal: fp32, fp16"
            )


def default_precision(device: Device) -> Precision:
    """Returns bf16 where a GPU has it, else fp16 on a GPU, and fp32 on a CPU."""
    if not device.is_cuda:
        return Precision.FP32
    if torch.version.hip is not None:
        return Precision.BF16
    capable = torch.cuda.get_device_capability(device.torch_device) >= TENSOR_CORES
    return Precision.BF16 if capable else Precision.FP16


def software(device: Device) -> str:
    """Returns what ran, in words, for the source of a record."""
    text = f"tangram profile, torch {torch.__version__}"
    if device.is_cuda:
        version = torch.version.hip or torch.version.cuda
        return f"{text}, {'ROCm' if torch.version.hip else 'CUDA'} {version}, {device.words}"
    return f"{text}, {torch.get_num_threads()} threads, {device.words}"


def _cpu(gpu: str | None) -> Device:
    if gpu is None:
        raise InputError(
            "there is no GPU here, and a CPU needs a name in the store", where="--gpu", hint="--gpu CPU"
        )
    part = _part(gpu)
    if part is not None:
        raise InputError(
            f"this device is a CPU, not {part}", where="--gpu", hint="a name of your own, such as CPU"
        )
    words = f"{platform.machine() or 'unknown'} CPU, {os.cpu_count() or 1} cores"
    return Device(torch.device("cpu"), _own(gpu), words)


def _part(name: str) -> str | None:
    """The catalogue's part of that name, or None where there is none or several."""
    try:
        return catalog.gpu(name).name
    except InputError:
        return None


def _unnamed(found: str) -> InputError:
    hint = "a part of tangram gpus, or a name of your own"
    try:
        catalog.gpu(found)
    except InputError as error:
        hint = f"{error.hint}; or {hint}"
    return InputError(f"{found!r} stands for no one part of the catalogue", where="--gpu", hint=hint)


def _own(name: str) -> str:
    if not name.strip() or not name.isprintable() or len(name) > 64:
        raise InputError(
            f"{name[:64]!r} cannot be the name of a GPU", where="--gpu", hint="up to 64 printable characters"
        )
    return name.strip()
