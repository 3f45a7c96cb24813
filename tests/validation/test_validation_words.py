from __future__ import annotations

import pytest

from tangram.cluster.catalog import gpu
from tangram.job import Precision, Recompute
from tangram.validation.cells import RowError
from tangram.validation.run import Fp8
from tangram.validation.words import parse_precision, parse_recompute, parse_sharding

H100, B200, T4 = "H100-80GB-SXM", "B200-SXM", "T4"


@pytest.mark.parametrize(
    ("text", "part", "precision", "fp8"),
    [
        ("bf16", H100, Precision.BF16, Fp8.NONE),
        ("BF16", H100, Precision.BF16, Fp8.NONE),
        ("amp_bf16", H100, Precision.BF16, Fp8.NONE),
        ("bfloat16", H100, Precision.BF16, Fp8.NONE),
        ("fp16", T4, Precision.FP16, Fp8.NONE),
        ("amp_fp8", H100, Precision.BF16, Fp8.PER_TENSOR),
        ("FP8", H100, Precision.BF16, Fp8.PER_TENSOR),
        ("FP8-CS", H100, Precision.BF16, Fp8.PER_TENSOR),
        ("FP8 (per-tensor current scaling)", H100, Precision.BF16, Fp8.PER_TENSOR),
        ("FP8 current scaling", H100, Precision.BF16, Fp8.PER_TENSOR),
        ("MXFP8", B200, Precision.BF16, Fp8.MX),
        ("FP8-MX", B200, Precision.BF16, Fp8.MX),
        ("FP8 (other quantization granularity: MXFP8 1x32 on Blackwell)", B200, Precision.BF16, Fp8.MX),
        ("FP8 (other quantization granularity)", H100, Precision.BF16, Fp8.BLOCKWISE),
        ("bf16+fp8 hybrid blockwise", H100, Precision.BF16, Fp8.BLOCKWISE),
        ("bf16+fp8 hybrid tensorwise", H100, Precision.BF16, Fp8.PER_TENSOR),
        ("fp32+fp8 e4m3 tensorwise", B200, Precision.FP32, Fp8.PER_TENSOR),
        ("NVFP4", B200, Precision.BF16, Fp8.NVFP4),
        ("fp32", H100, Precision.FP32, Fp8.NONE),
        ("fp32 (launch script passes no fp16/bf16 flag)", T4, Precision.FP32, Fp8.NONE),
        ("fp32 storage; TF32 matmul", H100, Precision.TF32, Fp8.NONE),
        ("fp32 storage; TF32 matmul", T4, Precision.FP32, Fp8.NONE),
    ],
)
def test_precisions(text: str, part: str, precision: Precision, fp8: Fp8) -> None:
    assert parse_precision(text, gpu(part)) == (precision, fp8)


def test_precisions_that_cannot_be() -> None:
    with pytest.raises(RowError, match="T4 has no bf16"):
        parse_precision("bf16", gpu("T4"))
    with pytest.raises(RowError, match="names no precision; legal: fp32, tf32"):
        parse_precision("half", gpu("T4"))


@pytest.mark.parametrize(
    ("text", "zero", "fsdp"),
    [
        ("", 0, False),
        ("DDP", 0, False),
        ("DDP (zero_optimization={})", 0, False),
        ("ZeRO-0", 0, False),
        ("ZeRO-1", 1, False),
        ("ZeRO 2", 2, False),
        ("zero3", 3, False),
        ("ZeRO-3; optimizer offload=N param offload=N", 3, False),
        ("distributed-optimizer (ZeRO-1)", 1, False),
        ("DDP/distributed-optimizer (FSDP=0)", 1, False),
        ("FSDP FULL_SHARD", 3, True),
        ("FSDP SHARD_GRAD_OP", 2, True),
        ("FSDP2 shard=64", 3, True),
        ("Megatron-FSDP optim_grads_params", 3, True),
        ("HSDP", 3, True),
        ("DeepSpeed 3D (ZeRO stage not stated)", 0, False),
    ],
)
def test_sharding(text: str, zero: int, fsdp: bool) -> None:
    assert parse_sharding(text) == (zero, fsdp)


def test_sharding_that_is_not_known() -> None:
    with pytest.raises(RowError, match="names no sharding; legal: DDP"):
        parse_sharding("magic")


@pytest.mark.parametrize(
    ("text", "mode", "modules"),
    [
        ("none", Recompute.NONE, ()),
        ("none (selective [])", Recompute.NONE, ()),
        ("full", Recompute.FULL, ()),
        ("full uniform 1", Recompute.FULL, ()),
        ("selective", Recompute.SELECTIVE, ("core_attn",)),
        ("selective mla_up_proj+mlp", Recompute.SELECTIVE, ("mla_up_proj", "mlp")),
        ("selective  [layernorm moe_act]", Recompute.SELECTIVE, ("layernorm", "moe_act")),
    ],
)
def test_recomputation(text: str, mode: Recompute, modules: tuple[str, ...]) -> None:
    assert parse_recompute(text) == (mode, modules)


def test_recomputation_that_is_not_known() -> None:
    with pytest.raises(RowError, match="is no recomputation"):
        parse_recompute("some")
