"""Which device a rank takes, and what is refused because devices are not the plan's."""

from __future__ import annotations

import pytest

from tangram.errors import InputError
from tangram.job import Precision
from tangram.plan.schema import RankSlot
from tangram.runtime.devices import FoundDevice, assigned, check_cpu_precision

ALL = (Precision.FP32, Precision.FP16, Precision.BF16, Precision.TF32)
OLD = ALL[:2]
# A mixed host, its kinds interleaved in PCI order.
DEVICES = (
    FoundDevice(0, "NVIDIA A100-SXM4-80GB", "GPU-aa", ALL),
    FoundDevice(1, "Tesla V100-SXM2-32GB", "GPU-bb", OLD),
    FoundDevice(2, "NVIDIA A100-SXM4-80GB", "GPU-CC", ALL),
    FoundDevice(3, "Tesla V100-SXM2-32GB", "GPU-dd", OLD),
)


def slot(rank: int, gpu: str, gpu_idx: int, uuid: str | None = None) -> RankSlot:
    return RankSlot(rank=rank, node=f"box.{gpu}", gpu_idx=gpu_idx, gpu=gpu, gpu_uuid=uuid)


A100, V100 = "A100-80GB-SXM", "V100-32GB-SXM2"


def taken(
    slots: list[RankSlot], precision: Precision = Precision.FP16, *, any_gpu: bool = False
) -> list[int]:
    return [device.index for device in assigned(slots, DEVICES, precision, any_gpu=any_gpu)]


def test_indices_count_the_devices_of_one_part() -> None:
    assert taken([slot(0, A100, 0), slot(1, A100, 1), slot(4, V100, 0), slot(5, V100, 1)]) == [0, 2, 1, 3]
    assert taken([slot(7, V100, 1)]) == [3]


def test_an_identifier_wins() -> None:
    assert taken([slot(0, A100, 0, "GPU-cc")]) == [2]
    assert taken([slot(0, A100, 0, "cc"), slot(1, V100, 0)]) == [2, 1]


def test_a_part_that_the_catalogue_does_not_know() -> None:
    device = FoundDevice(0, "Some accelerator", "", ALL)
    assert assigned([slot(0, "Some accelerator", 0)], [device], Precision.BF16) == (device,)


def test_any_gpu_takes_them_in_order() -> None:
    assert taken([slot(3, "H100-80GB-SXM", 5), slot(4, "T4", 0)], any_gpu=True) == [0, 1]


@pytest.mark.parametrize(
    ("slots", "precision", "message", "hint"),
    [
        (
            [slot(2, "H100-80GB-SXM", 0)],
            Precision.FP16,
            "rank 2 wants GPU 0 of kind H100-80GB-SXM",
            "Tesla V100",
        ),
        ([slot(2, A100, 2)], Precision.FP16, "there is 2 of them here", "--any-gpu"),
        (
            [slot(2, A100, 0, "GPU-ee")],
            Precision.FP16,
            "wants the GPU GPU-ee, which is not here",
            "0: NVIDIA A100",
        ),
        (
            [slot(0, A100, 0, "GPU-cc"), slot(1, A100, 1)],
            Precision.FP16,
            "ranks 0 and 1 both take the device 2",
            "gpu_uuid",
        ),
        (
            [slot(0, A100, 0), slot(1, V100, 1)],
            Precision.BF16,
            r"rank 1 \(3: Tesla V100.* has no bf16",
            "fp32, fp16",
        ),
        ([slot(i, A100, i) for i in range(5)], Precision.FP16, r"wants 5 GPUs here \(5x A100", "--cpu"),
    ],
)
def test_refusals(slots: list[RankSlot], precision: Precision, message: str, hint: str) -> None:
    with pytest.raises(InputError, match=message) as caught:
        taken(slots, precision)
    assert caught.value.where is not None
    assert hint in str(caught.value.hint)


def test_no_gpu_at_all() -> None:
    with pytest.raises(InputError, match=r"wants 1 GPU here .* and PyTorch finds 0") as caught:
        assigned([slot(0, A100, 0)], [], Precision.FP16)
    assert "there is no GPU" in str(caught.value.hint)


def test_precisions_of_a_cpu() -> None:
    for precision in (Precision.FP32, Precision.BF16, Precision.FP16):
        check_cpu_precision(precision)
    with pytest.raises(InputError, match="a CPU has no tf32"):
        check_cpu_precision(Precision.TF32)
