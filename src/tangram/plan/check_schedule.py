"""Batches, in-flight windows and tied weights of a plan: can the stages work together?"""

from __future__ import annotations

from tangram.plan.schema import PipelineSection, TiedGroup
from tangram.plan.violation import Facts, StageFacts, Violation, Violations


def check_schedule(facts: Facts) -> Violations:
    """Checks that batches add up, that windows let 1F1B run, and that all holders of a tied weight sum it."""
    yield from _batches(facts)
    for idx, pipeline in enumerate(facts.doc.pipelines):
        yield from _windows(facts, pipeline, f"pipelines[{idx}]")
        yield from _overlaps(facts, pipeline, f"pipelines[{idx}].schedule")
    for item in facts.stages:
        for run in item.runs:
            yield from _split(run)
    yield from _tied(facts)


def _batches(facts: Facts) -> Violations:
    for idx, pipeline in enumerate(facts.doc.pipelines):
        size = pipeline.micro_batch * pipeline.num_micro_batches
        if size != pipeline.global_batch:
            yield Violation(
                "batch-product",
                f"pipelines[{idx}].num_micro_batches",
                f"{pipeline.num_micro_batches} micro-batches of {pipeline.micro_batch} are {size} samples; "
                f"the pipeline takes {pipeline.global_batch}",
            )
    total = sum(pipeline.global_batch for pipeline in facts.doc.pipelines)
    if facts.doc.pipelines and total != facts.doc.job.global_batch:
        yield Violation(
            "batch-sum",
            "pipelines[0].global_batch",
            f"pipelines take {total} samples; job.global_batch is {facts.doc.job.global_batch}",
        )


def _split(item: StageFacts) -> Violations:
    parts, where = item.stage.micro_batch_per_dp_rank, f"{item.where}.micro_batch_per_dp_rank"
    if len(parts) != item.stage.dp:
        yield Violation("micro-batch-length", where, f"has {len(parts)} entries; dp is {item.stage.dp}")
    elif sum(parts) != item.pipeline.micro_batch:
        yield Violation(
            "micro-batch-sum", where, f"sums to {sum(parts)}; the micro-batch is {item.pipeline.micro_batch}"
        )


def _windows(facts: Facts, pipeline: PipelineSection, where: str) -> Violations:
    windows, count = pipeline.schedule.in_flight, pipeline.num_micro_batches
    place = f"{where}.schedule.in_flight"
    if len(windows) != len(pipeline.stages):
        yield Violation(
            "in-flight-length", place, f"has {len(windows)} entries for {len(pipeline.stages)} stages"
        )
        return
    for idx, window in enumerate(windows):
        following = windows[idx + 1] if idx + 1 < len(windows) else 0
        held, plain = min(window, count), min(len(windows) - idx, count)
        if window <= following:
            yield Violation(
                "in-flight-order",
                f"{place}[{idx}]",
                f"is {window}; the next stage holds {following}, so at least {following + 1} is due",
            )
        elif not facts.doc.job.free_warmup and held != plain:
            yield Violation(
                "in-flight-not-plain",
                f"{place}[{idx}]",
                f"is {window}; job.free_warmup is false, so {plain} is due as in plain 1F1B",
            )
        predicted = pipeline.stages[idx].predicted.in_flight
        if predicted != held:
            yield Violation(
                "in-flight-differs",
                f"{where}.stages[{idx}].predicted.in_flight",
                f"is {predicted}; the schedule holds {held}",
            )


def _overlaps(facts: Facts, pipeline: PipelineSection, where: str) -> Violations:
    schedule = pipeline.schedule
    if schedule.overlap_p2p != facts.doc.job.overlap_p2p:
        yield Violation(
            "overlap-differs",
            f"{where}.overlap_p2p",
            f"is {str(schedule.overlap_p2p).lower()}; job.overlap_p2p says otherwise",
        )
    for name, share in schedule.assumed_overlaps.items():
        if not 0 <= share <= 1:
            yield Violation(
                "overlap-range", f"{where}.assumed_overlaps.{name}", f"is {share:g}; legal: 0 to 1"
            )


def _tied(facts: Facts) -> Violations:
    holders = [item for item in facts.stages if item.stage.has_embedding or item.stage.has_head]
    groups = [
        (idx, group) for idx, group in enumerate(facts.doc.tied_weight_groups) if group.name == "embedding"
    ]
    section = facts.doc.model
    shares = section.tied_embeddings or section.num_prediction_layers > 0
    needed = shares and len(holders) > 1
    if groups and not shares:
        yield Violation(
            "tied-group-unneeded",
            f"tied_weight_groups[{groups[0][0]}]",
            "head and embedding of the model share no matrix, so there is nothing to sum",
        )
        return
    if needed and not groups:
        names = ", ".join(str(item.stage.index) for item in holders)
        yield Violation(
            "tied-group-missing",
            "tied_weight_groups",
            f"embedding and head share a matrix; stages {names} must sum its gradients",
        )
    if len(groups) > 1:
        yield Violation(
            "tied-group-twice", f"tied_weight_groups[{groups[1][0]}]", "there are two for 'embedding'"
        )
    for idx, group in groups[:1]:
        yield from _tied_group(group, holders, f"tied_weight_groups[{idx}]")


def _tied_group(group: TiedGroup, holders: list[StageFacts], where: str) -> Violations:
    stages = [item.stage.index for item in holders]
    ranks = sorted(slot.rank for item in holders for slot in item.stage.ranks)
    if group.stages != stages:
        yield Violation(
            "tied-group-stages", f"{where}.stages", f"is {group.stages}; the copies are on {stages}"
        )
    elif group.ranks != ranks:
        yield Violation(
            "tied-group-ranks", f"{where}.ranks", f"is {group.ranks}; those stages have ranks {ranks}"
        )
