"""From a run to the stages that the cost model evaluates.

Stages of equal content on equal hosts are one: most pipelines have a first, a last, and many equal inner
ones.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise
from math import gcd

import numpy as np

from tangram.cluster.catalog import gpu_link
from tangram.cluster.defaults import LINK_LATENCY_S, NETWORK_LATENCY_S
from tangram.cluster.spec import Island, Node, Portion
from tangram.cost.batch import BatchStage
from tangram.cost.memory_options import MemoryOptions
from tangram.cost.setting import Setting, StackOptions
from tangram.cost.types import StageConfig, StageConfigs
from tangram.job import Job, Precision, Recompute, divisors
from tangram.model.atoms import cut_atoms
from tangram.model.spec import ModelSpec
from tangram.validation.run import Attention, Fp8, Host, Run, Tuning

FP4_OVER_FP8 = {"B300-SXM": 3.0, "GB300": 3.0}
"""Dense 4-bit over 8-bit rate by the data sheets; 2 for the other parts that have it."""

_FUSED_DISPATCHERS = ("deepep", "hybridep")


@dataclass(frozen=True, slots=True)
class RunStages:
    """The stages of a run.

    Attributes:
        stages: The different ones.
        hosts: Of each of them.
        lanes: Per lane of the run (see :attr:`tangram.validation.run.Hardware.lanes`), the position in
            ``stages`` of each of its stages.
    """

    stages: tuple[BatchStage, ...]
    hosts: tuple[Host, ...]
    lanes: tuple[tuple[int, ...], ...]


def stages_of(run: Run) -> RunStages:
    """Returns the stages of a run."""
    model = _with_mtp(run)
    atoms = cut_atoms(model)
    bounds = _bounds(run, model)
    known: dict[tuple[object, ...], int] = {}
    stages: list[BatchStage] = []
    hosts: list[Host] = []
    lanes = []
    for lane in run.hardware.lanes:
        positions = []
        for idx, (start, stop) in enumerate(bounds):
            host, per_node = lane[idx if len(lane) > 1 else 0], gpus_on_node(run, idx)
            content = tuple(atom.fingerprint for atom in atoms[start:stop])
            key = (content, host, per_node)
            if key not in known:
                known[key] = len(stages)
                hosts.append(host)
                stages.append(
                    BatchStage(
                        _setting(run, model, portion_of(run, host, per_node)),
                        atoms[start:stop],
                        recomputed=run.saving.recompute is Recompute.FULL,
                        adapters_only=run.tuning is Tuning.LORA,
                        packed=run.tuning is not Tuning.PRETRAIN,
                    )
                )
            positions.append(known[key])
        lanes.append(tuple(positions))
    return RunStages(tuple(stages), tuple(hosts), tuple(lanes))


def gpus_on_node(run: Run, stage: int) -> int:
    """Returns how many GPUs of a stage are on one node: stages follow each other on the nodes, whole nodes
    where a stage is larger. A node holds replicas of one kind only, so a stage on unequal nodes has so many
    that each kind's replicas fill theirs.
    """
    degrees, row = run.degrees, run.hardware.row(stage)
    domain = min(max(host.gpus_per_node, host.link_domain) for host in row)
    together = gcd(degrees.dp, *(row.count(host) for host in row)) if len(set(row)) > 1 else degrees.dp
    return max(size for size in divisors(degrees.cp * degrees.tp * together) if size <= domain)


def portion_of(run: Run, host: Host, per_node: int) -> Portion:
    """Returns the GPUs of one stage, as if all its replicas were on nodes like this one. No row tells
    latencies; those of cluster files without any count.

    Args:
        run: The run.
        host: The node.
        per_node: GPUs of the stage on one node.
    """
    gpus = run.degrees.dp * run.degrees.cp * run.degrees.tp
    domain = max(host.gpus_per_node, host.link_domain)
    # A domain of several nodes has the NICs of all of them.
    nic_bytes_per_s = host.nic_bytes_per_s * domain / host.gpus_per_node
    link = gpu_link(host.gpu)
    node = Node(
        name="node",
        gpu=host.gpu,
        num_gpus=domain,
        intra_bandwidth_bytes_per_s=host.link_bytes_per_s,
        intra_latency_s=LINK_LATENCY_S,
        intra_kind="pcie" if link is None else link.kind,
        nic_bandwidth_bytes_per_s=nic_bytes_per_s,
        host="node",
        group="node",
    )
    island = Island(
        name=host.gpu.name,
        nodes=(node,) * (gpus // per_node),
        gpu=host.gpu,
        gpus_per_node=domain,
        intra_bandwidth_bytes_per_s=host.link_bytes_per_s,
        intra_latency_s=LINK_LATENCY_S,
        inter_bandwidth_bytes_per_s=nic_bytes_per_s,
        inter_latency_s=NETWORK_LATENCY_S,
        nic_bandwidth_bytes_per_s=nic_bytes_per_s,
    )
    return Portion(island, gpus // per_node, per_node)


def _with_mtp(run: Run) -> ModelSpec:
    """Layers for multi-token prediction count as layers behind the others."""
    model = run.model
    return replace(model, layers=model.layers + model.layers[-1:] * run.mtp_layers)


def _bounds(run: Run, model: ModelSpec) -> list[tuple[int, int]]:
    """Atoms of each stage: embedding with the first, head (and what predicts further tokens) with the
    last.
    """
    cuts, position = [0], 1
    for layers in run.layers_per_stage[:-1]:
        position += layers
        cuts.append(position)
    cuts.append(model.num_layers + 2)
    return list(pairwise(cuts))


def _memory_options(run: Run) -> MemoryOptions:
    """What a row or its source says of the software; what nobody says is as in Tangram's own runtime."""
    software, modules = run.software, run.saving.modules
    selective = run.saving.recompute is Recompute.SELECTIVE
    fused = 2.0 if software.cross_entropy_fusion else 1.0
    return MemoryOptions(
        attention_stated=software.attention is not Attention.UNKNOWN,
        dropout=software.dropout,
        relu=bool(software.relu),
        recomputed=modules if selective else (),
        loss_copies=0.0 if software.loss_in_place else fused,
        deferred_heads=float(run.saving.deferred_heads),
        further_losses=float(run.mtp_layers),
        deterministic=bool(software.deterministic),
        grouped_products=bool(software.grouped_products),
        fused_accumulation=bool(software.fused_accumulation),
        further_gradient_bytes=float(run.numbers.further_gradient_bytes),
        weighs_outputs=software.weighs_outputs is not False,
        balanced_experts=bool(software.balanced_experts),
    )


