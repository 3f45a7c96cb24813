"""The paper's evaluation, predicted: one sub-command a figure.

    python bench/paper.py fig8           prints its table
    python bench/paper.py fig8 --write   also writes bench/results/fig8.csv and docs/pictures/fig8.svg
    python bench/paper.py all --write    every figure, then docs/paper-evaluation.md
    python bench/paper.py fig8 --planners auto,exact   asks only these anew
    python bench/paper.py page           the page and pictures again, from the CSV files

fig4 search-space size; fig8, fig9, fig10, fig11 planners side by side; fig12 pruning; fig13 planning time
over islands; atoms granularity; link the bandwidth at which a left-out node enters; mechanisms what baselines
lack; components where the time goes; sensitivity the ratios under other assumptions.

All times of ours are predicted by one cost model and simulated by one referee. The paper's are measured.
Pictures need matplotlib (the extra ``bench``).
"""

from __future__ import annotations

import argparse
from collections.abc import Callable

import paper_compare
import paper_components
import paper_report
import paper_search
import paper_space
from paper_page import read_csv, write_csv

Rows = list[dict[str, object]]

COMPARED = ("fig8", "fig9", "fig10", "fig11", "mechanisms")

FIGURES: dict[str, Callable[[], Rows]] = {
    "fig4": paper_space.rows,
    "fig8": lambda: paper_compare.rows("fig8"),
    "fig9": lambda: paper_compare.rows("fig9"),
    "fig10": lambda: paper_compare.rows("fig10"),
    "fig11": lambda: paper_compare.rows("fig11"),
    "fig12": paper_search.pruning_rows,
    "fig13": paper_search.island_rows,
    "atoms": paper_search.granularity_rows,
    "link": paper_search.link_rows,
    "mechanisms": lambda: paper_compare.rows("mechanisms"),
    "components": paper_components.rows,
    "sensitivity": paper_compare.sensitivity_rows,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("figure", choices=[*FIGURES, "all", "page"])
    parser.add_argument("--write", action="store_true", help="write CSV, pictures and the page")
    parser.add_argument(
        "--planners",
        default="",
        help="ask these anew (commas), in a figure that compares planners; keep the rows of the others",
    )
    arguments = parser.parse_args()
    wanted = [] if arguments.figure == "page" else [arguments.figure]
    for name in list(FIGURES) if arguments.figure == "all" else wanted:
        only = [one for one in arguments.planners.split(",") if one]
        rows = paper_compare.rows(name, only) if only and name in COMPARED else FIGURES[name]()
        print(
            f"{name}\n{paper_report.section(name, [{k: _text(v) for k, v in row.items()} for row in rows])}\n"
        )
        if arguments.write:
            write_csv(name, rows)
    if arguments.write or arguments.figure == "page":
        paper_report.write({name: read_csv(name) for name in FIGURES})


def _text(value: object) -> str:
    if value is None:
        return ""
    return f"{value:.6g}" if isinstance(value, float) else str(value)


if __name__ == "__main__":
    main()
