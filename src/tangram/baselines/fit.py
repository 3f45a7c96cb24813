"""Whether a cluster plan fits into memory, by the estimate that the referee will judge it by."""

from __future__ import annotations

from collections.abc import Hashable

from tangram.baselines.replica_cost import mixed_stage_cost
from tangram.parallelizers.protocols import ClusterPlan, ClusterRequest, ClusterStage, Replicas


class FitTest:
    """Tests plans of one request under plain 1F1B; stages that are alike are costed once.

    Args:
        request: The question that the plans answer.
    """

    def __init__(self, request: ClusterRequest) -> None:
        self._request = request
        self._known: dict[Hashable, bool] = {}
        numbers: dict[str, int] = {}
        self._contents = tuple(numbers.setdefault(a.fingerprint, len(numbers)) for a in request.atoms)

    def fits(self, plan: ClusterPlan) -> bool:
        """Returns whether the upper estimate of every stage's peak is within its smallest GPU.

        Args:
            plan: Without structural faults.
        """
        num_micro_batches = self._request.job.global_batch // plan.micro_batch
        windows = range(len(plan.stages), 0, -1)
        return all(
            self._stage_fits(stage, num_micro_batches, min(window, num_micro_batches))
            for stage, window in zip(plan.stages, windows, strict=True)
        )

    def _stage_fits(self, stage: ClusterStage, num_micro_batches: int, in_flight: int) -> bool:
        key = (
            self._contents[stage.start : stage.stop],
            stage.recomputed,
            in_flight,
            tuple((_parts(kind), kind.config, kind.samples) for kind in stage.replicas),
        )
        if key not in self._known:
            cost = mixed_stage_cost(self._request, stage, num_micro_batches, in_flight)
            self._known[key] = all(kind.overflow_bytes <= 0 for kind in cost.kinds)
        return self._known[key]


def _parts(replicas: Replicas) -> tuple[tuple[str, int], ...]:
    """The kinds of GPUs that replicas are on; where exactly their nodes are makes no difference to memory."""
    return tuple(sorted({(s.node.gpu.name, s.node.gpu.usable_memory_bytes) for s in replicas.slots}))
