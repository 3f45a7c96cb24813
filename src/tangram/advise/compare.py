"""Asks planners of every kind the same question and has one referee look at all answers."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from tangram.advise.alone import ALONE, SLOWEST_FIRST, AlonePlanner
from tangram.advise.comparison import ComparisonDocument, PlannerKind, PlannerSection
from tangram.advise.features import LACKED_BY_EXACT, Feature, features_of_cluster_plan, features_of_document
from tangram.advise.referee import judge
from tangram.advise.sections import (
    cluster_plan_section,
    cluster_plan_summary,
    document_summary,
    layers_of_stages,
)
from tangram.cluster.spec import Cluster
from tangram.errors import InfeasibleError, InputError, UnknownNameError
from tangram.job import Job
from tangram.model.atoms import cut_atoms
from tangram.model.spec import ModelSpec
from tangram.parallelizers.protocols import ClusterPlanner, ClusterRequest, SlicePlanner
from tangram.parallelizers.registry import AUTO, get_parallelizer, parallelizer_names
from tangram.planner.options import PlanOptions
from tangram.planner.planner import plan
from tangram.profiles.measured import MeasuredLayers

WHERE = "--planners"

DEFAULT_PLANNERS = (
    *(AUTO, "exact", "uniform", "aceso", "alpa", "galvatron"),
    *("uniform-alone", "aceso-alone", "alpa-alone", "galvatron-alone"),
    *("megatron", "metis", "sailor"),
)
"""The planners that are built in, each in its repaired form."""


@dataclass(frozen=True, slots=True)
class Question:
    """What all planners are asked.

    Attributes:
        model, cluster, job: The question.
        options: Of Tangram's own searches; the parallelizer is each planner's own.
        measured: Measured layers; they count for Tangram's own planners.
        clock: Seconds.
        progress: Called with one line at a time.
    """

    model: ModelSpec
    cluster: Cluster
    job: Job
    options: PlanOptions = field(default_factory=PlanOptions)
    measured: MeasuredLayers | None = None
    clock: Callable[[], float] = time.perf_counter
    progress: Callable[[str], None] | None = None


def planner_names() -> list[str]:
    """Returns the names of all planners: parallelizers inside Tangram, these alone, and planners of whole
    clusters.
    """
    inside, alone, whole = [AUTO], [], []
    for name in parallelizer_names():
        try:
            planner = get_parallelizer(name)
        except InputError:
            continue  # An installed package that cannot be loaded, or a program that is not there.
        if isinstance(planner, ClusterPlanner):
            whole.append(name)
            continue
        inside.append(name)
        if isinstance(planner, SlicePlanner):
            alone += [name + ALONE, name + SLOWEST_FIRST]
    return [*inside, *alone, *whole]


def compare(question: Question, names: Sequence[str]) -> ComparisonDocument:
    """Asks planners one after the other.

    A planner that finds no plan, or one that cannot be executed, is part of the answer, with the reason.

    Args:
        question: What to ask.
        names: Of planners; equal ones are asked once.

    Raises:
        UnknownNameError: There is no such planner.
        InputError: A parallelizer cannot be loaded, or a pin has no legal meaning here.
    """
    asked = [(name, _planner(name)) for name in dict.fromkeys(names)]
    entries = []
    for name, cluster_planner in asked:
        if question.progress is not None:
            question.progress(f"asking {name}")
        entries.append(
            _inside(question, name) if cluster_planner is None else _whole(question, name, cluster_planner)
        )
    job = question.job
    return ComparisonDocument(
        model=question.model.name,
        cluster=question.cluster.name,
        global_batch=job.global_batch,
        seq_len=job.seq_len,
        precision=job.precision.value,
        planners=entries,
    )


def _planner(name: str) -> ClusterPlanner | None:
    """Returns the planner of whole clusters of that name, or None for a parallelizer inside Tangram."""
    if name == AUTO:
        return None
    base = name.removesuffix(SLOWEST_FIRST).removesuffix(ALONE)
    if base not in parallelizer_names():
        raise UnknownNameError("planner", name, planner_names(), where=WHERE)
    planner = get_parallelizer(base)
    if isinstance(planner, ClusterPlanner):
        if base != name:
            raise UnknownNameError("planner", name, planner_names(), where=WHERE)
        return planner
    if base == name:
        return None
    if not isinstance(planner, SlicePlanner):
        raise InputError(
            f"{base} cannot plan alone: it answers with single stages, which only Tangram joins", where=WHERE
        )
    return AlonePlanner(planner, fastest_first=not name.endswith(SLOWEST_FIRST))


def _inside(question: Question, name: str) -> PlannerSection:
    began = question.clock()
    try:
        doc = plan(
            question.model,
            question.cluster,
            question.job,
            replace(question.options, parallelizers=(name,)),
            measured=question.measured,
            progress=question.progress,
        )
    except InfeasibleError as error:
        return _nothing(name, PlannerKind.TANGRAM, question.clock() - began, error.message)
    took = question.clock() - began
    return PlannerSection(
        planner=name,
        kind=PlannerKind.TANGRAM,
        iteration_time_s=doc.prediction.iteration_time_s,
        tokens_per_s=doc.prediction.tokens_per_s,
        planning_time_s=took,
        executable=True,
        reason="",
        summary=document_summary(doc),
        **_feature_fields(features_of_document(doc)),
        peak_memory_frac=max(s.predicted.peak_bytes / s.predicted.capacity_bytes for s in doc.stages),
        plan=doc,
    )


def _whole(question: Question, name: str, planner: ClusterPlanner) -> PlannerSection:
    kind = PlannerKind.ALONE if isinstance(planner, AlonePlanner) else PlannerKind.CLUSTER
    request = ClusterRequest(question.model, cut_atoms(question.model), question.cluster, question.job)
    began = question.clock()
    try:
        answer = planner.plan_cluster(request)
    except Exception as error:  # Foreign code: reported by name, as in a search.
        return _nothing(name, kind, question.clock() - began, f"it raised {type(error).__name__}: {error}")
    took = question.clock() - began
    if answer is None:
        return _nothing(name, kind, took, "it finds no plan that it believes to fit")
    verdict = judge(request, answer)
    seconds = verdict.iteration_time_s
    peaks = [k.together.peak_bytes / k.together.capacity_bytes for c in verdict.costs for k in c.kinds]
    layers = layers_of_stages(request, answer)
    features = features_of_cluster_plan(answer, layers, question.cluster.num_gpus)
    return PlannerSection(
        planner=name,
        kind=kind,
        iteration_time_s=seconds,
        tokens_per_s=question.job.global_batch * question.job.seq_len / seconds if seconds else None,
        planning_time_s=took,
        executable=verdict.is_executable,
        reason="; ".join(verdict.faults),
        summary=cluster_plan_summary(answer, layers),
        **_feature_fields(features),
        peak_memory_frac=max(peaks, default=None),
        plan=cluster_plan_section(request, answer, verdict),
    )


def _feature_fields(features: Sequence[Feature]) -> dict[str, list[str]]:
    lacked = [feature.value for feature in features if feature in LACKED_BY_EXACT]
    return {"features": [feature.value for feature in features], "lacked_by_exact": lacked}


def _nothing(name: str, kind: PlannerKind, took_s: float, reason: str) -> PlannerSection:
    return PlannerSection(
        planner=name,
        kind=kind,
        iteration_time_s=None,
        tokens_per_s=None,
        planning_time_s=took_s,
        executable=False,
        reason=reason,
        summary="no plan",
        **_feature_fields(()),
        peak_memory_frac=None,
        plan=None,
    )
