"""What fills the memory of each stage's GPUs, item by item."""

from __future__ import annotations

from tangram.plan.schema import PlanDocument
from tangram.report.grid import Grid
from tangram.report.page import Page
from tangram.units import GIB

_SHORT = {"gradients": "grads", "optimizer": "optim.", "activations": "activ.", "workspace": "work."}


def add_memory(page: Page, doc: PlanDocument) -> None:
    """Adds one line per stage, in GiB per GPU; items that no stage has are left out."""
    stages = doc.stages
    items = list(dict.fromkeys(name for stage in stages for name in stage.predicted.memory))
    items = [name for name in items if any(stage.predicted.memory.get(name, 0) for stage in stages)]
    if not items:
        return
    page.heading("Memory", "GiB per GPU, at the peak")
    grid = _grid(doc, items, items)
    page.grid(grid if grid.width <= page.width else _grid(doc, items, [_SHORT.get(i, i) for i in items]))


def _grid(doc: PlanDocument, items: list[str], headers: list[str]) -> Grid:
    grid = Grid(["#", *headers, "peak", "left"], "r" * (len(items) + 3))
    for stage in doc.stages:
        predicted = stage.predicted
        values = [predicted.memory.get(name, 0) for name in items]
        values += [predicted.peak_bytes, predicted.headroom_bytes]
        grid.add(str(stage.index), *(f"{value / GIB:.1f}" for value in values))
    return grid
