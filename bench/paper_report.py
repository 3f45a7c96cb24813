"""From the rows of each figure to its section of docs/paper-evaluation.md, and its picture."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence

from markdown import DOCS, table, write_sections
from paper_compare import RATIOS
from paper_page import PAGE, bars, lines

Row = Mapping[str, str]

COMPARISONS = {
    "fig8": "GPT-3 2.6B on C1",
    "fig9": "GShard MoE on C1",
    "fig10": "Mixtral-8x7B and Qwen3-30B-A3B on C2",
    "fig11": "GPT-3 13B on C3",
    "mechanisms": "What the baselines gain from recomputation",
}
IN_BENCHMARKS = ("fig12", "fig13")
"""Tables that docs/benchmarks.md has too."""


def section(name: str, rows: Sequence[Row]) -> str:
    """Returns a figure as Markdown."""
    if not rows:
        return "Not run yet."
    maker: Callable[[Sequence[Row]], str] = _SECTIONS.get(name, _comparison)
    picture = f"\n\n![{_CAPTIONS[name]}](pictures/{name}.svg)" if name in _PICTURES else ""
    return maker(rows) + picture


def write(results: Mapping[str, Sequence[Row]]) -> None:
    """Draws the pictures and fills the page's sections."""
    for name, rows in results.items():
        if rows and name in _PICTURES:
            _PICTURES[name](rows)
    sections = {name: section(name, rows) for name, rows in results.items()}
    write_sections(PAGE, {**sections, "ratios": _ratios(results)})
    write_sections(DOCS / "benchmarks.md", {name: section(name, results[name]) for name in IN_BENCHMARKS})


def _comparison(rows: Sequence[Row]) -> str:
    """Planners down, cases across: the time, and how much longer than the fastest it is."""
    cases, planners = _values(rows, "case"), _values(rows, "planner")
    cell = {(row["planner"], row["case"]): row for row in rows}
    best = {case: _best(rows, case) for case in cases}
    body = [
        [
            f"`{planner}`",
            *(_cell(cell[planner, case], best[case]) for case in cases),
            _planning(rows, planner),
        ]
        for planner in planners
    ]
    reasons = _reasons(rows)
    lines_ = [table(["planner", *cases, "planned in"], body)]
    return "\n\n".join([*lines_, *([reasons] if reasons else [])])


def _cell(row: Row, best: float | None) -> str:
    if not row["iteration_time_s"]:
        return "no plan"
    seconds = float(row["iteration_time_s"])
    if row["executable"] != "True":
        return f"({seconds:.4g} s) ✗"
    return f"{seconds:.4g} s ({seconds / best:.2f}x)" if best else f"{seconds:.4g} s"


def _best(rows: Sequence[Row], case: str) -> float | None:
    known = [
        float(row["iteration_time_s"])
        for row in rows
        if row["case"] == case and row["executable"] == "True" and row["iteration_time_s"]
    ]
    return min(known, default=None)


def _planning(rows: Sequence[Row], planner: str) -> str:
    seconds = [float(row["planning_time_s"]) for row in rows if row["planner"] == planner]
    return f"{min(seconds):.2g} to {max(seconds):.2g} s"


def _reasons(rows: Sequence[Row]) -> str:
    """Why plans cannot be executed (✗), each reason once."""
    texts: dict[str, list[str]] = {}
    for row in rows:
        if row["executable"] != "True" and row["iteration_time_s"]:
            first = row["reason"].split("; ")[0]
            texts.setdefault(first, []).append(f"`{row['planner']}` on {row['case']}")
    return "\n".join(f"* ✗ {reason}: {', '.join(where)}" for reason, where in texts.items())


def _space(rows: Sequence[Row]) -> str:
    names = ["unit", "equal GPUs", "two kinds, any stage", "two kinds, islands"]
    factors = ["two kinds over equal", "any stage over islands"]
    body = [
        [row["unit"] if name == "unit" else _power(row[name]) for name in [*names, *factors]] for row in rows
    ]
    paper = ["paper", "", "", "", "10^13", "10^9"]
    return table([*names, *factors], [*body, paper])


def _power(text: str) -> str:
    mantissa, _, exponent = f"{float(text):.1e}".partition("e")
    return f"{mantissa} * 10^{int(exponent)}"


def _pruning(rows: Sequence[Row]) -> str:
    names = [
        "pruning",
        "pairs",
        "removed_incompatible",
        "removed_infeasible",
        "removed_unbalanced",
        "removed_redundant",
        "queries",
    ]
    naive = float(rows[0]["pairs_times_positions"])
    body = [
        [
            *(row[name] for name in names),
            f"{naive / float(row['queries']):,.0f}x",
            f"{float(row['planning_time_s']):.3g} s",
            f"{float(row['iteration_time_s']):.5g} s",
        ]
        for row in rows
    ]
    head = [name.removeprefix("removed_") for name in names]
    return table([*head, "fewer than one query for every pair and position", "planning", "plan"], body)


def _islands(rows: Sequence[Row]) -> str:
    body = [
        [
            row["cluster"],
            row["islands"],
            f"{float(row['aceso_planning_time_s']):.3g} s",
            row["aceso_queries"],
            f"{float(row['exact_planning_time_s']):.3g} s",
            "16.4 min" if row["islands"] == "4" else "-",
        ]
        for row in rows
    ]
    return table(
        [
            "cluster",
            "islands",
            "planning with `aceso`",
            "queries",
            "planning with `exact`",
            "paper (Aceso inside)",
        ],
        body,
    )


