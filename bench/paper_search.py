"""The search itself: figures 12 and 13, granularity, and the link at which a left-out node enters."""

from __future__ import annotations

import sys
import time
from dataclasses import replace

from paper_cases import Case, c1, example
from tangram.errors import InfeasibleError
from tangram.model.atoms import parse_granularity
from tangram.plan.schema import PlanDocument
from tangram.planner.options import PlanOptions, Pruning
from tangram.planner.planner import plan

Rows = list[dict[str, object]]

INSIDE = "aceso"
LINKS_GBIT = (0.1, 0.2, 0.5, 1, 2, 5, 10, 25, 50, 100, 200, 400)


def _planned(case: Case, options: PlanOptions) -> tuple[PlanDocument | None, float]:
    asked = case.question()
    began = time.perf_counter()
    try:
        doc = plan(asked.model, asked.cluster, asked.job, options)
    except InfeasibleError:
        doc = None
    took = time.perf_counter() - began
    print(f"{case.label}: {took:.2f} s", file=sys.stderr)
    return doc, took


def pruning_rows() -> Rows:
    """Returns what the rules of pruning save on C1's mixed configuration, with a slow parallelizer inside.

    Every rule's share is in the counts of one search: of all pairs, what each removes in turn.
    """
    found: Rows = []
    case = Case("fig12", "c1-t4-v100-8-8", c1(2, 2), "fig8-gpt3", ())
    for pruning in Pruning:
        doc, took = _planned(case, PlanOptions(parallelizers=(INSIDE,), pruning=pruning))
        if doc is None:
            continue
        counts = doc.search.counts
        found.append(
            {
                "pruning": pruning.value,
                "pairs": counts["pairs"],
                "pairs_times_positions": counts["pairs"] * sum(node.num_gpus for node in case.cluster.nodes),
                **{
                    f"removed_{n}": counts.get(f"removed_{n}", 0)
                    for n in ("incompatible", "infeasible", "unbalanced", "redundant")
                },
                "queries": counts["queries"],
                "planning_time_s": took,
                "iteration_time_s": doc.prediction.iteration_time_s,
            }
        )
    return found


def island_rows() -> Rows:
    """Returns planning time over the number of islands, with ``aceso`` inside and with ``exact``."""
    found: Rows = []
    names = ("c3-a100", "c3-two-islands", "c3-three-islands", "c3-four-islands")
    for islands, name in enumerate(names, 1):
        case = Case("fig13", name, example(name), "fig11-gpt3-13b", ())
        row: dict[str, object] = {"cluster": name, "islands": islands}
        for inside in (INSIDE, "exact"):
            doc, took = _planned(case, PlanOptions(parallelizers=(inside,)))
            row[f"{inside}_planning_time_s"] = took
            row[f"{inside}_queries"] = doc.search.counts.get("queries", 0) if doc else None
            row[f"{inside}_iteration_time_s"] = doc.prediction.iteration_time_s if doc else None
        found.append(row)
    return found


def granularity_rows() -> Rows:
    """Returns plan quality and planning time over the size of an atom."""
    found: Rows = []
    case = Case("atoms", "c3-three-islands", example("c3-three-islands"), "fig11-gpt3-13b", ())
    for size in ("operator", "block", "layer", "4"):
        doc, took = _planned(case, PlanOptions(granularity=parse_granularity(size)))
        found.append(
            {
                "atoms": size,
                "number": doc.num_atoms if doc else None,
                "iteration_time_s": doc.prediction.iteration_time_s if doc else None,
                "lower_bound_s": doc.bound.lower_bound_s if doc else None,
                "planning_time_s": took,
            }
        )
    return found


def link_rows() -> Rows:
    """Returns whether C3's node of V100-16GB is used, over the bandwidth of its NICs."""
    found: Rows = []
    base = example("c3-three-islands")
    for gbit in LINKS_GBIT:
        nodes = tuple(
            replace(node, nic_bandwidth_bytes_per_s=gbit * 1e9 / 8)
            if node.gpu.name.startswith("V100-16GB")
            else node
            for node in base.nodes
        )
        wide = replace(base, nodes=nodes, default_bandwidth_bytes_per_s=max(gbit, 100) * 1e9 / 8)
        doc, took = _planned(Case("link", f"{gbit:g} Gbit/s", wide, "fig11-gpt3-13b", ()), PlanOptions())
        assert doc is not None
        used = sum(slot.gpu.startswith("V100-16GB") for stage in doc.stages for slot in stage.ranks)
        found.append(
            {
                "gbit_per_s": float(gbit),
                "v100_16gb_used": used,
                "iteration_time_s": doc.prediction.iteration_time_s,
                "planning_time_s": took,
            }
        )
    return found
