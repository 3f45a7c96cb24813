"""What a profile store holds, as tables."""

from __future__ import annotations

from collections.abc import Sequence

from tangram.profiles.summary import LayerGroup, LinkGroup
from tangram.report.grid import Grid
from tangram.report.page import Page
from tangram.report.words import counted
from tangram.units import GIB, KIB, MIB, format_bandwidth

_LIST_UP_TO = 6

_MEASURES = {
    "forward_s": "forward",
    "backward_s": "backward",
    "forward_backward_s": "their sum",
    "recompute_s": "recompute",
    "optimizer_s": "optimizer",
    "activation_bytes": "activations",
    "workspace_bytes": "workspace",
}


def add_profiles(
    page: Page, store: str, num_records: int, layers: Sequence[LayerGroup], links: Sequence[LinkGroup]
) -> None:
    """Adds everything that is in a store.

    Args:
        page: Where to write.
        store: Name of the file.
        num_records: All records.
        layers: Groups of layer records.
        links: Groups of collectives and rates.
    """
    page.heading("Profiles", f"{counted(num_records, 'record')} in {store}")
    for gpu in dict.fromkeys([*(group.gpu for group in layers), *(group.gpu for group in links)]):
        of_layers = [group for group in layers if group.gpu == gpu]
        of_links = [group for group in links if group.gpu == gpu]
        page.heading(gpu)
        for stack, precision in dict.fromkeys((group.stack, group.precision) for group in of_layers):
            chosen = [group for group in of_layers if (group.stack, group.precision) == (stack, precision)]
            page.line(f"  layers, {precision.value}, stack {stack}: {_measured(chosen)}")
            page.grid(_layer_grid(chosen))
        if of_links:
            page.line("  links: bus bandwidth as nccl-tests defines it, from the lowest to the highest")
            page.grid(_link_grid(of_links))


def add_imported(page: Page, lines: Sequence[tuple[str, str]], left_out: Sequence[tuple[str, int]]) -> None:
    """Adds what an import did.

    Args:
        page: Where to write.
        lines: Names with what belongs to them.
        left_out: Reasons with how many figures.
    """
    page.heading("Imported")
    page.facts(list(lines))
    if left_out:
        page.heading("Left out")
        page.items([f"{number:,} x {reason}" for reason, number in left_out])


def _measured(groups: Sequence[LayerGroup]) -> str:
    found = {name for group in groups for name in group.measures}
    return ", ".join(text for name, text in _MEASURES.items() if name in found)


def _layer_grid(groups: Sequence[LayerGroup]) -> Grid:
    grid = Grid(["shape", "tp", "collectives", "micro-batch", "records"], "llllr", indent=4)
    for group in groups:
        grid.add(
            str(group.shape),
            _numbers(group.tp),
            ", ".join("in" if included else "out" for included in group.includes_tp_comm) or "-",
            _numbers(group.micro_batch),
            str(group.num_records),
        )
    return grid


def _link_grid(groups: Sequence[LinkGroup]) -> Grid:
    grid = Grid(
        ["operation", "scope", "ranks", "message", "bandwidth", "stack", "records"], "llllllr", indent=4
    )
    for group in groups:
        low, high = (format_bandwidth(rate) for rate in group.bus_bytes_per_s)
        message = "any" if group.num_bytes is None else " to ".join(_size(size) for size in group.num_bytes)
        stack = f"{group.stack}, {group.link}" if group.link else group.stack
        grid.add(
            group.op.value,
            group.scope.value,
            _numbers(group.ranks),
            message,
            low if low == high else f"{low} to {high}",
            stack,
            str(group.num_records),
        )
    return grid


def _numbers(values: Sequence[int]) -> str:
    if len(values) <= _LIST_UP_TO:
        return " ".join(map(str, values))
    return f"{values[0]} ... {values[-1]} ({len(values)})"


def _size(num_bytes: int) -> str:
    for unit, name in ((GIB, "GiB"), (MIB, "MiB"), (KIB, "KiB")):
        if num_bytes >= unit:
            return f"{num_bytes / unit:.4g} {name}"
    return f"{num_bytes} B"
