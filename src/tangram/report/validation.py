"""How far predictions are off: one line per file and GPU, and why rows were left out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from tangram.report.grid import Grid
from tangram.report.page import Page
from tangram.report.words import counted, percent
from tangram.validation.measured import RowBasis
from tangram.validation.scored import ScoredRow
from tangram.validation.scores import Errors, GroupScore

MAX_REASONS = 20
"""Kinds whose reasons are printed; the JSON object holds all."""


def add_validation(
    page: Page, rows: Sequence[ScoredRow], groups: Sequence[GroupScore], *, with_profiles: bool = False
) -> None:
    """Adds the tables of errors, of rankings, and the rows that were not used.

    Args:
        page: Where to.
        rows: All rows.
        groups: Their summary.
        with_profiles: Whether to say what rows rest on.
    """
    used = sum(row.used for row in rows)
    rests = f"; {_rests_on(rows)}" if with_profiles else ""
    page.heading("Rows", f"{counted(len(rows), 'row')} read, {used:,} used{rests}")
    page.grid(_row_grid(groups))
    _add_time(page, [group for group in groups if group.time is not None])
    _add_memory(page, [group for group in groups if group.memory is not None])
    _add_rankings(page, [group for group in groups if group.ranking is not None])
    _add_unused(page, [row for row in rows if not row.used])


def _rests_on(rows: Sequence[ScoredRow]) -> str:
    """``22 rest on measured layers, 3 partly, 0 on formulas``."""
    count = Counter(row.predicted.basis for row in rows if row.predicted is not None)
    return (
        f"{count[RowBasis.MEASURED]:,} rest on measured layers, {count[RowBasis.MIXED]:,} partly, "
        f"{count[RowBasis.FORMULA]:,} on formulas"
    )


def _row_grid(groups: Sequence[GroupScore]) -> Grid:
    grid = Grid(["file", "GPU", "rows", "used", "not used"], "llrrl")
    for group in groups:
        why = ", ".join(f"{count} {code}" for code, count in group.unused.items())
        used = f"{group.used}" + (f" ({group.fitted_on} fitted on)" if group.fitted_on else "")
        grid.add(group.file, group.gpu, str(group.rows), used, why or "-")
    return grid


def _add_time(page: Page, groups: Sequence[GroupScore]) -> None:
    if not groups:
        return
    page.heading("Time", "relative errors; bias above 0 is too slow a prediction")
    grid = Grid(["file", "GPU", "rows", "mean", "median", "worst", "bias", "one constant"], "llrrrrrr")
    for group in groups:
        time, trivial = group.time, group.trivial
        assert time is not None
        assert trivial is not None
        beaten = "" if time.mape < trivial.mape else " *"
        grid.add(group.file, group.gpu, *_error_cells(time), percent(trivial.mape) + beaten)
    page.grid(grid)
    page.wrapped(
        "One constant: every row at the group's median model FLOP/s per GPU in its precision, taken from the "
        "rows that it is scored on, with all or half of the attention square, whichever suits it better. "
        "* where it is not beaten: such rows cannot show that anything was learned.",
        style="dim",
    )


def _add_memory(page: Page, groups: Sequence[GroupScore]) -> None:
    if not groups:
        return
    page.heading("Peak memory", "relative errors; the upper estimate is what a plan is tested against")
    grid = Grid(
        ["file", "GPU", "rows", "mean", "median", "worst", "bias", "above upper", "upper is"], "llrrrrrrr"
    )
    for group in groups:
        memory, upper = group.memory, group.upper_memory
        assert memory is not None
        above = f"{upper.below} of {upper.count}" if upper is not None else "-"
        width = _signed(upper.mean_above) if upper is not None else "-"
        grid.add(group.file, group.gpu, *_error_cells(memory), above, width)
    page.grid(grid)


def _add_rankings(page: Page, groups: Sequence[GroupScore]) -> None:
    if not groups:
        return
    page.heading("Ranking", "regret: what the plan with the best prediction takes, over the fastest")
    grid = Grid(
        ["file", "GPU", "jobs", "plans", "rank correlation", "median regret", "worst regret"], "llrrrrr"
    )
    for group in groups:
        ranking = group.ranking
        assert ranking is not None
        grid.add(
            group.file,
            group.gpu,
            str(ranking.jobs),
            str(ranking.alternatives),
            "-" if ranking.correlation is None else f"{ranking.correlation:.2f}",
            percent(ranking.median_regret),
            percent(ranking.worst_regret),
        )
    page.grid(grid)


def _add_unused(page: Page, rows: Sequence[ScoredRow]) -> None:
    """The first row of every kind of reason in a file: a frequent one must not hide the others."""
    if not rows:
        return
    first = {(row.result.origin.file, row.code): row for row in reversed(rows)}
    shown = sorted(first.values(), key=lambda row: (row.result.origin.file, row.result.origin.line))
    shown = shown[:MAX_REASONS]
    page.heading("Rows that were not used", "the first of each kind in a file")
    page.items([f"{row.result.origin.file}: {row.reason}" for row in shown])
    if len(rows) > len(shown):
        page.wrapped(f"... and {len(rows) - len(shown):,} more; --json lists all.", style="dim")


def _error_cells(errors: Errors) -> tuple[str, ...]:
    values = (percent(errors.mape), percent(errors.median), percent(errors.worst), _signed(errors.bias))
    return (str(errors.count), *values)


def _signed(fraction: float) -> str:
    return ("+" if fraction >= 0 else "") + percent(fraction)
