"""Sailor as a planner of whole clusters: profile, search, judge, and its best plan in Tangram's words."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tangram.baselines.sailor.costed import Layers, costed_problem, layers_of
from tangram.baselines.sailor.grounds import Grounds
from tangram.baselines.sailor.placement import placed
from tangram.baselines.sailor.profile import SailorPlan, SailorStage
from tangram.baselines.sailor.search import best_plan
from tangram.baselines.sailor.simulator import simulated_s
from tangram.cluster.spec import Slot
from tangram.cost.types import StageConfig
from tangram.model.atoms import has_experts
from tangram.parallelizers.protocols import (
    Capabilities,
    ClusterPlan,
    ClusterRequest,
    ClusterStage,
    Replicas,
)


@dataclass(frozen=True, slots=True)
class _Answer:
    """A plan, how long its iteration takes by Sailor's simulator, and whether its layers are recomputed."""

    plan: SailorPlan
    time_s: float
    recomputes: bool


class SailorPlanner:
    """The cluster planner of Sailor (SOSP 2025), on profiles made from Tangram's cost model.

    Args:
        defects: Reproduce the published program; the package says what is repaired otherwise.
        recompute: Let it recompute all transformer layers in full, or none, whichever is faster; the
            published Sailor knows no recomputation.
    """

    def __init__(self, *, defects: bool = False, recompute: bool = False) -> None:
        self.defects = defects
        self.recompute = recompute
        marks = [mark for mark, is_on in (("published", defects), ("recompute", recompute)) if is_on]
        self.name = "-".join(["sailor", *marks])
        self.capabilities = Capabilities(seconds_per_query=1.0)

    def plan_cluster(self, request: ClusterRequest) -> ClusterPlan | None:
        """Returns its best plan; None where no GPU can run the job, or nothing that Sailor knows fits."""
        grounds = Grounds.of(request.cluster, request.job.precision)
        if not grounds.types:
            return None
        answers = [answer for again in self._modes() if (answer := self._answer(request, grounds, again))]
        if not answers:
            return None
        best = min(answers, key=lambda answer: answer.time_s)
        layers, slots = layers_of(request.atoms), placed(grounds, best.plan)
        stages = [
            self._stage(request, layers, stage, of_stage, best)
            for stage, of_stage in zip(best.plan.stages, slots, strict=True)
        ]
        return ClusterPlan(
            micro_batch=best.plan.micro_batch * best.plan.dp,
            stages=tuple(stages),
            predicted_s=best.time_s,
            notes=(f"Sailor's search expects {best.plan.estimate_s:.4g} s per iteration",),
        )

    def _modes(self) -> tuple[bool, ...]:
        return (False, True) if self.recompute else (False,)

    def _answer(self, request: ClusterRequest, grounds: Grounds, recomputes: bool) -> _Answer | None:
        problem = costed_problem(request, grounds, defects=self.defects, recompute=recomputes)
        plan = best_plan(problem, defects=self.defects)
        if plan is None:
            return None
        return _Answer(plan, simulated_s(problem, plan, defects=self.defects), recomputes)

    def _stage(
        self,
        request: ClusterRequest,
        layers: Layers,
        stage: SailorStage,
        slots: Sequence[tuple[Slot, ...]],
        answer: _Answer,
    ) -> ClusterStage:
        start, stop = layers[stage.start][0], layers[stage.stop - 1][1]
        atoms = request.atoms[start:stop]
        replicas = []
        for run, gpus in zip(stage.runs, slots, strict=True):
            tp = run.endpoint.lanes
            config = StageConfig(dp=run.replicas, tp=tp, expert_tp=tp if has_experts(atoms) else 1)
            replicas.append(Replicas(gpus, config, answer.plan.micro_batch * run.replicas))
        recomputed = tuple(answer.recomputes and bool(atom.layer_idxs) for atom in atoms)
        return ClusterStage(start, stop, tuple(replicas), recomputed)


def published() -> SailorPlanner:
    """Returns Sailor as it was published, defects included."""
    return SailorPlanner(defects=True)


def with_recompute() -> SailorPlanner:
    """Returns the repaired Sailor, with the choice to recompute all layers in full."""
    return SailorPlanner(recompute=True)
