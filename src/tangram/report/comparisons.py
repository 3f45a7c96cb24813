"""Is mixing worth it? The plan beside other ways to use the cluster."""

from __future__ import annotations

from tangram.plan.schema import Comparison, PlanDocument
from tangram.report.grid import Grid
from tangram.report.page import Page
from tangram.report.words import times
from tangram.units import format_duration

_NAMES = {
    "single-island": "fastest single island alone",
    "even-split": "even layer split over everything",
    "tangram": "Tangram's plan",
}
_WORTH = 1.001
"""Below this ratio two times print as the same."""


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
        name = _NAMES.get(comparison.name, comparison.name)
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


def _ratio(ratio: float) -> str:
    """Of another way's time to the plan's own."""
    if abs(ratio - 1) < _WORTH - 1:
        return "as fast"
    return f"{times(ratio)} as fast"


def _what(comparison: Comparison) -> str:
    if comparison.iteration_time_s is None:
        return comparison.reason or f"does not work: {comparison.summary}"
    return comparison.summary
