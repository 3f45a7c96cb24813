"""A calibration: fitted constants, those that sit on a bound, errors by file and GPU, bands."""

from __future__ import annotations

from collections.abc import Sequence

from tangram.report.grid import Grid
from tangram.report.page import Page
from tangram.report.words import counted, percent
from tangram.validation.bands import MeasuredBand
from tangram.validation.calibration_file import Scores, group_errors


def add_calibration(page: Page, scores: Sequence[Scores], bands: Sequence[MeasuredBand], path: str) -> None:
    """Adds what was fitted, and how far off it is where it was not fitted."""
    for part in scores:
        _add_constants(page, part)
        _add_errors(page, part)
    _add_bands(page, bands)
    page.heading("Next", f"written to {path}")
    page.wrapped(f"tangram plan MODEL CLUSTER --calibration {path} plans with it.")


def _add_constants(page: Page, part: Scores) -> None:
    title = f"{counted(len(part.fitted), 'constant')} fitted to {counted(len(part.runs), 'row')}"
    page.heading(f"{part.target.value.capitalize()}: constants", title)
    grid = Grid(["shelf", "of", "constant", "value", "from", "to", ""], "lllrrrl")
    for entry in part.fitted:
        slot, values = entry.slot, (entry.value, entry.low, entry.high)
        mark = "on its bound" if entry.on_bound else ""
        grid.add(slot.shelf.value, slot.owner, slot.constant, *(f"{value:.3g}" for value in values), mark)
    page.grid(grid)
    if not part.fitted:
        page.wrapped("Too few rows: nothing was fitted.", style="dim")
    if any(entry.on_bound for entry in part.fitted):
        page.wrapped(
            "A constant on its physical bound is a failure of the formula: its value means nothing, and runs "
            "that depend on it are predicted worse than the errors below say.",
            style="dim",
        )


def _add_errors(page: Page, part: Scores) -> None:
    page.heading(f"{part.target.value.capitalize()}: errors", "mean absolute relative errors")
    grid = Grid(
        ["file", "GPU", "rows", "fitted on", "five folds", "median", "model left out", "source left out"],
        "llrrrrrr",
    )
    for group in group_errors(part):
        folds = group.five_fold, group.five_fold_median
        errors = (group.in_sample, *folds, group.model_left_out, group.source_left_out)
        grid.add(group.file, group.gpu + group.kind, str(group.rows), *map(percent, errors))
    page.grid(grid)


def _add_bands(page: Page, bands: Sequence[MeasuredBand]) -> None:
    if not bands:
        return
    page.heading("Bands", "what 9 of 10 rows stay within; - is a source that was not fitted on")
    grid = Grid(["GPU family", "stack", "model", "rows", "band"], "lllrr")
    for band in bands:
        model = "MoE" if band.moe else "dense"
        width = f"+-{percent(band.half_width_frac)}"
        grid.add(band.gpu_family or "any", band.stack or "-", model, str(band.num_rows), width)
    page.grid(grid)
