"""Which arithmetic the whole job runs in, and why."""

from __future__ import annotations

from collections.abc import Sequence

from tangram.cluster.spec import Cluster, GpuSpec
from tangram.errors import InputError
from tangram.job import Precision


def choose_precision(cluster: Cluster, requested: Precision | None) -> tuple[Precision, str]:
    """Returns the job's precision and the reason in words.

    A requested precision stands as long as one GPU part of the cluster has it; parts without it are left
    out of the plan. Without a request: bf16 if every part has it, else fp16 if every part has that, else
    fp32.

    Raises:
        InputError: No GPU of the cluster has the requested precision.
    """
    parts = sorted({node.gpu for node in cluster.nodes}, key=lambda gpu: gpu.name)
    if requested is not None:
        lacking = [gpu.name for gpu in parts if not gpu.supports(requested)]
        if len(lacking) == len(parts):
            raise InputError(
                f"{_and(lacking)} {'has' if len(lacking) == 1 else 'have'} no {requested} matrix arithmetic",
                where="--precision",
                hint="legal on this cluster: " + ", ".join(_common(parts)),
            )
        left_out = f"; {_and(lacking)} cannot take part" if lacking else ""
        return requested, f"as asked{left_out}"
    for precision in (Precision.BF16, Precision.FP16):
        if all(gpu.supports(precision) for gpu in parts):
            if precision is Precision.BF16:
                return precision, "every GPU has bf16"
            lacking = [gpu.name for gpu in parts if not gpu.supports(Precision.BF16)]
            return precision, f"{_and(lacking)} {'has' if len(lacking) == 1 else 'have'} no bf16"
    return Precision.FP32, "no 16-bit format is common to all GPUs"


def _common(parts: Sequence[GpuSpec]) -> list[str]:
    return [p.value for p in Precision if all(gpu.supports(p) for gpu in parts)]


def _and(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else ", ".join(names[:-1]) + " and " + names[-1]
