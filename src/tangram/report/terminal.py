"""A whole plan on a terminal, in the order in which a reader asks."""

from __future__ import annotations

import shlex

from tangram.plan.schema import Comparison, PlanDocument
from tangram.report.grid import Grid
from tangram.report.islands import add_islands, cluster_sentence
from tangram.report.memory_table import add_memory
from tangram.report.page import Page
from tangram.report.search import search_sentences
from tangram.report.stage_table import add_stages
from tangram.report.staircase import add_staircase
from tangram.report.words import big, counted, percent, ranges, sentence, times
from tangram.units import format_bytes, format_duration

_COMPARISONS = {
    "single-island": "fastest single island alone",
    "even-split": "even layer split over everything",
    "tangram": "Tangram's plan",
}

_WORTH = 1.001
"""Below this ratio two times print as the same."""


def add_plan(page: Page, doc: PlanDocument, *, path: str | None = None) -> None:
    """Adds the whole plan.

    Args:
        page: Where to.
        doc: The plan.
        path: The file that holds it, for the advice at the end; None when it was not saved.
    """
    add_header(page, doc)
    add_overflow(page, doc)
    add_islands(page, doc.islands, doc.cluster, doc.tolerances, doc.job.precision)
    add_stages(page, doc)
    add_memory(page, doc)
    add_why(page, doc)
    add_comparisons(page, doc)
    add_prediction(page, doc)
    add_staircase(page, doc)
    add_idle(page, doc)
    add_assumptions(page, doc)
    if doc.search.counts:
        page.heading("Search")
        for text in search_sentences(doc.search):
            page.wrapped(text)
    add_next(page, path)


def add_header(page: Page, doc: PlanDocument) -> None:
    """Adds the answer in one line, then model, job and cluster."""
    used, total = doc.num_gpus, sum(node.num_gpus for node in doc.cluster.nodes)
    how_many = f"all {total} GPUs" if used == total else f"{used} of {total} GPUs"
    page.heading(
        f"{doc.model.name} on {doc.cluster.name}",
        f"{format_duration(doc.prediction.iteration_time_s)} per step on {how_many}, "
        f"{counted(len(doc.stages), 'stage')}",
    )
    page.facts(
        [
            ("model", _model_sentence(doc)),
            ("job", _job_sentence(doc)),
            ("precision", _precision_sentence(doc)),
            ("optimizer", _optimizer_sentence(doc)),
            ("cluster", cluster_sentence(doc.cluster)),
            *_pins(doc),
        ]
    )


def add_overflow(page: Page, doc: PlanDocument) -> None:
    """Adds the stages that do not fit, if any, before anything else is read."""
    over = [stage for stage in doc.stages if stage.predicted.headroom_bytes < 0]
    if over:
        page.heading("Does not fit", "times are what it would take if it did")
        page.items(
            [f"stage {s.index} lacks {format_bytes(-s.predicted.headroom_bytes)} per GPU" for s in over]
        )


def add_why(page: Page, doc: PlanDocument) -> None:
    """Adds each stage's reason; equal reasons once."""
    stages_of: dict[str, list[int]] = {}
    for stage in doc.stages:
        if stage.reason:
            stages_of.setdefault(stage.reason, []).append(stage.index)
    if not stages_of:
        return
    page.heading("Why")
    page.items(
        [
            f"stage{'s' if len(indices) > 1 else ''} {ranges(indices)}: {sentence(reason)}"
            for reason, indices in stages_of.items()
        ]
    )


def add_comparisons(page: Page, doc: PlanDocument) -> None:
    """Adds the other ways to use the cluster, and how much longer they take."""
    if not doc.comparisons:
        return
    own = doc.prediction.iteration_time_s
    page.heading("Is mixing worth it?")
    grid = Grid(["", "step time", "this plan is"], "lrr")
    for comparison in doc.comparisons:
        time_s = comparison.iteration_time_s
        is_own = comparison.name == "tangram"
        ratio = "" if time_s is None or is_own or own <= 0 else _ratio(time_s / own)
        name = _COMPARISONS.get(comparison.name, comparison.name)
        grid.add(name, "-" if time_s is None else format_duration(time_s), ratio)
    header = grid.header()
    if header is not None:
        page.line(header)
    for row, comparison in zip(grid.rows(), doc.comparisons, strict=True):
        page.line(row)
        page.wrapped(_what(comparison), indent=6, style="dim")
    verdict = _verdict(doc)
    if verdict:
        page.wrapped(verdict)


def add_prediction(page: Page, doc: PlanDocument) -> None:
    """Adds what the simulator says, and what it rests on."""
    prediction = doc.prediction
    page.heading("Prediction")
    pace = prediction.bottleneck_stage
    rows = [
        ("step", f"{format_duration(prediction.iteration_time_s)}{_phases(doc)}"),
        (
            "throughput",
            f"{big(prediction.tokens_per_s)} tokens/s, {big(prediction.samples_per_s)} samples/s",
        ),
        (
            "MFU",
            f"{percent(prediction.mfu)} of the GPUs' peak; bubble {percent(prediction.bubble_frac)}",
        ),
        ("pace", f"set by stage {pace} ({_stage_island(doc, pace)})"),
        ("basis", f"{prediction.basis}: {sentence(prediction.basis_note)}".removesuffix(": ")),
    ]
    page.facts(rows)


