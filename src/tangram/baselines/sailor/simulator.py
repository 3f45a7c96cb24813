"""The clock that Sailor judges by: its simulator's iteration time and memory of a whole plan.

With M micro-batches, compute c of a stage (its slowest type) and transfers p:

    T = (M - 1) max (c + p) + sum p + sum c + update + all-reduce

p is the activation that a stage sends on plus the gradient that it sends back; the last stage counts its
gradient twice, the first its activation twice if there are more than three stages. A gradient is as large
as the output of the stage's first layer. The all-reduce is the longest over stages and pairs of neighbouring
replicas: weights over the smallest tp (at most 4), one GPU of either side at a time.

The published simulator counts the update of one layer, the repaired one that of the stage's layers.
"""

from __future__ import annotations

import math
from itertools import pairwise

from tangram.baselines.sailor.clock import all_reduce_s, stage_update_s
from tangram.baselines.sailor.profile import Endpoint, Run, SailorPlan, SailorProblem, SailorStage, paired
from tangram.baselines.sailor.rules import stage_time_s

LARGEST_SHARD = 4
"""Gradients are taken to be sharded over at most so many ranks."""

FEW_STAGES = 3


def simulated_s(problem: SailorProblem, plan: SailorPlan, *, defects: bool) -> float:
    """Returns the iteration time of a plan.

    Args:
        problem: Profiles, network and batch.
        plan: Any plan with the same number of replicas in every stage.
        defects: Whether to count as the published simulator does.
    """
    number = math.ceil(problem.global_batch / (plan.micro_batch * plan.dp))
    compute_s = [
        max(
            stage_time_s(problem.gpus[end.gpu], end.lanes, stage.start, stage.stop, plan.micro_batch)
            for end in _endpoints(stage)
        )
        for stage in plan.stages
    ]
    transfer_s = _transfers_s(problem, plan)
    pace_s = max(a + b for a, b in zip(compute_s, transfer_s, strict=True))
    update_s = max(
        stage_update_s(
            problem, end, stage.start, stage.start + 1 if defects else stage.stop, plan.micro_batch
        )
        for stage in plan.stages
        for end in _endpoints(stage)
    )
    sync_s = max(_sync_s(problem, stage, plan.dp) for stage in plan.stages)
    return (number - 1) * pace_s + sum(transfer_s) + sum(compute_s) + update_s + sync_s


def peak_bytes(problem: SailorProblem, plan: SailorPlan) -> list[list[float]]:
    """Returns what a rank holds, stage by stage and run by run; plain 1F1B keeps P - i micro-batches."""
    last = len(plan.stages)
    return [
        [
            problem.gpus[end.gpu].memory_bytes(
                end.lanes, stage.start, stage.stop, plan.micro_batch, last - idx
            )
            for end in _endpoints(stage)
        ]
        for idx, stage in enumerate(plan.stages)
    ]


def fits(problem: SailorProblem, plan: SailorPlan) -> bool:
    """Whether every rank's GPU has the memory; a larger tp than one that fits need not fit by itself."""
    return all(
        held <= problem.gpus[end.gpu].capacity_bytes
        for stage, peaks in zip(plan.stages, peak_bytes(problem, plan), strict=True)
        for end, held in zip(_endpoints(stage), peaks, strict=True)
    )


def _endpoints(stage: SailorStage) -> list[Endpoint]:
    return [run.endpoint for run in stage.runs]


def _transfers_s(problem: SailorProblem, plan: SailorPlan) -> list[float]:
    stages, sizes = plan.stages, problem.output_bytes
    last = len(stages) - 1
    found = []
    for idx, stage in enumerate(stages):
        forward_s = backward_s = 0.0
        if idx < last:
            num_bytes = sizes[stage.stop - 1] * plan.micro_batch
            forward_s = _hop_s(problem, stage.runs, stages[idx + 1].runs, num_bytes)
        if idx > 0:
            num_bytes = sizes[stage.start] * plan.micro_batch
            backward_s = _hop_s(problem, stage.runs, stages[idx - 1].runs, num_bytes)
        if idx == 0:
            forward_s *= 1 if len(stages) <= FEW_STAGES else 2
        elif idx == last:
            backward_s *= 2
        found.append(forward_s + backward_s)
    return found


def _hop_s(
    problem: SailorProblem, senders: tuple[Run, ...], receivers: tuple[Run, ...], num_bytes: float
) -> float:
    return max(problem.network.link(a, b).seconds(num_bytes) for a, b in paired(senders, receivers))


def _sync_s(problem: SailorProblem, stage: SailorStage, dp: int) -> float:
    if dp == 1:
        return 0.0
    shards = min(LARGEST_SHARD, *(end.lanes for end in _endpoints(stage)))
    num_bytes = sum(problem.gradient_bytes[stage.start : stage.stop]) / shards
    single = [(run.endpoint._replace(lanes=1), run.replicas) for run in stage.runs]
    neighbours = [(end, end) for end, replicas in single if replicas > 1]
    neighbours += [(a, b) for (a, _), (b, _) in pairwise(single)]
    return max(all_reduce_s(problem.network.link(a, b), num_bytes, dp) for a, b in neighbours)
