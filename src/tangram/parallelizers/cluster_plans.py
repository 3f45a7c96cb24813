"""What is wrong with the structure of a cluster plan: layers, GPUs and samples that went lost or came twice.

What it costs, and whether it fits into memory, is the referee's to say.
"""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

from tangram.cost.types import StageConfig
from tangram.parallelizers.protocols import ClusterPlan, ClusterRequest, ClusterStage, Replicas


def cluster_plan_faults(request: ClusterRequest, plan: ClusterPlan) -> list[str]:
    """Returns every fault of a plan in words; none for a plan that can be executed, memory aside.

    Args:
        request: The question.
        plan: The answer.
    """
    return coverage_faults(request, plan) + stage_faults(request, plan)


def coverage_faults(request: ClusterRequest, plan: ClusterPlan) -> list[str]:
    """Returns which atoms are on no stage, or on two: what such a plan trains is not the whole model."""
    stages, num_atoms, faults = plan.stages, len(request.atoms), []
    if stages and stages[0].start != 0:
        faults.append(f"atoms 0 to {stages[0].start - 1} are on no stage")
    for idx, (front, behind) in enumerate(pairwise(stages)):
        if behind.start > front.stop:
            faults.append(f"atoms {front.stop} to {behind.start - 1} are on no stage")
        elif behind.start < front.stop:
            faults.append(f"stages {idx} and {idx + 1} both hold atom {behind.start}")
    if stages and stages[-1].stop != num_atoms:
        faults.append(f"the last stage ends at atom {stages[-1].stop} of {num_atoms}")
    return faults


def stage_faults(request: ClusterRequest, plan: ClusterPlan) -> list[str]:
    """Returns where stages, GPUs, degrees or samples do not add up: nothing can run such a plan at all."""
    if not plan.stages:
        return ["there is no stage"]
    faults = []
    if plan.micro_batch < 1 or request.job.global_batch % plan.micro_batch:
        faults.append(
            f"the micro-batch of {plan.micro_batch} does not divide the batch of {request.job.global_batch}"
        )
    for idx, stage in enumerate(plan.stages):
        faults += [f"stage {idx}: {fault}" for fault in _stage_faults(plan.micro_batch, stage)]
    return faults + _gpu_faults(request, plan)


def _stage_faults(micro_batch: int, stage: ClusterStage) -> list[str]:
    faults = []
    if stage.stop <= stage.start:
        faults.append("it holds no atom")
    elif len(stage.recomputed) != stage.stop - stage.start:
        faults.append(f"{len(stage.recomputed)} recompute flags for {stage.stop - stage.start} atoms")
    if not stage.replicas:
        faults.append("it has no GPU")
    samples = sum(replicas.samples for replicas in stage.replicas)
    if stage.replicas and samples != micro_batch:
        faults.append(f"its replicas take {samples} samples of a micro-batch of {micro_batch}")
    for replicas in stage.replicas:
        for config in dict.fromkeys((replicas.config, *replicas.atom_configs)):
            faults += _replica_faults(replicas, config)
        if replicas.atom_configs:
            faults += _mixture_faults(stage, replicas)
    return faults


def _mixture_faults(stage: ClusterStage, replicas: Replicas) -> list[str]:
    configs = replicas.atom_configs
    if len(stage.replicas) > 1:
        return ["its atoms differ in configuration, and so do its replicas"]
    if len(configs) != stage.stop - stage.start or configs[0] != replicas.config:
        return [f"{len(configs)} configurations for {stage.stop - stage.start} atoms, the first {configs[0]}"]
    return []


def _replica_faults(replicas: Replicas, config: StageConfig) -> list[str]:
    faults = []
    if config.num_gpus != len(replicas.slots):
        faults.append(
            f"dp {config.dp} x cp {config.cp} x tp {config.tp} is {config.num_gpus}, "
            f"there are {len(replicas.slots)} GPUs"
        )
    if replicas.samples < 1 or replicas.samples % config.dp:
        faults.append(f"{replicas.samples} samples cannot be shared evenly by {config.dp} replicas")
    return faults


def _gpu_faults(request: ClusterRequest, plan: ClusterPlan) -> list[str]:
    sizes = {node.name: node.num_gpus for node in request.cluster.nodes}
    used = Counter(
        (slot.node.name, slot.gpu_idx)
        for stage in plan.stages
        for replicas in stage.replicas
        for slot in replicas.slots
    )
    faults = [f"GPU {idx} of {node} is used {n} times" for (node, idx), n in sorted(used.items()) if n > 1]
    faults += [
        f"there is no GPU {idx} of node {node}"
        for node, idx in sorted(used)
        if not 0 <= idx < sizes.get(node, 0)
    ]
    return faults
