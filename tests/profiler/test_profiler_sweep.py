"""A sweep: a record for every size, or the reason why there is none."""

from __future__ import annotations

import gc
import weakref
from dataclasses import dataclass
from typing import Any

import pytest
from profiler_cases import CPU, GPT, KINDS, LLAMA, MIXTRAL, model_of, shard_of, torch

from tangram.job import Precision
from tangram.profiler import sweep
from tangram.profiler.device import Device
from tangram.profiler.layers import build
from tangram.profiler.request import LayerRequest, all_pieces
from tangram.profiler.sweep import least_bytes, time_layers
from tangram.profiles.records import LayerTime


def request_of(*layers: Any, precision: Precision = Precision.FP32, **sizes: Any) -> LayerRequest:
    model = model_of(*layers)
    values = {"tp": (1, 2), "micro_batch": (1, 2), "warmup": 0, "repeats": 2} | sizes
    return LayerRequest(model, 16, precision, pieces=all_pieces(model, 16), **values)


def test_every_size_gets_a_record() -> None:
    said: list[str] = []
    kept: list[LayerTime] = []
    request = request_of(LLAMA, MIXTRAL)
    timed, skipped = time_layers(request, CPU, "a stack", said.append, kept.append)
    records = [one.record for one in timed]
    assert skipped == ()
    assert [(r.shape, r.tp, r.micro_batch) for r in records] == [
        (piece.shape, tp, mb) for piece in request.pieces for tp in (1, 2) for mb in (1, 2)
    ]
    assert kept == records
    assert len(said) == len(records) == 16
    for record in records:
        assert (record.gpu, record.stack, record.precision) == ("CPU", "a stack", Precision.FP32)
        assert not record.includes_tp_comm
        assert None not in (record.forward_s, record.backward_s, record.recompute_s, record.optimizer_s)
        assert record.activation_bytes
        assert record.workspace_bytes is None
        assert torch.__version__ in record.source


def test_records_hold_medians() -> None:
    timed, _ = time_layers(request_of(LLAMA, repeats=3), CPU, "s")
    for one in timed:
        assert one.record.forward_s == one.spreads["forward_s"].median_s
        assert one.record.optimizer_s == one.spreads["optimizer_s"].median_s


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize("tp", [1, 2])
def test_least_bytes_are_a_lower_bound(name: str, tp: int) -> None:
    """Of the tensors that are really there; and not a useless one."""
    model = model_of(KINDS[name])
    shard = shard_of(model, tp, micro_batch=4, precision="bf16")
    for piece in all_pieces(model, 16):
        module = build(piece, shard)
        states = sum(parameter.numel() * (2 + 4) for parameter in module.parameters())
        held = states + sweep_activations(module)
        assert 0.3 * held < least_bytes(piece, shard) <= held


def sweep_activations(module: Any) -> int:
    from tangram.profiler.memory import saved_tensors

    saved = saved_tensors(module)
    return saved.kept_bytes + saved.transient_bytes


@dataclass(frozen=True)
class FullDevice(Device):
    """A device with little memory left."""

    free: int = 10_000

    def free_bytes(self) -> int:
        return self.free


def test_what_cannot_fit_is_not_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sweep, "time_piece", lambda *args: pytest.fail("was tried"))
    timed, skipped = time_layers(request_of(GPT), FullDevice(CPU.torch_device, "CPU", "a CPU"), "s")
    assert timed == ()
    assert len(skipped) == 12
    assert "0.00 GiB and more; 0.00 GiB are free" in str(skipped[0])


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (
            torch.OutOfMemoryError("CUDA out of memory. Tried to allocate"),
            "does not fit in the memory of a CPU",
        ),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried"), "does not fit in the memory"),
        (
            RuntimeError("\"addmm_impl_cpu_\" not implemented for 'Half'"),
            'PyTorch has no kernel for it: "addmm',
        ),
    ],
)
def test_what_fails_is_left_out_with_its_reason(
    monkeypatch: pytest.MonkeyPatch, error: Exception, reason: str
) -> None:
    def fail(*args: Any) -> Any:
        raise error

    monkeypatch.setattr(sweep, "time_piece", fail)
    timed, skipped = time_layers(request_of(GPT, tp=(1,), micro_batch=(2,)), CPU, "s")
    assert timed == ()
    assert [one.micro_batch for one in skipped] == [2, 2, 2]
    assert reason in skipped[0].reason


def test_a_bug_stays_a_bug(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*args: Any) -> Any:
        raise RuntimeError("mat1 and mat2 shapes cannot be multiplied")

    monkeypatch.setattr(sweep, "time_piece", fail)
    with pytest.raises(RuntimeError, match="cannot be multiplied"):
        time_layers(request_of(GPT), CPU, "s")


@pytest.mark.parametrize("name", KINDS)
def test_nothing_of_a_piece_is_left(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """Its memory is free for the next one at once, without waiting for the garbage collector."""
    pieces: list[Any] = []

    def remembered(*args: Any) -> Any:
        piece = build(*args)
        pieces.append(weakref.ref(piece))
        return piece

    monkeypatch.setattr(sweep, "build", remembered)
    gc.disable()
    try:
        time_layers(request_of(KINDS[name], tp=(2,), micro_batch=(1,), precision=Precision.BF16), CPU, "s")
        assert [piece() for piece in pieces] == [None] * 3
    finally:
        gc.enable()


def test_arithmetic_is_restored() -> None:
    from tangram.profiler.shard import arithmetic

    before = torch.get_float32_matmul_precision()
    with arithmetic(Precision.TF32):
        assert torch.get_float32_matmul_precision() == "high"
    with arithmetic(Precision.FP32):
        assert torch.get_float32_matmul_precision() == "highest"
    assert torch.get_float32_matmul_precision() == before
