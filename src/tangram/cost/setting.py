"""What configurations mean on one portion, for one micro-batch: the arrays that every formula starts from."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tangram.cluster.spec import GpuSpec, Portion
from tangram.cost.constants import (
    GpuConstants,
    StackConstants,
    cluster_constants,
    gpu_constants,
    matmul_flop_per_s,
    stack_constants,
)
from tangram.cost.links import Links
from tangram.cost.types import FloatArray, StageConfigs
from tangram.errors import InputError
from tangram.job import Job, Precision
from tangram.model.spec import ModelSpec
from tangram.model.vocabulary import PADDING_MULTIPLE

FLASH = "flash"
UNFUSED = "unfused"


def attention_kernel(gpu: GpuSpec, precision: Precision) -> str:
    """Returns the attention kernel that a stage on this GPU runs: ``flash`` or ``unfused``.

    Fused kernels exist in 16-bit only; fp32 and tf32 jobs run unfused attention on every GPU (the slower,
    memory-hungry fp32 kernels of other libraries are not assumed).
    """
    return FLASH if gpu.attention_kernel == FLASH and precision.is_mixed else UNFUSED


@dataclass(frozen=True, slots=True)
class Setting:
    """One portion, one micro-batch, many configurations; arrays of shape ``(num_configs,)``.

    Attributes:
        model, portion, configs, job: As asked.
        gpu, stack: Constants.
        links: Process groups.
        flash: Whether attention runs a fused kernel.
        element_bytes: Of an activation or a weight.
        gradient_bytes, optimizer_bytes: Per parameter.
        achieved_flop_per_s: Of large matrix products: the catalogue's achieved rate, not the peak.
        stream_s_per_byte: Of element-wise kernels.
        host_copy_s_per_byte: Between GPU and host.
        host_update_s_per_byte: Of an optimizer in host memory, per GPU; all GPUs of the node are taken to do
            the same.
        tp, cp, ep, expert_tp: Degrees, as floats.
        samples: Of the micro-batch on one rank.
        tokens: Of the micro-batch on one tensor-parallel group.
        shard_tokens: Of the micro-batch on one rank where activations are sharded over tp (sequence
            parallel).
        data_ranks, expert_data_ranks: Over which ZeRO shards dense and expert parameters.
        vocab_rows: Rows of the vocabulary matrices on one rank, padded.
    """

    model: ModelSpec
    portion: Portion
    configs: StageConfigs
    job: Job
    gpu: GpuConstants
    stack: StackConstants
    links: Links
    flash: bool
    element_bytes: float
    gradient_bytes: float
    optimizer_bytes: float
    achieved_flop_per_s: float
    stream_s_per_byte: float
    host_copy_s_per_byte: float
    host_update_s_per_byte: float
    tp: FloatArray
    cp: FloatArray
    ep: FloatArray
    expert_tp: FloatArray
    samples: FloatArray
    tokens: FloatArray
    shard_tokens: FloatArray
    data_ranks: FloatArray
    expert_data_ranks: FloatArray
    vocab_rows: FloatArray

    @staticmethod
    def of(model: ModelSpec, portion: Portion, configs: StageConfigs, micro_batch: int, job: Job) -> Setting:
        """Derives the arrays.

        Args:
            model: The model.
            portion: The GPUs; every configuration has ``portion.num_gpus`` of them.
            configs: Legal configurations (see :mod:`tangram.cost.configs`).
            micro_batch: Global micro-batch, in samples; every dp divides it.
            job: The job.

        Raises:
            InputError: The GPU has no arithmetic in the job's precision, or the model has parts that the
                formulas do not cover.
        """
        _refuse_uncovered(model)
        spec = portion.island.gpu
        gpu, stack, cluster = gpu_constants(spec), stack_constants(), cluster_constants()
        links = Links.of(portion, configs)
        degrees = (configs.tp, configs.cp, configs.ep, configs.expert_tp)
        tp, cp, ep, expert_tp = (degree.astype(np.float64) for degree in degrees)
        samples = micro_batch / configs.dp
        tokens = samples * job.seq_len / cp
        gradient_bytes, optimizer_bytes = state_bytes_per_param(job)
        block = PADDING_MULTIPLE * configs.tp
        return Setting(
            model=model,
            portion=portion,
            configs=configs,
            job=job,
            gpu=gpu,
            stack=stack,
            links=links,
            flash=attention_kernel(spec, job.precision) == FLASH,
            element_bytes=float(job.precision.element_bytes),
            gradient_bytes=gradient_bytes,
            optimizer_bytes=optimizer_bytes,
            achieved_flop_per_s=matmul_flop_per_s(spec, job.precision),
            stream_s_per_byte=1 / (gpu.memory_efficiency * spec.memory_bandwidth_bytes_per_s),
            host_copy_s_per_byte=1 / (cluster.host_copy_efficiency * spec.pcie_bytes_per_s),
            host_update_s_per_byte=portion.island.gpus_per_node / stack.host_bandwidth_bytes_per_s,
            tp=tp,
            cp=cp,
            ep=ep,
            expert_tp=expert_tp,
            samples=samples,
            tokens=tokens,
            shard_tokens=tokens / tp,
            data_ranks=(configs.dp * configs.cp).astype(np.float64),
            expert_data_ranks=links.size[-1],
            vocab_rows=(-(-model.vocab_size // block) * PADDING_MULTIPLE).astype(np.float64),
        )


def _refuse_uncovered(model: ModelSpec) -> None:
    for layer in model.distinct_layers:
        if layer.attention.latent is not None:
            raise InputError(f"model {model.name!r} has latent attention, which has no cost formula yet")
        if layer.moe is not None and layer.moe.shared is not None:
            raise InputError(f"model {model.name!r} has shared experts, which have no cost formula yet")


def state_bytes_per_param(job: Job) -> tuple[float, float]:
    """Returns the bytes per parameter of accumulated gradients, and of what only the optimizer keeps.

    An fp32 or tf32 job keeps fp32 gradients and no master copy: its weights are one already.
    """
    if job.precision.is_mixed:
        return float(job.optimizer.gradient_bytes), float(job.optimizer.state_bytes)
    return 4.0, float(job.optimizer.moment_bytes)
