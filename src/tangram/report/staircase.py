"""The staircase from the ideal to the plan: where the time goes, and how far from the bound it is."""

from __future__ import annotations

from tangram.plan.schema import PlanDocument
from tangram.report.bars import bar
from tangram.report.grid import Grid
from tangram.report.page import Page
from tangram.report.words import percent, sentence
from tangram.units import format_duration

_BAR = 16
_NOTHING = 0.0005
"""A gap below this prints as 0.0%."""


def add_staircase(page: Page, doc: PlanDocument) -> None:
    """Adds the stairs, each with what it adds to the one before, and the bound; only that without stairs."""
    bound = doc.bound
    if not bound.staircase:
        page.heading("Bound")
        page.wrapped(_verdict(doc))
        return
    page.heading("Where the time goes", "each line adds a cause to the ones above it")
    total = max([step.time_s for step in bound.staircase] + [doc.prediction.iteration_time_s])
    grid = Grid(["", "", "", ""], "lrrl")
    before: float | None = None
    for step in bound.staircase:
        added = (
            "" if before is None else f"+{percent(max(step.time_s / before - 1, 0.0))}" if before > 0 else ""
        )
        share = step.time_s / total if total > 0 else 0.0
        grid.add(step.name, format_duration(step.time_s), added, bar(share, _BAR, unicode=page.unicode))
        before = step.time_s
    rows, explanations = grid.rows(), [step.explanation for step in bound.staircase]
    beside = grid.width + 2 + max(map(len, explanations), default=0) <= page.width
    for row, explanation in zip(rows, explanations, strict=True):
        if beside:
            row.append("  " + explanation, style="dim")
        page.line(row)
        if explanation and not beside:
            page.wrapped(explanation, indent=6, style="dim")
    page.wrapped(_verdict(doc))


def _verdict(doc: PlanDocument) -> str:
    bound = doc.bound
    limit = f"No plan can be faster than {format_duration(bound.lower_bound_s)}"
    if bound.proven_optimal:
        verdict = f"Optimal: the search covered its space and nothing in it is faster. {limit}"
        verdict += f"; this one is {percent(bound.gap_frac)} above." if bound.gap_frac >= _NOTHING else "."
    else:
        gap = percent(bound.gap_frac) if bound.gap_frac >= _NOTHING else "0.1%"
        verdict = f"{limit} under this cost model; this one is at most {gap} from the best."
    return f"{verdict} What this covers: {sentence(bound.scope)}" if bound.scope else verdict
