"""Results of the paper's figures as CSV files, pictures, and sections of docs/paper-evaluation.md."""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from pathlib import Path

from markdown import DOCS

ORDER = (
    *("auto", "exact", "aceso", "aceso-alone", "alpa", "alpa-alone", "galvatron", "uniform"),
    *(
        "uniform-alone",
        "uniform-alone-slowest-first",
        "metis",
        "metis-published",
        "metis-recompute",
        "megatron",
    ),
    *("sailor", "sailor-published", "sailor-recompute", "galvatron-alone"),
)
"""Planners have the same colour in every picture."""

RESULTS = Path(__file__).parent / "results"
PICTURES = DOCS / "pictures"
PAGE = DOCS / "paper-evaluation.md"


def write_csv(name: str, rows: Sequence[Mapping[str, object]]) -> Path:
    """Writes rows with equal keys to bench/results; floats with six digits."""
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"{name}.csv"
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows({key: _cell(value) for key, value in row.items()} for row in rows)
    return path


def read_csv(name: str) -> list[dict[str, str]]:
    """Returns the rows of a result; none where the figure has not been run."""
    path = RESULTS / f"{name}.csv"
    if not path.exists():
        return []
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def bars(
    name: str, title: str, groups: Sequence[str], series: Mapping[str, Sequence[float | None]], unit: str
) -> Path:
    """Draws grouped bars into docs/pictures; a missing value is a cross on the axis.

    Args:
        name: Of the file.
        title: Above the picture.
        groups: Labels of the groups.
        series: Heights by name, one per group.
        unit: Of the heights.
    """
    plt = _matplotlib()
    figure, axes = plt.subplots(figsize=(max(7.0, 1.1 + 0.17 * len(series) * len(groups) + len(groups)), 3.8))
    width = 0.84 / len(series)
    palette = plt.get_cmap("tab20").colors
    colours = [palette[(ORDER.index(label) if label in ORDER else len(ORDER)) % 20] for label in series]
    for idx, (label, heights) in enumerate(series.items()):
        at = [group - 0.42 + width * (idx + 0.5) for group in range(len(groups))]
        axes.bar(at, [height or 0.0 for height in heights], width, label=label, color=colours[idx])
        for x, height in zip(at, heights, strict=True):
            if height is None:
                axes.text(x, 0, "x", ha="center", va="bottom", fontsize=7, color=colours[idx])
    axes.set_xticks(range(len(groups)), groups, fontsize=8)
    axes.set_ylabel(unit, fontsize=8)
    axes.set_title(title, fontsize=9, loc="left")
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(labelsize=8)
    axes.legend(fontsize=7, frameon=False, ncols=1, loc="upper left", bbox_to_anchor=(1.0, 1.0))
    return _save(plt, figure, name)


def lines(
    name: str,
    title: str,
    xs: Sequence[float],
    series: Mapping[str, Sequence[float | None]],
    labels: tuple[str, str],
    *,
    logarithmic: tuple[bool, bool] = (False, False),
) -> Path:
    """Draws lines into docs/pictures; ``labels`` are those of the axes."""
    plt = _matplotlib()
    figure, axes = plt.subplots(figsize=(6.4, 3.6))
    for label, ys in series.items():
        known = [(x, y) for x, y in zip(xs, ys, strict=True) if y is not None]
        axes.plot([x for x, _ in known], [y for _, y in known], marker="o", markersize=3, label=label)
    for axis, wanted in zip(("x", "y"), logarithmic, strict=True):
        if wanted:
            getattr(axes, f"set_{axis}scale")("log")
    axes.set_xlabel(labels[0], fontsize=8)
    axes.set_ylabel(labels[1], fontsize=8)
    axes.set_title(title, fontsize=9, loc="left")
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(labelsize=8)
    axes.legend(fontsize=8, frameon=False)
    return _save(plt, figure, name)


def _save(plt: object, figure: object, name: str) -> Path:
    PICTURES.mkdir(exist_ok=True)
    path = PICTURES / f"{name}.svg"
    # No date and fixed identifiers: equal results are equal bytes.
    figure.savefig(path, bbox_inches="tight", metadata={"Date": None})  # type: ignore[attr-defined]
    plt.close(figure)  # type: ignore[attr-defined]
    return path


def _matplotlib() -> object:
    try:
        import matplotlib as mpl
    except ImportError:
        raise SystemExit("pictures need matplotlib: pip install 'tangram-llm[bench]'") from None
    mpl.use("Agg")
    mpl.rcParams["svg.hashsalt"] = "tangram"
    mpl.rcParams["svg.fonttype"] = "none"
    import matplotlib.pyplot as plt

    return plt


def _cell(value: object) -> object:
    if value is None:
        return ""
    return f"{value:.6g}" if isinstance(value, float) else value
