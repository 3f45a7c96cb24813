"""The words of the cost model: what a stage may be configured as, and what the model says of it.

Times are seconds per (global) micro-batch unless they say step; sizes are bytes per GPU. Arrays have the
shape ``(num_atoms, num_configs)`` unless stated.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]
BoolArray = npt.NDArray[np.bool_]
Number = float | FloatArray
"""A scalar, or an array with one entry per configuration."""

STATES = ("weights", "gradients", "optimizer")
"""The items of memory that are counted, by dtype and degrees; all others are estimated."""

MARGIN = "margin"
"""The item of memory that lies between the best estimate of a peak and the upper one."""


@dataclass(frozen=True, slots=True)
class StageConfig:
    """Degrees and memory-saving choices of one stage.

    ``dp * cp * tp`` is the number of GPUs. Experts re-slice the same GPUs: ``ep * expert_tp * expert_dp`` is
    the same number; ``expert_tp`` is 1 or ``tp``.

    Attributes:
        dp, tp, cp: Degrees of the dense part.
        ep, expert_tp: Degrees of the experts (1, 1 for a stage without experts).
        zero: 0 nothing sharded, 1 optimizer, 2 also gradients, 3 also weights, over ``dp * cp`` ranks
            (experts over their own replicas).
        selective: Whether layers that are not recomputed in full recompute their attention core.
        offload_optimizer: Whether master weights and moments live in host memory.
        offload_activations: Whether saved activations of layers not recomputed live in host memory.
    """

    dp: int
    tp: int
    cp: int = 1
    ep: int = 1
    expert_tp: int = 1
    zero: int = 0
    selective: bool = False
    offload_optimizer: bool = False
    offload_activations: bool = False

    @property
    def num_gpus(self) -> int:
        """GPUs of the stage."""
        return self.dp * self.tp * self.cp

    @property
    def expert_dp(self) -> int:
        """Replicas of each expert."""
        return self.num_gpus // (self.ep * self.expert_tp)


@dataclass(frozen=True, slots=True)
class StageConfigs:
    """A table of configurations, one array of shape ``(num_configs,)`` per field of :class:`StageConfig`."""

    dp: IntArray
    tp: IntArray
    cp: IntArray
    ep: IntArray
    expert_tp: IntArray
    zero: IntArray
    selective: BoolArray
    offload_optimizer: BoolArray
    offload_activations: BoolArray

    def __len__(self) -> int:
        return len(self.dp)

    def row(self, idx: int) -> StageConfig:
        """Returns one configuration."""
        return StageConfig(
            dp=int(self.dp[idx]),
            tp=int(self.tp[idx]),
            cp=int(self.cp[idx]),
            ep=int(self.ep[idx]),
            expert_tp=int(self.expert_tp[idx]),
            zero=int(self.zero[idx]),
            selective=bool(self.selective[idx]),
            offload_optimizer=bool(self.offload_optimizer[idx]),
            offload_activations=bool(self.offload_activations[idx]),
        )

    @staticmethod
    def of(configs: list[StageConfig]) -> StageConfigs:
        """Builds a table from single configurations."""

        def ints(name: str) -> IntArray:
            return np.array([getattr(c, name) for c in configs], dtype=np.int64)

        def bools(name: str) -> BoolArray:
            return np.array([getattr(c, name) for c in configs], dtype=np.bool_)

        return StageConfigs(
            dp=ints("dp"),
            tp=ints("tp"),
            cp=ints("cp"),
            ep=ints("ep"),
            expert_tp=ints("expert_tp"),
            zero=ints("zero"),
            selective=bools("selective"),
            offload_optimizer=bools("offload_optimizer"),
            offload_activations=bools("offload_activations"),
        )


@dataclass(frozen=True, slots=True)
class AtomCosts:
    """What each atom costs under each configuration; a slice costs the sum (or, where said, the max).

    Attributes:
        forward_s, backward_s: Per micro-batch, with the collectives that are not hidden.
        recompute_s: Added to the backward pass when the atom is recomputed in full.
        weight_bytes, gradient_bytes, optimizer_bytes: Model states on the GPU.
        stored_bytes: Activations kept per micro-batch in flight, when not recomputed in full.
        recomputed_stored_bytes: The same when recomputed in full (its inputs).
        workspace_bytes: Largest transient while the atom runs (max over a slice).
        recompute_workspace_bytes: The same while the atom is re-run in backward, what it brings back included
            (max over the recomputed ones). A stage needs the larger of the two maxima, not their sum.
        step_s: Gradient synchronisation and optimizer, once per step.
        components: Parts of ``forward_s + backward_s`` (keys ``matmul``, ``attention``, ``elementwise``,
            ``launch``, ``tp``, ``cp``, ``ep``, ``zero``, ``offload``) and of ``step_s`` (``grad_sync``,
            ``param_gather``, ``optimizer``, ``optimizer_offload``), for print.
        reserve_bytes: Context, NCCL buffers and fragmentation; shape ``(num_configs,)``, once per stage.
        tied_bytes: Model states counted twice when embedding and tied head are in one stage;
            ``(num_configs,)``.
        tied_step_s: Step time counted twice then; ``(num_configs,)``.
    """

    forward_s: FloatArray
    backward_s: FloatArray
    recompute_s: FloatArray
    weight_bytes: FloatArray
    gradient_bytes: FloatArray
    optimizer_bytes: FloatArray
    stored_bytes: FloatArray
    recomputed_stored_bytes: FloatArray
    workspace_bytes: FloatArray
    recompute_workspace_bytes: FloatArray
    step_s: FloatArray
    components: Mapping[str, FloatArray]
    reserve_bytes: FloatArray
    tied_bytes: FloatArray
    tied_step_s: FloatArray

    @property
    def state_bytes(self) -> FloatArray:
        """Weights, gradients and optimizer states together."""
        return self.weight_bytes + self.gradient_bytes + self.optimizer_bytes

    def take(self, rows: slice | IntArray, columns: slice | IntArray) -> AtomCosts:
        """Returns the costs of some atoms under some configurations."""
        once = ("reserve_bytes", "tied_bytes", "tied_step_s")
        found = {name: getattr(self, name)[columns] for name in once}
        for name in AtomCosts.__dataclass_fields__:
            if name not in ("components", *once):
                found[name] = getattr(self, name)[rows][:, columns]
        return AtomCosts(
            **found,
            components={name: values[rows][:, columns] for name, values in self.components.items()},
        )


@dataclass(frozen=True, slots=True)
class StageCost:
    """What one stage costs: the sum over its slice, itemised.

    Attributes:
        forward_s, backward_s: Per micro-batch; ``backward_s`` includes recomputation.
        step_s: Gradient synchronisation and optimizer after the last backward.
        memory: Bytes per item, in print order: ``weights``, ``gradients``, ``optimizer``, ``activations``
            (all in flight), ``workspace``, ``reserve``, and ``margin``, which makes their sum the upper
            estimate.
        activation_bytes: Per micro-batch in flight, without margin.
        upper_ratio: Upper over best estimate of all but model states.
        capacity_bytes: What the GPU has.
        components: As in :class:`AtomCosts`, plus ``recompute``.
    """

    forward_s: float
    backward_s: float
    step_s: float
    memory: Mapping[str, float]
    activation_bytes: float
    upper_ratio: float
    capacity_bytes: int
    components: Mapping[str, float]

    @property
    def time_s(self) -> float:
        """Forward plus backward of one micro-batch."""
        return self.forward_s + self.backward_s

    @property
    def peak_bytes(self) -> float:
        """Upper estimate of the peak memory of a GPU of the stage: what has to fit."""
        return sum(self.memory.values())

    @property
    def best_peak_bytes(self) -> float:
        """Best estimate of it: the items without the margin."""
        return sum(size for name, size in self.memory.items() if name != MARGIN)

    @property
    def state_bytes(self) -> float:
        """Weights, gradients and optimizer states together: no margin is due on them."""
        return sum(self.memory[name] for name in STATES)

    def holding(self, num_micro_batches: int) -> StageCost:
        """Returns the same stage with the activations of so many micro-batches."""
        held = {**self.memory, "activations": num_micro_batches * self.activation_bytes}
        return replace(self, memory=with_margin(held, self.upper_ratio))


def with_margin(memory: Mapping[str, float], upper_ratio: float) -> dict[str, float]:
    """Returns items of memory with the margin behind them: what fewer than 1 run of 50 exceeds.

    Args:
        memory: Bytes per item; a margin among them is replaced.
        upper_ratio: Upper over best estimate of all but model states.
    """
    items = {name: size for name, size in memory.items() if name != MARGIN}
    estimated = sum(size for name, size in items.items() if name not in STATES)
    return {**items, MARGIN: (upper_ratio - 1.0) * estimated}
