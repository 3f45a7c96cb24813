"""How to train: batch, sequence, precision, optimizer, and what the user has fixed in advance.

A job is validated once, here, and trusted afterwards.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from tangram.basis import SHIPPED_BASIS, CostBasis
from tangram.errors import InputError


class Precision(StrEnum):
    """Arithmetic of the matrix products. tf32 keeps fp32 storage.

    fp8 runs the products of the layers at 8 bit; attention and the LM head, and everything that is stored,
    stay in bf16.
    """

    FP32 = "fp32"
    TF32 = "tf32"
    FP16 = "fp16"
    BF16 = "bf16"
    FP8 = "fp8"

    @property
    def element_bytes(self) -> int:
        """Bytes of a stored activation or weight."""
        return 4 if self in (Precision.FP32, Precision.TF32) else 2

    @property
    def is_mixed(self) -> bool:
        """Whether the optimizer keeps an fp32 master copy beside the weights."""
        return self.element_bytes == 2


class Recompute(StrEnum):
    """Activation recomputation of a layer: none, its attention core, or all of it."""

    NONE = "none"
    SELECTIVE = "selective"
    FULL = "full"


@dataclass(frozen=True, slots=True)
class OptimizerSpec:
    """AdamW with explicit storage, in bytes per parameter.

    The defaults are mixed-precision Adam as Megatron-Core runs it: bf16/fp16 weights (2), fp32 main
    gradients (4), fp32 master weights (4) and two fp32 moments (8): 18 bytes. ``gradient_bytes=2`` gives
    the 16 bytes of ZeRO's paper (Rajbhandari et al. 2020, section 3.1).

    Attributes:
        name: Only ``adamw`` for now.
        gradient_bytes: Bytes of an accumulated gradient element.
        master_bytes: Bytes of the master weight (0 when weights are stored in fp32 already).
        moment_bytes: Bytes of both moments together.
    """

    name: str = "adamw"
    gradient_bytes: int = 4
    master_bytes: int = 4
    moment_bytes: int = 8

    @property
    def state_bytes(self) -> int:
        """Bytes per parameter that only the optimizer needs (master weight and moments)."""
        return self.master_bytes + self.moment_bytes


@dataclass(frozen=True, slots=True)
class Pins:
    """What the user dictates; None leaves the choice to the planner.

    Attributes:
        micro_batch: Global micro-batch (samples that enter the pipeline together).
        tp, dp, cp, ep, pp: Degrees; ``pp`` is the number of stages of the whole pipeline.
        zero: ZeRO stage of every stage.
        recompute: Recompute mode of every layer.
        layers_per_stage: Transformer layers of each stage, in order.
        offload: ``none``, ``optimizer``, ``activations``, ``both`` or ``auto`` (search all four).
        allow_cross_node_tp: Whether a tensor-parallel group may span nodes.
    """

    micro_batch: int | None = None
    tp: int | None = None
    dp: int | None = None
    cp: int | None = None
    ep: int | None = None
    pp: int | None = None
    zero: int | None = None
    recompute: Recompute | None = None
    layers_per_stage: tuple[int, ...] | None = None
    offload: str = "none"
    allow_cross_node_tp: bool = False


@dataclass(frozen=True, slots=True)
class Job:
    """One training job.

    Attributes:
        global_batch: Samples per optimizer step.
        seq_len: Tokens per sample.
        precision: Arithmetic of the whole job.
        optimizer: AdamW and its storage.
        pins: What the user dictates.
        overlap_p2p: Whether the engine's point-to-point transfers overlap with compute. Tangram's runtime
            does; an engine that blocks adds transfers to stage times.
        free_warmup: Whether the engine can hold more micro-batches in flight than plain 1F1B.
        basis: What predictions rest on.
    """

    global_batch: int
    seq_len: int
    precision: Precision
    optimizer: OptimizerSpec = field(default_factory=OptimizerSpec)
    pins: Pins = field(default_factory=Pins)
    overlap_p2p: bool = True
    free_warmup: bool = True
    basis: CostBasis = SHIPPED_BASIS

    def __post_init__(self) -> None:
        _in_range("global batch", "--global-batch", self.global_batch, 1, 10_000_000)
        _in_range("sequence length", "--seq-len", self.seq_len, 1, 100_000_000)
        pins = self.pins
        for name in ("micro_batch", "tp", "dp", "cp", "ep", "pp"):
            value = getattr(pins, name)
            if value is not None:
                _in_range(name.replace("_", "-"), f"--{name.replace('_', '-')}", value, 1, 1_000_000)
        if pins.zero is not None:
            _in_range("zero", "--zero", pins.zero, 0, 3)
        if pins.offload not in ("none", "optimizer", "activations", "both", "auto"):
            raise InputError(
                f"unknown offload {pins.offload!r}",
                where="--offload",
                hint="legal: none, optimizer, activations, both or auto",
            )
        if pins.micro_batch is not None and self.global_batch % pins.micro_batch:
            raise InputError(
                f"micro-batch {pins.micro_batch} does not divide the global batch {self.global_batch}",
                where="--micro-batch",
                hint="legal: " + ", ".join(map(str, divisors(self.global_batch))),
            )

    def micro_batches(self) -> list[int]:
        """Returns the global micro-batch sizes to search: all divisors of the global batch, or the pinned
        one.
        """
        if self.pins.micro_batch is not None:
            return [self.pins.micro_batch]
        return divisors(self.global_batch)


def divisors(number: int) -> list[int]:
    """Returns the divisors of a positive number, ascending."""
    small = [d for d in range(1, int(number**0.5) + 1) if number % d == 0]
    return small + [number // d for d in reversed(small) if d * d != number]


def _in_range(what: str, where: str, value: int, low: int, high: int) -> None:
    if not low <= value <= high:
        raise InputError(f"{what} {value} is out of range", where=where, hint=f"legal: {low} to {high}")