def add_idle(page: Page, doc: PlanDocument) -> None:
    """Adds the GPUs that the plan leaves out, with the reasons."""
    if not doc.idle:
        return
    page.heading("Left out")
    named = [(f"{idle.count}x {idle.island}", sentence(idle.reason)) for idle in doc.idle]
    page.items([reason if reason.startswith(name) else f"{name}: {reason}" for name, reason in named])


def add_assumptions(page: Page, doc: PlanDocument) -> None:
    """Adds what was assumed, each once, with the reason."""
    listed_once = dict.fromkeys((a.what, a.why) for a in [*doc.assumptions, *doc.cluster.assumptions])
    if not listed_once:
        return
    page.heading("Assumed", "state what you know better")
    page.items([f"{what}: {sentence(why)}" if why else sentence(what) for what, why in listed_once])


def add_next(page: Page, path: str | None) -> None:
    """Adds what to do with the plan."""
    page.heading("Next")
    name = shlex.quote(path) if path else "plan.json"
    rows = [] if path else [("add -o plan.json", "keeps the plan")]
    rows += [
        (f"tangram check {name}", "validates it, also after editing"),
        (f"tangram simulate {name} --trace t.json", "timeline for ui.perfetto.dev"),
    ]
    grid = Grid(["", ""], "ll")
    for command, what in rows:
        grid.add(command, what)
    if grid.width <= page.width:
        page.grid(grid)
        return
    for command, what in rows:
        page.line(f"  {command}")
        page.wrapped(what, indent=6)


def _model_sentence(doc: PlanDocument) -> str:
    model = doc.model
    active = model.num_active_params
    params = f"{big(model.num_params)} parameters"
    params += f" ({big(active)} active per token)" if active != model.num_params else ""
    return f"{params}, {counted(len(model.layers), 'layer')}, hidden size {model.hidden_size}"


def _job_sentence(doc: PlanDocument) -> str:
    job = doc.job
    samples, tokens = counted(job.global_batch, "sample"), counted(job.seq_len, "token")
    return f"{samples} of {tokens} per step ({big(job.global_batch * job.seq_len)} tokens)"


def _precision_sentence(doc: PlanDocument) -> str:
    job = doc.job
    scaling = f" with {job.loss_scaling} loss scaling" if job.loss_scaling != "none" else ""
    return f"{job.precision}{scaling}" + (f": {job.precision_reason}" if job.precision_reason else "")


def _optimizer_sentence(doc: PlanDocument) -> str:
    optimizer, weight = doc.job.optimizer, doc.job.precision.element_bytes
    states = optimizer.master_bytes + optimizer.moment_bytes
    total = weight + optimizer.gradient_bytes + states
    name = {"adamw": "AdamW"}.get(optimizer.name, optimizer.name)
    return (
        f"{name}, {total} bytes per parameter: weight {weight}, gradient {optimizer.gradient_bytes}, "
        f"master weight and moments {states}"
    )


def _pins(doc: PlanDocument) -> list[tuple[str, str]]:
    """What the user dictated, if anything."""
    pins = doc.job.pins.model_dump(mode="json", exclude_defaults=True)
    texts = [f"{name.replace('_', '-')} {_pin(value)}".rstrip() for name, value in pins.items()]
    texts += [] if doc.job.overlap_p2p else ["no overlap of transfers"]
    texts += [] if doc.job.free_warmup else ["fixed warm-up"]
    return [("dictated", ", ".join(texts))] if texts else []


def _pin(value: object) -> str:
    if isinstance(value, list):
        return ",".join(map(str, value))
    return "" if value is True else str(value)


def _ratio(ratio: float) -> str:
    """Of another way's time to the plan's own."""
    if abs(ratio - 1) < _WORTH - 1:
        return "as fast"
    return f"{times(ratio)} as fast"


def _verdict(doc: PlanDocument) -> str:
    """The answer to the question that stands above the comparisons."""
    own = doc.prediction.iteration_time_s
    single = [c.iteration_time_s for c in doc.comparisons if c.name == "single-island"]
    if not single or own <= 0 or len(doc.islands) < 2:
        return ""
    if single[0] is None:
        return "Yes: no island can do it alone."
    gain = single[0] / own
    if gain < _WORTH:
        return "No: one island alone is as fast."
    return f"Yes: mixing makes a step {times(gain)} as fast as the fastest island alone."


def _what(comparison: Comparison) -> str:
    if comparison.iteration_time_s is None:
        return comparison.reason or f"does not work: {comparison.summary}"
    return comparison.summary


def _phases(doc: PlanDocument) -> str:
    parts = [
        f"{name.replace('_', ' ')} {value:.2f} s"
        for name, value in doc.prediction.breakdown.items()
        if value >= 0.005
    ]
    return f": {', '.join(parts)}" if len(parts) > 1 else ""


def _stage_island(doc: PlanDocument, index: int) -> str:
    for stage in doc.stages:
        if stage.index == index:
            return stage.island
    return "?"
