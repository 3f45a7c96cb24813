"""Predicts a run of equal GPUs with the cost model and the simulator, as a plan of the same shape would be.

Mixed runs, interleaved schedules, 8-bit products and offloaded activations are refused: the cost model has no
terms for them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from tangram.cluster.defaults import LINK_LATENCY_S, NETWORK_LATENCY_S
from tangram.cluster.spec import Cluster, Island, Node, Portion
from tangram.cost.stage import stage_cost
from tangram.cost.transfer import boundary_bytes, transfer
from tangram.cost.types import StageConfig, StageCost
from tangram.errors import InputError
from tangram.job import Job, Recompute
from tangram.model.atoms import cut_atoms
from tangram.simulate.fast import iteration_ns
from tangram.simulate.pipeline import SimEdge, SimPipeline, SimStage
from tangram.units import NS_PER_S
from tangram.validation.run import Attention, Fp8, MemoryKind, MemoryRanks, Run, Tuning
from tangram.validation.scored import Predicted, Predictor


def predict(run: Run) -> Predicted:
    """Predicts time and peak memory of a run.

    Raises:
        InputError: The cost model has no terms for something that the run does.
    """
    _refuse_uncovered(run)
    cluster, island = _cluster(run)
    job = Job(run.global_batch, run.seq_len, run.numbers.precision, run.numbers.optimizer)
    stages = _stages(run, island, job)
    pipeline = SimPipeline(
        stages=tuple(
            SimStage(_ns(s.forward_s), _ns(s.backward_s), _ns(s.step_s), run.degrees.pp - i)
            for i, s in enumerate(stages)
        ),
        edges=tuple(_edge(run, cluster, island, job) for _ in range(run.degrees.pp - 1)),
        num_micro_batches=run.num_micro_batches,
    )
    return Predicted(
        iter_s=iteration_ns(pipeline) / NS_PER_S,
        peak_memory_bytes=_peak(run, stages),
        upper_peak_memory_bytes=None,
        components={name: sum(s.components[name] for s in stages) for name in stages[0].components},
    )


def refit(runs: Sequence[Run]) -> Predictor:
    """Re-fits one factor on times and one on memory: the medians of measured over predicted.

    Runs that cannot be predicted are passed over.
    """
    known = [(run, found) for run in runs if (found := _attempt(run)) is not None]
    time = [r.measured.iter_s / p.iter_s for r, p in known if r.measured.iter_s is not None]
    memory = [
        r.measured.peak_memory_gib * 2**30 / p.peak_memory_bytes
        for r, p in known
        if r.measured.peak_memory_gib is not None
    ]
    time_scale = float(np.median(time)) if time else 1.0
    memory_scale = float(np.median(memory)) if memory else 1.0

    def scaled(run: Run) -> Predicted:
        found = predict(run)
        return replace(
            found,
            iter_s=found.iter_s * time_scale,
            peak_memory_bytes=found.peak_memory_bytes * memory_scale,
            components={name: seconds * time_scale for name, seconds in found.components.items()},
        )

    return scaled


def _attempt(run: Run) -> Predicted | None:
    try:
        return predict(run)
    except InputError:
        return None


def _refuse_uncovered(run: Run) -> None:
    reasons = (
        (run.is_mixed, "runs of unequal GPUs"),
        (run.degrees.vpp > 1, "interleaved schedules"),
        (run.numbers.fp8 is not Fp8.NONE, "8-bit products"),
        (run.saving.offloaded_layers > 0 or run.saving.parameter_offload, "offloaded layers"),
        (run.tuning is Tuning.LORA, "frozen weights"),
        (run.degrees.experts_per_rank is not None, "replicated experts"),
        (run.mtp_layers > 0, "multi-token prediction"),
        (min(run.layers_per_stage) < 0, "stages without layers"),
    )
    for holds, what in reasons:
        if holds:
            raise InputError(f"the cost model has no terms for {what}")


def _cluster(run: Run) -> tuple[Cluster, Island]:
    """Whole nodes for the run; a stage takes as many of them as it has GPUs for."""
    host = run.hardware.host()
    kernel = run.software.attention
    gpu = host.gpu if kernel is Attention.UNKNOWN else replace(host.gpu, attention_kernel=kernel.value)
    count = max(1, math.ceil(run.num_gpus / host.gpus_per_node))
    nodes = tuple(
        Node(
            name=f"n{i}",
            gpu=gpu,
            num_gpus=host.gpus_per_node,
            intra_bandwidth_bytes_per_s=host.link_bytes_per_s,
            intra_latency_s=LINK_LATENCY_S,
            intra_kind="link",
            nic_bandwidth_bytes_per_s=host.nic_bytes_per_s,
            host=f"n{i}",
            group="n",
        )
        for i in range(count)
    )
    island = Island(
        name="run",
        nodes=nodes,
        gpu=gpu,
        gpus_per_node=host.gpus_per_node,
        intra_bandwidth_bytes_per_s=host.link_bytes_per_s,
        intra_latency_s=LINK_LATENCY_S,
        inter_bandwidth_bytes_per_s=host.nic_bytes_per_s,
        inter_latency_s=NETWORK_LATENCY_S,
        nic_bandwidth_bytes_per_s=host.nic_bytes_per_s,
    )
    return Cluster("run", nodes, host.nic_bytes_per_s, NETWORK_LATENCY_S), island


def _portion(run: Run, island: Island) -> Portion:
    gpus = run.num_gpus // run.degrees.pp
    if gpus <= island.gpus_per_node:
        return Portion(island, 1, gpus)
    if gpus % island.gpus_per_node:
        raise InputError(f"a stage of {gpus} GPUs fills no whole number of nodes of {island.gpus_per_node}")
    return Portion(island, gpus // island.gpus_per_node, island.gpus_per_node)


def _stages(run: Run, island: Island, job: Job) -> list[StageCost]:
    d = run.degrees
    config = StageConfig(
        dp=d.dp,
        tp=d.tp,
        cp=d.cp,
        ep=d.ep,
        expert_tp=d.expert_tp if run.is_moe else d.tp,
        zero=d.zero,
        selective=run.saving.recompute is Recompute.SELECTIVE and "core_attn" in run.saving.modules,
        offload_optimizer=run.saving.optimizer_offload,
    )
    atoms = cut_atoms(run.model)
    is_full = run.saving.recompute is Recompute.FULL
    costs, begin = [], 1
    for i, count in enumerate(run.layers_per_stage):
        low = 0 if i == 0 else begin
        high = len(atoms) if i == d.pp - 1 else begin + count
        held = atoms[low:high]
        begin += count
        flags = [is_full and not (atom.is_embedding or atom.is_head) for atom in held]
        size = run.micro_batch * d.dp
        portion = _portion(run, island)
        costs.append(
            stage_cost(run.model, held, portion, config, size, run.num_micro_batches, d.pp - i, flags, job)
        )
    return costs


def _edge(run: Run, cluster: Cluster, island: Island, job: Job) -> SimEdge:
    """A residual stream per micro-batch; all edges are alike."""
    layer = cut_atoms(run.model)[1]
    size = boundary_bytes(run.model, layer, run.micro_batch * run.degrees.dp, job)
    portion = _portion(run, island)
    found = transfer(cluster, portion, portion, size)
    occupancy = _ns(found.occupancy_s)
    return SimEdge(_ns(found.latency_s), occupancy, occupancy)


def _peak(run: Run, stages: Sequence[StageCost]) -> float:
    """In the run's own convention: without context and buffers where an allocator reports."""
    peaks = [
        stage.peak_bytes
        - (stage.memory["reserve"] if run.measured.memory_kind is MemoryKind.ALLOCATOR else 0.0)
        for stage in stages
    ]
    if run.measured.memory_ranks is MemoryRanks.LAST_STAGE:
        return peaks[-1]
    return peaks[0] if run.measured.memory_ranks is MemoryRanks.FIRST_STAGE else max(peaks)


def _ns(seconds: float) -> int:
    return round(seconds * NS_PER_S)
