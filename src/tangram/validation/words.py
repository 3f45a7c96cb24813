"""What the words of a table mean: precision, sharding, recomputation, as published tables write them."""

from __future__ import annotations

import re

from tangram.cluster.spec import GpuSpec
from tangram.job import Precision, Recompute
from tangram.validation.cells import RowError
from tangram.validation.run import Fp8

_PRECISION_WORD = re.compile(
    r"(?<![a-z0-9])(?:amp[_-])?(fp32|float32|tf32|fp16|float16|bf16|bfloat16)(?![0-9])"
)
_SPELLINGS = {"float32": "fp32", "float16": "fp16", "bfloat16": "bf16"}
_MODULE_SPLIT = re.compile(r"[\s+,\[\]()]+")


def parse_precision(text: str, gpu: GpuSpec) -> tuple[Precision, Fp8]:
    """Parses a precision such as ``bf16``, ``amp_bf16``, ``FP8-MX`` or ``fp32 storage; TF32 matmul``.

    The first precision that is named counts, and tf32 before fp32 where the GPU has it. 8-bit and 4-bit
    formats run the rest in bf16 unless another precision is named. FP8 without a recipe is scaled per tensor;
    "other granularity" is what the architecture has: 1 x 32 blocks on Blackwell, 128 x 128 blocks on Hopper.

    Raises:
        RowError: The text names no precision, or the GPU does not have it.
    """
    lowered = text.lower()
    fp8 = _fp8(lowered, gpu)
    words = [_SPELLINGS.get(word, word) for word in _PRECISION_WORD.findall(lowered)]
    stored = next((word for word in words if word != "tf32"), None)
    if fp8 is not Fp8.NONE:
        precision = Precision(stored or Precision.BF16)
    elif "tf32" in words and (gpu.supports(Precision.TF32) or stored is None):
        precision = Precision.TF32
    elif stored is not None:
        precision = Precision(stored)
    else:
        legal = ", ".join([*Precision, "fp8", "mxfp8", "nvfp4"])
        raise RowError("unknown-word", f"{text!r} names no precision; legal: {legal}", column="precision")
    if not gpu.supports(precision):
        raise RowError("impossible", f"{gpu.name} has no {precision} arithmetic", column="precision")
    return precision, fp8


def _fp8(lowered: str, gpu: GpuSpec) -> Fp8:
    if "fp4" in lowered:
        return Fp8.NVFP4
    if "fp8" not in lowered:
        return Fp8.NONE
    if "other" in lowered and "granularity" in lowered:
        return Fp8.MX if gpu.family.startswith("blackwell") else Fp8.BLOCKWISE
    if "mx" in lowered:
        return Fp8.MX
    return Fp8.BLOCKWISE if "block" in lowered or "subchannel" in lowered else Fp8.PER_TENSOR


def parse_sharding(text: str) -> tuple[int, bool]:
    """Parses how states are sharded into a ZeRO stage and whether an FSDP does it.

    An explicit ``FSDP=0`` is no FSDP; HSDP is an FSDP inside of a node, with replicas across. Where both
    plain data parallelism and a distributed optimizer are named, the optimizer is distributed: recipes of
    that form default to it. Empty is plain data parallelism.

    Raises:
        RowError: The text is none of the known words.
    """
    lowered = re.sub(r"fsdp\s*=\s*0", "", text.lower())
    found = re.search(r"zero[\s_-]*(?:stage\s*)?([0-3])", lowered)
    if "fsdp" in lowered or "hsdp" in lowered:
        half = "shard_grad_op" in lowered or "no_reshard" in lowered
        return (2 if half else 0 if "no_shard" in lowered else 3), True
    if found:
        return int(found.group(1)), False
    beyond = re.search(r"zero[\s_-]*(?:stage\s*)?[0-9]", lowered)
    if "distributed-optimizer" in lowered or "distributed optimizer" in lowered:
        return 1, False
    known = "ddp" in lowered or ("zero" in lowered and not beyond)
    if not lowered.strip() or known or lowered.strip() == "none":
        return 0, False
    raise RowError(
        "unknown-word",
        f"{text!r} names no sharding; legal: DDP, ZeRO-0 to ZeRO-3, distributed-optimizer, FSDP",
        column="zero_or_fsdp",
    )


def parse_recompute(text: str) -> tuple[Recompute, tuple[str, ...]]:
    """Parses ``none``, ``full ...`` or ``selective`` with its modules (``selective mla_up_proj+mlp``).

    ``selective`` alone means the attention core; so does ``core_attn`` in the list.

    Raises:
        RowError: The text is none of them.
    """
    lowered = text.lower().strip()
    word, _, rest = lowered.partition(" ")
    modules = tuple(sorted({m for m in _MODULE_SPLIT.split(rest) if m}))
    if word in ("none", "off", "false"):
        return Recompute.NONE, ()
    if word == "full":
        return Recompute.FULL, ()
    if word == "selective":
        return Recompute.SELECTIVE, modules or ("core_attn",)
    raise RowError(
        "unknown-word",
        f"{text!r} is no recomputation; legal: none, full, selective with modules such as core_attn+mlp",
        column="recompute",
    )