def _granularity(rows: Sequence[Row]) -> str:
    body = [
        [
            f"`{row['atoms']}`",
            row["number"],
            f"{float(row['iteration_time_s']):.6g} s",
            f"{float(row['lower_bound_s']):.6g} s",
            f"{float(row['planning_time_s']):.3g} s",
        ]
        for row in rows
    ]
    return table(["atoms", "number", "plan", "lower bound", "planning"], body)


def _link(rows: Sequence[Row]) -> str:
    body = [
        [
            f"{float(row['gbit_per_s']):g} Gbit/s",
            row["v100_16gb_used"],
            f"{float(row['iteration_time_s']):.5g} s",
        ]
        for row in rows
    ]
    return table(["NICs of the V100-16GB node", "of its 4 GPUs used", "plan"], body)


def _sensitivity(rows: Sequence[Row]) -> str:
    body = [
        [
            row["cluster"],
            row["assumption"],
            f"{float(row['auto_s']):.4g} s" if row["auto_s"] else "-",
            *(f"{float(row[name]):.2f}x" if row[name] else "-" for name in RATIOS),
        ]
        for row in rows
    ]
    return table(["cluster", "assumption", "`auto`", *(f"over {name}" for name in RATIOS)], body)


def _components(rows: Sequence[Row]) -> str:
    names = ("compute", "recompute", "communication", "step_end", "fill_and_waiting")
    body = [
        [
            row["case"],
            f"`{row['planner']}`",
            f"{float(row['iteration_time_s']):.4g} s",
            row["pace_set_by"],
            *(f"{float(row[f'{name}_s']):.3g} s" for name in names),
        ]
        for row in rows
    ]
    head = [name.replace("_", " ") for name in names]
    return table(["case", "planner", "step", "pace set by", *head], body)


def _ratios(results: Mapping[str, Sequence[Row]]) -> str:
    """The paper's average ratios beside ours, over the cases in which both plans can be executed."""
    body = []
    for label, (ours, theirs, paper) in RATIOS.items():
        found = [
            ratio
            for figure in ("fig8", "fig9", "fig10", "fig11")
            for ratio in _of(results[figure], ours, theirs)
        ]
        known = [ratio for ratio in found if ratio is not None]
        mean = f"{statistics.geometric_mean(known):.2f}x" if known else "-"
        span = f"{min(known):.2f} to {max(known):.2f}" if known else "-"
        lost = sum(ratio is None for ratio in found)
        body.append([label, f"`{theirs}`", f"{paper}x", mean, span, str(len(known)), str(lost)])
    head = [
        "over",
        "its planner here",
        "paper, measured",
        "ours, predicted: geometric mean",
        "range",
        "cases",
        "it has no plan that can be executed",
    ]
    return table(head, body)


def _of(rows: Sequence[Row], ours: str, theirs: str) -> list[float | None]:
    cell = {(row["planner"], row["case"]): row for row in rows}
    found: list[float | None] = []
    for case in _values(rows, "case"):
        mine, other = cell.get((ours, case)), cell.get((theirs, case))
        if mine is None or other is None:
            continue
        both = mine["executable"] == other["executable"] == "True"
        found.append(float(other["iteration_time_s"]) / float(mine["iteration_time_s"]) if both else None)
    return found


def _values(rows: Sequence[Row], key: str) -> list[str]:
    return list(dict.fromkeys(row[key] for row in rows))


def _draw_comparison(name: str) -> Callable[[Sequence[Row]], object]:
    def draw(rows: Sequence[Row]) -> object:
        groups, cell = _values(rows, "case"), {(row["planner"], row["case"]): row for row in rows}
        series = {
            planner: [_throughput(cell[planner, group]) for group in groups]
            for planner in _values(rows, "planner")
        }
        return bars(name, f"{COMPARISONS[name]}: predicted throughput", groups, series, "1000 tokens/s")

    return draw


def _throughput(row: Row) -> float | None:
    return float(row["tokens_per_s"]) / 1e3 if row["executable"] == "True" else None


def _draw_islands(rows: Sequence[Row]) -> object:
    series = {
        f"`{name}` inside": [float(row[f"{name}_planning_time_s"]) for row in rows]
        for name in ("aceso", "exact")
    }
    series["paper, Aceso inside"] = [984.0 if row["islands"] == "4" else None for row in rows]  # type: ignore[list-item]
    xs = [float(row["islands"]) for row in rows]
    return lines("fig13", "Planning time", xs, series, ("islands", "s"), logarithmic=(False, True))


def _draw_link(rows: Sequence[Row]) -> object:
    xs = [float(row["gbit_per_s"]) for row in rows]
    series = {"iteration time, s": [float(row["iteration_time_s"]) for row in rows]}
    return lines(
        "link",
        "C3 with a slower or faster V100-16GB node",
        xs,
        series,
        ("Gbit/s", "s"),
        logarithmic=(True, False),
    )


_CAPTIONS = {
    **{name: f"Predicted throughput: {what}" for name, what in COMPARISONS.items()},
    "fig13": "Planning time over the number of islands",
    "link": "Iteration time over the bandwidth of the slow node",
}
_SECTIONS: dict[str, Callable[[Sequence[Row]], str]] = {
    "fig4": _space,
    "fig12": _pruning,
    "fig13": _islands,
    "atoms": _granularity,
    "link": _link,
    "components": _components,
    "sensitivity": _sensitivity,
}
_PICTURES: dict[str, Callable[[Sequence[Row]], object]] = {
    **{name: _draw_comparison(name) for name in COMPARISONS},
    "fig13": _draw_islands,
    "link": _draw_link,
}
