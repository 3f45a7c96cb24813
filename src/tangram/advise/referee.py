"""The referee between cluster planners: executes a cluster plan as it stands, and says what is wrong with it.

Whoever made a plan, its stages are costed by :mod:`tangram.cost` and its pipeline is executed by
:mod:`tangram.simulate`, as those of Tangram's own plans are.
"""

from __future__ import annotations

from dataclasses import dataclass

from tangram.baselines.replica_cost import MixedStageCost, mixed_stage_cost, portion_of
from tangram.cluster.spec import Slot
from tangram.parallelizers.cluster_plans import coverage_faults, stage_faults
from tangram.parallelizers.protocols import ClusterPlan, ClusterRequest, ClusterStage
from tangram.planner.edges import boundaries, tied_bytes
from tangram.planner.placement import Placement
from tangram.planner.traffic import EdgeBook
from tangram.simulate.engine import simulate
from tangram.simulate.pipeline import SimPipeline, SimStage
from tangram.units import NS_PER_S, format_bytes


@dataclass(frozen=True, slots=True)
class Verdict:
    """What the referee says of a cluster plan.

    Attributes:
        iteration_time_s: Simulated, whether it fits into memory or not; None for a plan that cannot even be
            simulated.
        faults: Why it cannot be executed, in words; empty for a plan that can.
        costs: Of the stages; empty without a time.
        pipeline: What was simulated; None without a time.
    """

    iteration_time_s: float | None
    faults: tuple[str, ...]
    costs: tuple[MixedStageCost, ...] = ()
    pipeline: SimPipeline | None = None

    @property
    def is_executable(self) -> bool:
        """Whether the plan trains the whole model within memory."""
        return not self.faults


def judge(request: ClusterRequest, plan: ClusterPlan) -> Verdict:
    """Executes a cluster plan under plain 1F1B.

    A plan that loses layers is simulated without them, which says how fast its planner believed it to be; it
    is not executable all the same. Nothing can be simulated where GPUs, degrees or samples do not add up.

    Args:
        request: The question.
        plan: The answer.
    """
    faults = coverage_faults(request, plan)
    broken = stage_faults(request, plan)
    if broken:
        return Verdict(None, (*faults, *broken))
    num_micro_batches = request.job.global_batch // plan.micro_batch
    windows = range(len(plan.stages), 0, -1)
    costs = tuple(
        mixed_stage_cost(request, stage, num_micro_batches, window)
        for stage, window in zip(plan.stages, windows, strict=True)
    )
    stages = [SimStage.of(cost, window) for cost, window in zip(costs, windows, strict=True)]
    cuts = boundaries(request.model, request.atoms, plan.micro_batch, request.job)
    pipeline = EdgeBook(request.cluster, request.job.basis).pipeline(
        [_placement(request, stage) for stage in plan.stages],
        [cuts.bytes_at[stage.stop] for stage in plan.stages[:-1]],
        tied_bytes(request.model, request.job),
        stages,
        num_micro_batches,
        blocking_p2p=not request.job.overlap_p2p,
    )
    faults += [fault for idx, cost in enumerate(costs) for fault in _memory_faults(idx, cost)]
    return Verdict(simulate(pipeline).iteration_ns / NS_PER_S, tuple(faults), costs, pipeline)


def _placement(request: ClusterRequest, stage: ClusterStage) -> Placement:
    slots: tuple[Slot, ...] = tuple(slot for kind in stage.replicas for slot in kind.slots)
    return Placement(portion_of(request, slots), slots)


def _memory_faults(idx: int, cost: MixedStageCost) -> list[str]:
    faults = []
    for kind in cost.kinds:
        if kind.overflow_bytes > 0:
            over, peak = format_bytes(kind.overflow_bytes), format_bytes(kind.together.peak_bytes)
            part = kind.replicas.slots[0].node.gpu.name
            faults.append(f"stage {idx}: {over} more than a {part} has ({peak} are needed)")
    return faults
