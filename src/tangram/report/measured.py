"""What a profiling run found, as tables for the terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tangram.report.grid import Grid
from tangram.report.page import Page
from tangram.report.words import counted
from tangram.units import GB, KIB, MIB, format_duration

if TYPE_CHECKING:
    from tangram.profiler.results import Profile, TimedLayer

_TIMES = ("forward_s", "backward_s", "recompute_s", "optimizer_s")


def add_profile(page: Page, profile: Profile, store: str) -> None:
    """Adds everything that a run found.

    Args:
        page: Where to.
        profile: The run.
        store: Where its records are now.
    """
    page.heading("Profile", profile.device)
    _add_layers(page, profile)
    _add_collectives(page, profile)
    notes = dict.fromkeys(note for timed in profile.layers for note in timed.notes)
    texts = [*notes, *profile.notes]
    texts += [f"not timed: {one}" for one in profile.skipped]
    if texts:
        page.heading("Notes")
        page.items(texts)
    page.heading("Store", f"{counted(len(profile.records), 'record')} in {store}")


def _add_layers(page: Page, profile: Profile) -> None:
    if not profile.layers:
        return
    for gpu in dict.fromkeys(timed.record.gpu for timed in profile.layers):
        of_gpu = [timed for timed in profile.layers if timed.record.gpu == gpu]
        record = of_gpu[0].record
        page.heading("Layers", f"{gpu}, {record.precision}, stack {record.stack}; one rank, no collectives")
        grid = Grid(
            ["piece", "tp", "mb", "forward", "backward", "recompute", "optimizer", "kept", "spread"],
            "lrrrrrrrr",
        )
        for timed in of_gpu:
            grid.add(*_cells(timed))
        page.grid(grid)
    page.wrapped(
        "Medians; mb: samples on the rank; kept: bytes that backward needs; spread: (slowest - fastest) / "
        "median, of the worst of the four.",
        indent=2,
        style="dim",
    )


def _cells(timed: TimedLayer) -> list[str]:
    record = timed.record
    seconds = [getattr(record, name) for name in _TIMES]
    kept = record.activation_bytes
    return [
        str(record.shape),
        str(record.tp),
        str(record.micro_batch),
        *["-" if value is None else short_duration(value) for value in seconds],
        "-" if kept is None else size(kept),
        f"{max(spread.relative for spread in timed.spreads.values()):.0%}",
    ]


def _add_collectives(page: Page, profile: Profile) -> None:
    if not profile.collectives:
        return
    page.heading("Collectives", "one group at a time, nobody else on the links")
    grid = Grid(
        ["gpu", "scope", "op", "ranks", "per node", "message", "time", "bus GB/s", "spread"], "lllrrrrrr"
    )
    for timed in profile.collectives:
        record = timed.record
        grid.add(
            record.gpu,
            record.scope.value,
            record.op.value,
            str(record.ranks),
            str(record.ranks_per_node),
            size(record.num_bytes),
            short_duration(record.seconds),
            f"{record.bus_bytes_per_s / GB:.3g}",
            f"{timed.spread.relative:.0%}",
        )
    page.grid(grid)


def short_duration(seconds: float) -> str:
    """Formats a time; below a millisecond in microseconds.

    >>> short_duration(0.0000123), short_duration(0.0123)
    ('12.3 us', '12.3 ms')
    """
    return f"{seconds * 1e6:.3g} us" if seconds < 1e-3 else format_duration(seconds)


def size(num_bytes: int) -> str:
    """Formats a small size in KiB or MiB.

    >>> size(512), size(4096), size(3 * 1024**2)
    ('0.5 KiB', '4 KiB', '3 MiB')
    """
    return f"{num_bytes / KIB:.4g} KiB" if num_bytes < MIB else f"{num_bytes / MIB:.4g} MiB"
