"""Predicted times of a plan: are they numbers that a plan can have?"""

from __future__ import annotations

from itertools import pairwise

from tangram.model.flops import model_flop_per_token
from tangram.plan.schema import PipelineSection
from tangram.plan.violation import Facts, StageFacts, Violation, Violations

RELATIVE_TOLERANCE = 1e-6
"""Documents carry nine digits; sums of rounded numbers differ in the last ones."""


def check_prediction(facts: Facts) -> Violations:
    """Checks that predictions are positive, agree with each other, and are not faster than any schedule."""
    for item in facts.stages:
        yield from _stage(item)
    yield from _numbers(facts)
    for pipeline in facts.doc.pipelines:
        yield from _critical_path(facts, pipeline)
    yield from _bound(facts)
    yield from _comparisons(facts)


def _stage(item: StageFacts) -> Violations:
    predicted, where = item.stage.predicted, f"{item.where}.predicted"
    if not predicted.forward_s > 0:
        yield Violation("stage-time", f"{where}.forward_s", f"is {predicted.forward_s:g}; it must be above 0")
    for name in ("backward_s", "step_s", "send_forward_s", "send_backward_s"):
        value = getattr(predicted, name)
        if value is not None and value < 0:
            yield Violation("stage-time", f"{where}.{name}", f"is {value:g}; it must not be negative")
    for name in ("send_forward_s", "send_backward_s"):
        if (getattr(predicted, name) is None) != item.is_last:
            words = "must be null: nothing follows" if item.is_last else "is null; a stage follows"
            yield Violation("send-time", f"{where}.{name}", words)
    if (predicted.boundary_bytes == 0) != item.is_last:
        words = "must be 0: nothing follows" if item.is_last else "is 0; a stage follows"
        yield Violation("boundary-bytes", f"{where}.boundary_bytes", words)


def _largest_mfu(facts: Facts) -> float:
    """What GPUs at their peak would show: model FLOP hold the half of attention that a mask leaves out."""
    if facts.model is None:
        return 2.0
    seq_len = facts.doc.job.seq_len
    return model_flop_per_token(facts.model, seq_len) / model_flop_per_token(
        facts.model, seq_len, causal=True
    )


def _numbers(facts: Facts) -> Violations:
    prediction, job = facts.doc.prediction, facts.doc.job
    positive = True
    for name in ("iteration_time_s", "tokens_per_s", "samples_per_s", "model_flop_per_step", "mfu"):
        value = getattr(prediction, name)
        if not value > 0:
            positive = False
            yield Violation(
                "prediction-not-positive", f"prediction.{name}", f"is {value:g}; it must be above 0"
            )
    most = _largest_mfu(facts)
    if prediction.mfu > most:
        yield Violation(
            "prediction-range", "prediction.mfu", f"is {prediction.mfu:g}; legal: 0 to {most:.3g}"
        )
    if not 0 <= prediction.bubble_frac < 1:
        yield Violation(
            "prediction-range",
            "prediction.bubble_frac",
            f"is {prediction.bubble_frac:g}; legal: 0 to below 1",
        )
    num_stages = max((len(pipeline.stages) for pipeline in facts.doc.pipelines), default=0)
    if prediction.bottleneck_stage >= num_stages:
        yield Violation(
            "bottleneck-stage",
            "prediction.bottleneck_stage",
            f"is {prediction.bottleneck_stage}; there are {num_stages} stages, from 0",
        )
    if not positive:
        return
    rates = {
        "samples_per_s": job.global_batch / prediction.iteration_time_s,
        "tokens_per_s": float(job.global_batch * job.seq_len) / prediction.iteration_time_s,
    }
    for name, rate in rates.items():
        if not _close(getattr(prediction, name), rate):
            yield Violation(
                "throughput",
                f"prediction.{name}",
                f"is {getattr(prediction, name):g}; batch and iteration time give {rate:g}",
            )


def _critical_path(facts: Facts, pipeline: PipelineSection) -> Violations:
    """In any order: a first forward comes down to a stage, it does its work, and a last backward goes up."""
    time_s = facts.doc.prediction.iteration_time_s
    down = up = least = 0.0
    least_stage = 0
    for idx, stage in enumerate(pipeline.stages):
        own = stage.predicted
        work = pipeline.num_micro_batches * (own.forward_s + own.backward_s)
        end = max(own.step_s, up + pipeline.stages[0].predicted.step_s)
        if down + work + end > least:
            least, least_stage = down + work + end, idx
        down += own.forward_s + (own.send_forward_s or 0.0)
        up += own.backward_s + (own.send_backward_s or 0.0)
    if time_s > 0 and time_s < least * (1 - RELATIVE_TOLERANCE):
        yield Violation(
            "prediction-too-fast",
            "prediction.iteration_time_s",
            f"is {time_s:g} s; stage {least_stage} alone, with the way to it and back, takes {least:g} s",
        )


def _bound(facts: Facts) -> Violations:
    bound, time_s = facts.doc.bound, facts.doc.prediction.iteration_time_s
    if not bound.lower_bound_s > 0:
        yield Violation("bound", "bound.lower_bound_s", f"is {bound.lower_bound_s:g}; it must be above 0")
        return
    if bound.lower_bound_s > time_s * (1 + RELATIVE_TOLERANCE):
        yield Violation(
            "bound-above-time",
            "bound.lower_bound_s",
            f"is {bound.lower_bound_s:g} s, above the {time_s:g} s of the plan itself",
        )
    elif abs(bound.gap_frac - (time_s / bound.lower_bound_s - 1)) > RELATIVE_TOLERANCE:
        yield Violation(
            "bound-gap",
            "bound.gap_frac",
            f"is {bound.gap_frac:g}; time over bound gives {time_s / bound.lower_bound_s - 1:g}",
        )
    for idx, (a, b) in enumerate(pairwise(bound.staircase)):
        if b.time_s < a.time_s * (1 - RELATIVE_TOLERANCE):
            yield Violation(
                "staircase-order",
                f"bound.staircase[{idx + 1}].time_s",
                f"is {b.time_s:g} s, below the {a.time_s:g} s of the stair before it",
            )


def _comparisons(facts: Facts) -> Violations:
    names = ("single-island", "even-split", "tangram")
    for idx, row in enumerate(facts.doc.comparisons):
        where = f"comparisons[{idx}]"
        if row.name not in names:
            yield Violation("comparison-name", f"{where}.name", f"is {row.name!r}; legal: {', '.join(names)}")
        if row.iteration_time_s is None and row.reason is None:
            yield Violation("comparison-empty", where, "has neither a time nor a reason why there is none")
        if row.iteration_time_s is not None and not row.iteration_time_s > 0:
            yield Violation(
                "prediction-not-positive",
                f"{where}.iteration_time_s",
                f"is {row.iteration_time_s:g}; it must be above 0",
            )


def _close(a: float, b: float) -> bool:
    return abs(a - b) <= RELATIVE_TOLERANCE * max(abs(a), abs(b))
