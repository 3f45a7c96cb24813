"""Planners side by side: a table, a chart, and what each makes use of."""

from __future__ import annotations

from tangram.advise.comparison import ComparisonDocument, PlannerKind, PlannerSection
from tangram.report.bars import bar
from tangram.report.grid import Grid
from tangram.report.page import Page
from tangram.report.words import big, listed, percent, sentence, times
from tangram.units import format_duration

_BAR = 24
_KINDS = {
    PlannerKind.TANGRAM: "inside Tangram",
    PlannerKind.ALONE: "as if all GPUs were the slowest",
    PlannerKind.CLUSTER: "plans the whole cluster",
}


def add_comparison(page: Page, doc: ComparisonDocument) -> None:
    """Adds all planners, the fastest executable plan first."""
    page.heading(
        f"{doc.model} on {doc.cluster}",
        f"{doc.global_batch} samples of {doc.seq_len} tokens per step, {doc.precision}",
    )
    ranked = sorted(doc.planners, key=_rank)
    fastest = doc.fastest
    best_s = None if fastest is None else fastest.iteration_time_s
    _add_table(page, ranked, best_s)
    _add_chart(page, ranked)
    page.heading("Plans")
    for planner in ranked:
        page.line(f"  {planner.planner} ({_KINDS[planner.kind]})")
        if planner.plan is not None:
            page.wrapped(planner.summary, indent=6)
            page.wrapped(f"uses {listed(planner.features) or 'nothing'}", indent=6, style="dim")
        if planner.reason:
            page.wrapped(sentence(f"cannot be executed: {planner.reason}"), indent=6)
    _add_losses(page, doc)
    page.heading("How to read it")
    page.wrapped(
        "All times are predicted by one cost model and simulated by one referee; none is measured. "
        "Planning time is the wall clock of this run."
    )


def _add_losses(page: Page, doc: ComparisonDocument) -> None:
    """Adds who is faster than ``exact``, and what for."""
    exact = next((p for p in doc.planners if p.planner == "exact" and p.executable), None)
    if exact is None or exact.iteration_time_s is None:
        return
    losses = []
    for planner in doc.planners:
        seconds = planner.iteration_time_s
        if planner.executable and seconds is not None and seconds < exact.iteration_time_s * (1 - 1e-9):
            share = percent(1 - seconds / exact.iteration_time_s)
            lacked = planner.lacked_by_exact
            why = (
                f"with {listed(lacked)}, which exact lacks"
                if lacked
                else "in the gap that exact's search left"
            )
            losses.append(f"{planner.planner} is {share} faster than exact, {why}")
    if losses:
        page.heading("Faster than exact")
        page.items([sentence(loss) for loss in losses])


def _rank(planner: PlannerSection) -> tuple[bool, float, str]:
    seconds = planner.iteration_time_s
    return not planner.executable, float("inf") if seconds is None else seconds, planner.planner


def _add_table(page: Page, ranked: list[PlannerSection], best_s: float | None) -> None:
    grid = Grid(["planner", "step", "the best is", "tokens/s", "memory", "planned in", ""], "lrrrrrl")
    for planner in ranked:
        seconds, tokens, peak = planner.iteration_time_s, planner.tokens_per_s, planner.peak_memory_frac
        comparable = best_s and seconds and planner.executable
        grid.add(
            planner.planner,
            "-" if seconds is None else format_duration(seconds),
            times(seconds / best_s) + " as fast" if comparable and seconds and best_s else "",
            "-" if tokens is None else big(tokens),
            "-" if peak is None else percent(peak),
            format_duration(planner.planning_time_s),
            "" if planner.executable else "no plan" if planner.plan is None else "not executable",
        )
    page.grid(grid)


def _add_chart(page: Page, ranked: list[PlannerSection]) -> None:
    """Throughput: longer is better; hollow names cannot be executed."""
    timed = [planner for planner in ranked if planner.tokens_per_s is not None]
    if not timed:
        return
    page.heading("Throughput", "tokens/s, longer is better")
    most = max(planner.tokens_per_s or 0.0 for planner in timed)
    grid = Grid(["", "", "", ""], "llrl")
    for planner in timed:
        tokens = planner.tokens_per_s or 0.0
        note = "" if planner.executable else "not executable"
        grid.add(planner.planner, bar(tokens / most, _BAR, unicode=page.unicode), big(tokens), note)
    page.grid(grid)
