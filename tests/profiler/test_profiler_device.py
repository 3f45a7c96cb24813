"""Names of devices, and what they can do. The GPUs here are made up: nothing runs on them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from profiler_cases import CPU, torch

from tangram.errors import InputError
from tangram.job import Precision
from tangram.profiler import device as device_module
from tangram.profiler.device import (
    Device,
    check_precision,
    default_precision,
    find_device,
    gpu_name,
    software,
)


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Lets torch find two V100; the capability can be changed."""
    fake = SimpleNamespace(name="Tesla V100-SXM2-16GB", capability=(7, 0), chosen=None)
    cuda = torch.cuda
    monkeypatch.setattr(cuda, "is_available", lambda: True)
    monkeypatch.setattr(cuda, "device_count", lambda: 2)
    monkeypatch.setattr(cuda, "set_device", lambda number: setattr(fake, "chosen", number))
    monkeypatch.setattr(cuda, "get_device_name", lambda number: fake.name)
    monkeypatch.setattr(cuda, "get_device_properties", lambda number: SimpleNamespace(total_memory=16 << 30))
    monkeypatch.setattr(cuda, "get_device_capability", lambda device: fake.capability)
    return fake


@pytest.mark.parametrize(
    ("found", "name"),
    [
        ("NVIDIA A100-SXM4-80GB", "A100-80GB-SXM"),
        ("NVIDIA A100-PCIE-40GB", "A100-40GB-PCIe"),
        ("NVIDIA H100 80GB HBM3", "H100-80GB-SXM"),
        ("NVIDIA H100 PCIe", "H100-80GB-PCIe"),
        ("Tesla V100-SXM2-32GB", "V100-32GB-SXM2"),
        ("Tesla T4", "T4"),
        ("NVIDIA GeForce RTX 4090", "RTX-4090"),
        ("NVIDIA RTX A6000", "RTX-A6000"),
        ("NVIDIA L40S", "L40S"),
        ("AMD Instinct MI300X", "MI300X"),
    ],
)
def test_names_of_drivers(found: str, name: str) -> None:
    assert gpu_name(found, None) == name
    assert gpu_name(found, found) == name
    assert gpu_name(found, "my own card") == "my own card"


def test_a_gpu_without_a_name() -> None:
    with pytest.raises(InputError, match="'NVIDIA H200' stands for no one part") as caught:
        gpu_name("NVIDIA H200", None)
    assert caught.value.hint == "write H200-141GB-SXM; or a part of tangram gpus, or a name of your own"
    assert gpu_name("NVIDIA H200", "h200-141gb-sxm") == "H200-141GB-SXM"


def test_a_gpu_is_no_other_gpu() -> None:
    with pytest.raises(InputError, match=r"this GPU is 'Tesla T4' \(T4\), not L4") as caught:
        gpu_name("Tesla T4", "L4")
    assert caught.value.where == "--gpu"


def test_a_cpu_has_the_name_it_is_given() -> None:
    device = find_device("cpu", " My CPU ")
    assert (device.gpu, device.is_cuda) == ("My CPU", False)
    assert "CPU" in device.words
    free = device.free_bytes()
    assert free is None or free > 2**20


@pytest.mark.parametrize("name", [None, "T4", "NVIDIA A100-SXM4-80GB", "  ", "a\nb", "x" * 65])
def test_a_cpu_is_no_gpu_and_needs_a_name(name: str | None) -> None:
    with pytest.raises(InputError) as caught:
        find_device("cpu", name)
    assert caught.value.where == "--gpu"


def test_devices_that_are_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InputError, match="unknown device 'tpu'"):
        find_device("tpu", None)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(InputError, match="PyTorch finds no GPU"):
        find_device("cuda", None)
    assert not find_device(None, "CPU").is_cuda


def test_a_gpu_is_found(gpu: Any) -> None:
    device = find_device(None, None, local_rank=1)
    assert device.is_cuda
    assert device.gpu == "V100-16GB-SXM2"
    assert device.words == "Tesla V100-SXM2-16GB, 16.0 GiB"
    assert gpu.chosen == 1
    assert "Tesla V100" in software(device)
    assert find_device("cpu", "CPU").is_cuda is False


def test_more_processes_than_gpus(gpu: Any) -> None:
    with pytest.raises(InputError, match="this node has 2 GPUs, and 3 processes") as caught:
        find_device(None, None, local_rank=2)
    assert caught.value.where == "torchrun"


def test_precisions_of_gpus(gpu: Any) -> None:
    device = find_device(None, None)
    assert default_precision(device) is Precision.FP16
    for precision in (Precision.BF16, Precision.TF32):
        with pytest.raises(InputError, match=f"has no {precision}"):
            check_precision(device, precision)
    check_precision(device, Precision.FP16)
    gpu.capability = (8, 0)
    assert default_precision(device) is Precision.BF16
    for precision in Precision:
        check_precision(device, precision)


def test_precisions_of_a_cpu() -> None:
    assert default_precision(CPU) is Precision.FP32
    with pytest.raises(InputError, match="a CPU has no tf32"):
        check_precision(CPU, Precision.TF32)
    for precision in (Precision.FP32, Precision.FP16, Precision.BF16):
        check_precision(CPU, precision)


def test_memory_nobody_knows(monkeypatch: pytest.MonkeyPatch) -> None:
    class NoFile:
        def __init__(self, name: str) -> None:
            pass

        def read_text(self, encoding: str) -> str:
            raise FileNotFoundError

    monkeypatch.setattr(device_module, "Path", NoFile)
    assert CPU.free_bytes() is None
    assert isinstance(CPU, Device)
