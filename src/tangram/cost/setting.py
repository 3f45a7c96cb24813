"""What configurations mean on one portion, and their micro-batches: the arrays of every formula."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tangram.cluster.spec import GpuSpec, Portion
from tangram.cost.constants import matmul_flop_per_s
from tangram.cost.links import EP, EXPERT_DATA, Groups
from tangram.cost.memory_options import PLAIN, MemoryOptions
from tangram.cost.types import BoolArray, FloatArray, IntArray, Number, StageConfigs
from tangram.job import Job, Precision
from tangram.model.spec import ModelSpec
from tangram.model.vocabulary import PADDING_MULTIPLE

FLASH = "flash"
UNFUSED = "unfused"


def attention_kernel(gpu: GpuSpec, precision: Precision) -> str:
    """Returns the attention kernel that a stage on this GPU runs: ``flash`` or ``unfused``.

    Fused kernels exist in 16-bit only (an fp8 job runs attention in bf16); fp32 and tf32 jobs run unfused
    attention on every GPU (the slower, memory-hungry fp32 kernels of other libraries are not assumed).
    """
    return FLASH if gpu.attention_kernel == FLASH and precision.is_mixed else UNFUSED


@dataclass(frozen=True, slots=True)
class Hardware:
    """What a GPU and its node are stated to do; scalars, or arrays of shape ``(num_configs,)``.

    Attributes:
        achieved_flop_per_s: Of large matrix products in the job's precision: the catalogue's achieved rate,
            not the peak.
        wide_flop_per_s: The same at 16 bit where the job's precision has less.
        memory_bandwidth_bytes_per_s: Of the device.
        pcie_bytes_per_s: Between GPU and host.
        usable_memory_bytes: Of the device.
        gpus_per_node: Of the island.
    """

    achieved_flop_per_s: Number
    wide_flop_per_s: Number
    memory_bandwidth_bytes_per_s: Number
    pcie_bytes_per_s: Number
    usable_memory_bytes: Number
    gpus_per_node: Number

    @staticmethod
    def of(portion: Portion, precision: Precision) -> Hardware:
        """Reads the catalogue.

        Raises:
            InputError: The GPU has no arithmetic in this precision.
        """
        gpu = portion.island.gpu
        wide = Precision.BF16 if precision is Precision.FP8 else precision
        return Hardware(
            achieved_flop_per_s=matmul_flop_per_s(gpu, precision),
            wide_flop_per_s=matmul_flop_per_s(gpu, wide),
            memory_bandwidth_bytes_per_s=gpu.memory_bandwidth_bytes_per_s,
            pcie_bytes_per_s=gpu.pcie_bytes_per_s,
            usable_memory_bytes=float(gpu.usable_memory_bytes),
            gpus_per_node=float(portion.island.gpus_per_node),
        )


@dataclass(frozen=True, slots=True)
class StackOptions:
    """Switches of a stack; booleans, or arrays of shape ``(num_configs,)``. Tangram's runtime has them off.

    Attributes:
        cuda_graphs: Layers are launched as graphs.
        overlap_experts: The exchange of tokens runs beside other compute.
        fused_dispatch: Tokens are exchanged by a kernel made for it (DeepEP, HybridEP) instead of an
            all-to-all.
    """

    cuda_graphs: bool | BoolArray = False
    overlap_experts: bool | BoolArray = False
    fused_dispatch: bool | BoolArray = False


@dataclass(frozen=True, slots=True)
class Setting:
    """One portion, many configurations, each with its micro-batch; arrays of shape ``(num_configs,)``.

    No constant of the cost model is in it: a setting says what is done where,
        :class:`tangram.cost.rates.Rates` how
    fast.

    Attributes:
        model, configs, job: As asked.
        hardware: Stated figures of the GPU.
        groups: Process groups.
        flash: Whether attention runs a fused kernel.
        is_fp8: Whether the products of layers run at 8 bit.
        is_fp4: Whether they run at 4 bit.
        options: What the stack is asked to do.
        element_bytes: Of an activation or a weight.
        gradient_bytes, optimizer_bytes: Per parameter.
        tp, cp, ep, expert_tp: Degrees, as floats.
        samples: Of the micro-batch on one rank.
        tokens: Of the micro-batch on one tensor-parallel group.
        shard_tokens: Of the micro-batch on one rank where activations are sharded over tp (sequence
            parallel).
        data_ranks, expert_data_ranks: Over which ZeRO shards dense and expert parameters.
        num_communicators: Process groups of more than one rank.
        residual_bytes: Of the residual stream of the micro-batch on one rank.
        vocab_rows: Rows of the vocabulary matrices on one rank, padded.
        memory: What the software does in its own way.
    """

    model: ModelSpec
    configs: StageConfigs
    job: Job
    hardware: Hardware
    groups: Groups
    flash: bool
    is_fp8: bool | BoolArray
    is_fp4: bool | BoolArray
    options: StackOptions
    element_bytes: Number
    gradient_bytes: Number
    optimizer_bytes: Number
    tp: FloatArray
    cp: FloatArray
    ep: FloatArray
    expert_tp: FloatArray
    samples: FloatArray
    tokens: FloatArray
    shard_tokens: FloatArray
    data_ranks: FloatArray
    expert_data_ranks: FloatArray
    num_communicators: FloatArray
    residual_bytes: FloatArray
    vocab_rows: FloatArray
    memory: MemoryOptions

    @staticmethod
    def of(
        model: ModelSpec,
        portion: Portion,
        configs: StageConfigs,
        micro_batch: int | IntArray,
        job: Job,
        *,
        flash: bool | None = None,
        sequence_parallel: bool = True,
        memory: MemoryOptions = PLAIN,
    ) -> Setting:
        """Derives the arrays.

        Args:
            model: The model.
            portion: The GPUs; every configuration has ``portion.num_gpus`` of them.
            configs: Legal configurations (see :mod:`tangram.cost.configs`).
            micro_batch: Global micro-batch, in samples, or one per configuration; its dp divides it.
            job: The job.
            flash: Whether attention runs a fused kernel; by default what Tangram's runtime does on this GPU.
            sequence_parallel: Whether activations between tensor-parallel products are split over tp.
            memory: What the software does in its own way; by default what Tangram's runtime does.

        Raises:
            InputError: The GPU has no arithmetic in the job's precision.
        """
        groups = Groups.of(portion, configs)
        degrees = (configs.tp, configs.cp, configs.ep, configs.expert_tp)
        tp, cp, ep, expert_tp = (degree.astype(np.float64) for degree in degrees)
        samples = micro_batch / configs.dp
        tokens = samples * job.seq_len / cp
        gradient_bytes, optimizer_bytes = state_bytes_per_param(job)
        block = PADDING_MULTIPLE * configs.tp
        return Setting(
            model=model,
            configs=configs,
            job=job,
            hardware=Hardware.of(portion, job.precision),
            groups=groups,
            flash=attention_kernel(portion.island.gpu, job.precision) == FLASH if flash is None else flash,
            is_fp4=False,
            options=StackOptions(),
            is_fp8=job.precision is Precision.FP8,
            element_bytes=float(job.precision.element_bytes),
            gradient_bytes=gradient_bytes,
            optimizer_bytes=optimizer_bytes,
            tp=tp,
            cp=cp,
            ep=ep,
            expert_tp=expert_tp,
            samples=samples,
            tokens=tokens,
            shard_tokens=tokens / tp if sequence_parallel else tokens,
            data_ranks=(configs.dp * configs.cp).astype(np.float64),
            expert_data_ranks=groups.size[EXPERT_DATA],
            num_communicators=_communicators(model, groups),
            residual_bytes=tokens / tp * (model.hidden_size * job.precision.element_bytes),
            vocab_rows=(-(-model.vocab_size // block) * PADDING_MULTIPLE).astype(np.float64),
            memory=memory,
        )


def _communicators(model: ModelSpec, groups: Groups) -> FloatArray:
    """Groups of more than one rank; a model without experts has no expert groups."""
    sizes = groups.size if model.has_moe else groups.size[:EP]
    count: FloatArray = (sizes > 1).sum(axis=0).astype(np.float64)
    return count


def state_bytes_per_param(job: Job) -> tuple[float, float]:
    """Returns the bytes per parameter of accumulated gradients, and of what only the optimizer keeps.

    An fp32 or tf32 job keeps fp32 gradients and no master copy: its weights are one already.
    """
    if job.precision.is_mixed:
        return float(job.optimizer.gradient_bytes), float(job.optimizer.state_bytes)
    return 4.0, float(job.optimizer.moment_bytes)
