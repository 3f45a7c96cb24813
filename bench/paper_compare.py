"""Figures 8 to 11: planners side by side; what baselines lack; and other assumptions."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace

from paper_cases import C3, Case, c1, cases, example, with_network
from paper_page import read_csv
from tangram.advise.compare import Question, compare

Rows = list[dict[str, object]]

RATIOS = {
    "metis": ("auto", "metis", 2.1),
    "sailor": ("auto", "sailor", 2.1),
    "alpa": ("auto", "alpa-alone", 1.6),
    "aceso": ("auto", "aceso-alone", 1.4),
}
"""What the paper reports on average: Tangram, the baseline, and how much faster Tangram is."""

GBIT = 1e9 / 8


def rows(figure: str, only: Sequence[str] = ()) -> Rows:
    """Returns one row per group and planner.

    Args:
        figure: A comparison of planners.
        only: Whom to ask anew; the rows of all others are those of the last time. Empty asks everybody.
    """
    known = {(row["case"], row["planner"]): row for row in read_csv(figure)}
    found: Rows = []
    for case in _cases(figure):
        for planner in case.planners:
            if only and planner not in only and (case.label, planner) in known:
                found.append({**known[case.label, planner]})
            else:
                found += _answers(case.label, case.question(), [planner])
    return found


def _cases(figure: str) -> list[Case]:
    return _mechanisms() if figure == "mechanisms" else cases(figure)


def _answers(label: str, question: Question, planners: Sequence[str]) -> Rows:
    found = []
    for planner in planners:
        (entry,) = compare(question, [planner]).planners
        print(
            f"{label}: {planner} {entry.iteration_time_s} in {entry.planning_time_s:.2f} s", file=sys.stderr
        )
        found.append(
            {
                "case": label,
                "planner": planner,
                "iteration_time_s": entry.iteration_time_s,
                "tokens_per_s": entry.tokens_per_s,
                "executable": entry.executable,
                "planning_time_s": entry.planning_time_s,
                "reason": entry.reason,
                "summary": entry.summary,
                "features": "; ".join(entry.features),
            }
        )
    return found


def _mechanisms() -> list[Case]:
    """What the baselines gain from what they lack, on C3 and on equal GPUs."""
    planners = ("auto", "metis", "metis-recompute", "sailor", "sailor-recompute")
    mixed = [Case("mechanisms", name, example(name), "fig11-gpt3-13b", planners) for name in C3]
    small = Case("mechanisms", "c1-t4-v100-8-8", c1(2, 2), "fig8-gpt3", planners)
    equal = Case("mechanisms", "c1-v100-16 (equal GPUs)", c1(0, 4), "fig8-gpt3", planners)
    return [*mixed, small, equal]


def sensitivity_rows() -> Rows:
    """Returns the ratios of the paper under other batches, sequence lengths and networks."""
    found: Rows = []
    for cluster, job in ((example("c3-three-islands"), "fig11-gpt3-13b"), (c1(2, 2), "fig8-gpt3")):
        case = Case("sensitivity", cluster.name, cluster, job, ())
        found.append(_ratio_row(cluster.name, "as committed", case.question()))
        for batch in (256, 4096):
            found.append(_ratio_row(cluster.name, f"batch {batch}", case.question(global_batch=batch)))
        found.append(_ratio_row(cluster.name, "1024 tokens", case.question(seq_len=1024)))
        for gbit in (10, 400):
            other = replace(case, cluster=with_network(cluster, gbit * GBIT))
            found.append(_ratio_row(cluster.name, f"{gbit} Gbit/s everywhere", other.question()))
    return found


def _ratio_row(cluster: str, assumption: str, question: Question) -> dict[str, object]:
    names = list(dict.fromkeys(name for ours, theirs, _ in RATIOS.values() for name in (ours, theirs)))
    entries = {row["planner"]: row for row in _answers(f"{cluster}, {assumption}", question, names)}
    row: dict[str, object] = {"cluster": cluster, "assumption": assumption}
    row["auto_s"] = entries["auto"]["iteration_time_s"]
    for label, (ours, theirs, _) in RATIOS.items():
        mine, other = entries[ours], entries[theirs]
        both = mine["executable"] and other["executable"]
        row[label] = _number(other) / _number(mine) if both else None
    return row


def _number(row: dict[str, object]) -> float:
    value = row["iteration_time_s"]
    assert isinstance(value, float)
    return value
