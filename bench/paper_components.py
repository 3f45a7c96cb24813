"""Where the time of each planner's plan goes: the stage that sets the pace, component by component."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import replace

from paper_cases import Case, c1, example
from tangram.advise.alone import ALONE, AlonePlanner
from tangram.advise.compare import Question
from tangram.advise.referee import judge
from tangram.model.atoms import cut_atoms
from tangram.parallelizers.protocols import ClusterPlanner, ClusterRequest, SlicePlanner
from tangram.parallelizers.registry import get_parallelizer
from tangram.planner.planner import plan
from tangram.planner.recost import recost_plan

Rows = list[dict[str, object]]

INSIDE = ("auto", "exact")
PLANNERS = (*INSIDE, "metis", "sailor", "aceso-alone")
PARTS = {
    "compute": ("matmul", "attention", "elementwise", "launch"),
    "recompute": ("recompute",),
    "communication": ("tp", "cp", "ep", "zero", "offload", "reshard"),
}
"""Parts of a micro-batch's time, and the components of the cost model that they add up."""


def rows() -> Rows:
    """Returns one row per case and planner that has a plan."""
    found: Rows = []
    for label, cluster, job in (
        ("8 T4 + 8 V100", c1(2, 2), "fig8-gpt3"),
        ("c3-three-islands", example("c3-three-islands"), "fig11-gpt3-13b"),
    ):
        case = Case("components", label, cluster, job, PLANNERS)
        for planner in case.planners:
            row = _row(case, planner)
            print(f"{label}: {planner} {row}", file=sys.stderr)
            if row is not None:
                found.append(row)
    return found


def _row(case: Case, planner: str) -> dict[str, object] | None:
    asked = case.question()
    answer = _inside(asked, planner) if planner in INSIDE else _whole(asked, planner)
    if answer is None:
        return None
    total_s, num_micro_batches, where, slowest, step_s = answer
    parts = {
        name: num_micro_batches * sum(slowest.get(component, 0.0) for component in components)
        for name, components in PARTS.items()
    }
    rest_s = total_s - sum(parts.values()) - step_s
    return {
        "case": case.label,
        "planner": planner,
        "iteration_time_s": total_s,
        "pace_set_by": where,
        **{f"{name}_s": seconds for name, seconds in parts.items()},
        "step_end_s": step_s,
        "fill_and_waiting_s": rest_s,
    }


_Answer = tuple[float, int, str, Mapping[str, float], float]
"""Iteration time, micro-batches, GPUs of the slowest stage, its components, and the longest step end."""


def _inside(asked: Question, name: str) -> _Answer:
    doc = plan(asked.model, asked.cluster, asked.job, replace(asked.options, parallelizers=(name,)))
    placed = recost_plan(doc)
    costs = [placed.cost(idx) for idx in range(len(doc.stages))]
    at = max(range(len(costs)), key=lambda idx: costs[idx].time_s)
    ranks = doc.stages[at].ranks
    total_s = doc.prediction.iteration_time_s
    where = f"{len(ranks)} {ranks[0].gpu}"
    step_s = max(cost.step_s for cost in costs)
    return total_s, doc.pipelines[0].num_micro_batches, where, costs[at].components, step_s


def _whole(asked: Question, name: str) -> _Answer | None:
    planner = get_parallelizer(name.removesuffix(ALONE))
    if isinstance(planner, SlicePlanner):
        planner = AlonePlanner(planner)
    assert isinstance(planner, ClusterPlanner)
    request = ClusterRequest(asked.model, cut_atoms(asked.model), asked.cluster, asked.job)
    answer = planner.plan_cluster(request)
    verdict = judge(request, answer) if answer is not None else None
    if answer is None or verdict is None or verdict.iteration_time_s is None:
        return None
    kinds = [kind for cost in verdict.costs for kind in cost.kinds]
    slowest = max(kinds, key=lambda kind: kind.time.time_s)
    slots = slowest.replicas.slots
    where = f"{len(slots)} {slots[0].node.gpu.name}"
    step_s = max(cost.step_s for cost in verdict.costs)
    num_micro_batches = asked.job.global_batch // answer.micro_batch
    return verdict.iteration_time_s, num_micro_batches, where, slowest.time.components, step_s