def _setting(run: Run, model: ModelSpec, portion: Portion) -> Setting:
    degrees, numbers, saving, software = run.degrees, run.numbers, run.saving, run.software
    config = StageConfig(
        dp=degrees.dp,
        tp=degrees.tp,
        cp=degrees.cp,
        ep=degrees.ep,
        expert_tp=degrees.expert_tp,
        zero=degrees.zero,
        selective=saving.recompute is Recompute.SELECTIVE and "core_attn" in saving.modules,
        offload_optimizer=saving.optimizer_offload,
        offload_activations=0 < model.num_layers <= saving.offloaded_layers + run.mtp_layers,
    )
    precision = numbers.precision if numbers.fp8 is Fp8.NONE else Precision.FP8
    gpu = portion.island.gpu
    if numbers.tf32_where_possible and gpu.supports(Precision.TF32):
        precision = Precision.TF32
    job = Job(run.global_batch, run.seq_len, precision, optimizer=numbers.optimizer)
    flash = None if software.attention is Attention.UNKNOWN else software.attention is Attention.FLASH
    setting = Setting.of(
        model,
        portion,
        StageConfigs.of([config]),
        run.micro_batch * degrees.dp,
        job,
        flash=flash,
        sequence_parallel=software.sequence_parallel,
        memory=_memory_options(run),
    )
    options = StackOptions(
        cuda_graphs=software.cuda_graphs is True,
        overlap_experts=software.overlap_ep is True,
        fused_dispatch=software.dispatcher in _FUSED_DISPATCHERS,
    )
    setting = replace(setting, options=options)
    if numbers.fp8 is Fp8.NVFP4:
        rate = FP4_OVER_FP8.get(gpu.name, 2.0) * setting.hardware.achieved_flop_per_s
        setting = replace(setting, is_fp4=True, hardware=replace(setting.hardware, achieved_flop_per_s=rate))
    kept = setting.optimizer_bytes + numbers.gradient_copy_bytes
    setting = replace(setting, optimizer_bytes=kept)
    if degrees.shard_ranks is not None:
        ranks = np.array([float(degrees.shard_ranks)])
        # Replicas of the shards split the replicas of experts likewise.
        expert_ranks = np.maximum(setting.expert_data_ranks * ranks / setting.data_ranks, 1.0)
        setting = replace(setting, data_ranks=ranks, expert_data_ranks=expert_ranks)
    return setting
