"""An executed plan on a terminal: how busy each stage is over the step."""

from __future__ import annotations

from collections.abc import Sequence

from tangram.plan.schema import PlanDocument
from tangram.report.bars import shades
from tangram.report.grid import Grid
from tangram.report.page import Page
from tangram.report.stage_table import gpus
from tangram.report.words import counted, percent
from tangram.simulate.timeline import TaskKind, Timeline
from tangram.units import NS_PER_S, format_duration

_COMPUTE = (TaskKind.FORWARD, TaskKind.BACKWARD, TaskKind.STEP)


def add_timeline(page: Page, doc: PlanDocument, timeline: Timeline) -> None:
    """Adds the iteration time, the share of each stage's time that is busy, and when in the step it is."""
    total_s = timeline.iteration_ns / NS_PER_S
    micro_batches = counted(timeline.pipeline.num_micro_batches, "micro-batch", "micro-batches")
    bubble = timeline.idle_frac([len(stage.ranks) for stage in doc.stages])
    page.heading(
        f"{doc.model.name} on {doc.cluster.name}",
        f"{format_duration(total_s)} per step, {micro_batches}, bubble {percent(bubble)}",
    )
    labels = Grid(["#", "GPUs", "busy", "starts", "ends"], "rlrrr")
    bounds = zip(timeline.bubble_fracs, timeline.first_ns, timeline.last_ns, strict=True)
    for stage, (idle, first_ns, last_ns) in zip(doc.stages, bounds, strict=True):
        times = [format_duration(time_ns / NS_PER_S) for time_ns in (first_ns, last_ns)]
        labels.add(str(stage.index), gpus(stage), percent(1 - idle), *times)
    rows = labels.rows()
    width = page.width - labels.width - 4
    busy = busy_shares(timeline, max(width, 10))
    header = labels.header()
    if header is not None:
        header.append("  busy over the step", style="dim")
        page.line(header)
    for row, shares in zip(rows, busy, strict=True):
        blanks = " " * (labels.width - row.cell_len)
        row.append(f"{blanks}  |{shades(shares, unicode=page.unicode)}|")
        page.line(row)
    page.wrapped(
        "Blank is idle, solid is busy all the time; both ends of the bars are the ends of the step.",
        style="dim",
    )


def busy_shares(timeline: Timeline, num_cells: int) -> list[list[float]]:
    """Returns per stage the busy share of ``num_cells`` equal parts of the step, shape (stages, cells)."""
    shares = [[0.0] * num_cells for _ in range(timeline.pipeline.num_stages)]
    total = timeline.iteration_ns
    if total <= 0:
        return shares
    for task in timeline.tasks():
        if task.kind in _COMPUTE:
            _spread(shares[task.stage], task.start_ns * num_cells / total, task.end_ns * num_cells / total)
    return shares


def _spread(cells: list[float], start: float, end: float) -> None:
    """Adds an interval, in units of cells, to the cells that it covers."""
    last = len(cells) - 1
    for idx in range(min(int(start), last), min(int(end), last) + 1):
        cells[idx] += max(min(end, idx + 1) - max(start, idx), 0.0)


def stage_labels(doc: PlanDocument) -> Sequence[str]:
    """Returns a name per stage for the processes of a trace."""
    return [gpus(stage) for stage in doc.stages]
