"""A whole plan on a terminal, in the order in which a reader asks."""

from __future__ import annotations

import shlex

from tangram.plan.schema import PlanDocument
from tangram.report.comparisons import add_comparisons
from tangram.report.grid import Grid
from tangram.report.header import add_header
from tangram.report.islands import add_islands
from tangram.report.memory_table import add_memory
from tangram.report.page import Page
from tangram.report.search import search_sentences
from tangram.report.stage_table import add_stages
from tangram.report.staircase import add_staircase
from tangram.report.words import band_of, big, percent, ranges, sentence
from tangram.units import format_bytes, format_duration


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


def add_prediction(page: Page, doc: PlanDocument) -> None:
    """Adds what the simulator says, and what it rests on."""
    prediction = doc.prediction
    page.heading("Prediction")
    pace = prediction.bottleneck_stage
    rows = [
        ("step", f"{format_duration(prediction.iteration_time_s)}{band_of(doc)}{_phases(doc)}"),
        (
            "throughput",
            f"{big(prediction.tokens_per_s)} tokens/s, {big(prediction.samples_per_s)} samples/s",
        ),
        (
            "MFU",
            f"{percent(prediction.mfu)} of the GPUs' peak; bubble {percent(prediction.bubble_frac)}",
        ),
        ("pace", f"set by stage {pace} ({_stage_island(doc, pace)})"),
        ("band", sentence(prediction.time_band_note or "not known")),
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
