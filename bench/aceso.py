"""Measures the search of ``aceso`` against Aceso's own results, and its budget against the quality of plans.

    python bench/aceso.py            prints tables
    python bench/aceso.py --write    also puts them into docs/benchmarks.md
    python bench/aceso.py --smoke    the smallest case of each, to see that it works

On Aceso's own profiles of V100, with its atoms, space and accounting: how well its stored plans are re-
costed, what the search finds and how long it takes, and the optimum of the same space by dynamic programming.
On Tangram's cost model: planning a cluster with ``aceso`` inside, for several budgets. Times are processor
times of one machine, never assertions. The profiles are expected in ../shared (or TANGRAM_SHARED).
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from markdown import DOCS, table, write_sections
from planning import cpu_name
from tangram import load_cluster, load_model, plan
from tangram.job import Job, Pins, Precision
from tangram.parallelizers.aceso import planner
from tangram.parallelizers.aceso.accounting import AcesoSpace, stored_pipeline
from tangram.parallelizers.aceso.operators import Profile
from tangram.parallelizers.aceso.optimum import best_pipeline
from tangram.parallelizers.aceso.search import search_all
from tangram.parallelizers.aceso.space import Judged
from tangram.planner.options import PlanOptions

ROOT = Path(__file__).parents[1]
PROFILES = Path(os.environ.get("TANGRAM_SHARED") or ROOT.parent / "shared") / "data/profiles/aceso-v100"
FOLDERS = {"V100-32": ("eurosys-v100-32gb", 8, 28_000.0), "mini-4gpu": ("miniset-4gpu", 4, 12_000.0)}
"""Files, GPUs per node and memory in MiB, by the profile's name in the summary of stored plans."""

LAYERS = {"1_3B": 24, "2_6B": 32, "6_7B": 32, "13B": 40}
BATCH = 1024
PLANS_PER_STAGE_COUNT = 600


@dataclass(frozen=True)
class Case:
    """A model on V100, and the seconds per iteration of the best plan that Aceso's own search found."""

    size: str
    num_gpus: int
    found_s: float


CASES = (Case("1_3B", 4, 101.2), Case("2_6B", 8, 87.2), Case("6_7B", 16, 85.5), Case("13B", 32, 86.3))

CLUSTERS = (
    ("gpt3-13b", "examples/clusters/c3-four-islands.yaml", Precision.FP16, 512),
    ("gpt3-13b", "2x8xV100-32GB-SXM2@100Gbit", Precision.FP16, 512),
)
BUDGETS = (25, 100, 400)


def space_of(size: str, num_gpus: int, profile: str, batch: int) -> AcesoSpace:
    """Returns Aceso's space for a model."""
    folder, per_node, limit_mib = FOLDERS[profile]
    files = {path.name: path.read_text(encoding="utf-8") for path in (PROFILES / folder).glob("*.csv")}
    read = Profile.read(files, f"gpt_{size}")
    return AcesoSpace(read, LAYERS[size], num_gpus, per_node, batch, limit_mib)


def largest_error(case: Case) -> tuple[int, float]:
    """Returns how many stored plans of a model there are, and the largest relative error of their times."""
    plans = PROFILES / "plans-rerun"
    errors = []
    for row in csv.DictReader((plans / "summary.csv").read_text(encoding="utf-8").splitlines()):
        if row["plan_file"] and row["model"] == case.size:
            space = space_of(row["model"], int(row["num_gpus"]), row["profile"], int(row["global_batch"]))
            stored = json.loads((plans / row["plan_file"]).read_text(encoding="utf-8"))
            seconds = space.iteration_ms(*stored_pipeline(stored)) / 1e3
            errors.append(abs(seconds / float(row["predicted_iteration_s"]) - 1))
    return len(errors), max(errors)


def optimum(space: AcesoSpace, known: Judged) -> Judged:
    """Returns the best pipeline over all micro-batch sizes."""
    best = known
    for micro_batch in sorted(space.micro_batches, key=lambda mb: mb != known.pipeline.micro_batch):
        best = best_pipeline(space, micro_batch, best.iteration) or best
    return best


def on_its_profiles(cases: Sequence[Case]) -> str:
    """Returns the table on Aceso's own accounting."""
    rows = []
    for case in cases:
        number, error = largest_error(case)
        space = space_of(case.size, case.num_gpus, "V100-32", BATCH)
        began = time.process_time()
        found = search_all(space, PLANS_PER_STAGE_COUNT)
        took_s = time.process_time() - began
        assert found is not None
        began = time.process_time()
        best = optimum(space, found)
        exact_s = time.process_time() - began
        rows.append(
            [
                f"GPT {case.size.replace('_', '.')} on {case.num_gpus} V100",
                f"{number}, at most {100 * error:.4f} % off",
                f"{case.found_s:.1f} s",
                f"{found.iteration / 1e3:.3f} s, {len(found.values)} stages",
                f"{took_s:.1f} s",
                f"{best.iteration / 1e3:.3f} s, {len(best.values)} stages",
                f"{exact_s:.1f} s",
                f"{100 * (found.iteration / best.iteration - 1):.3f} %",
            ]
        )
        print(" | ".join(rows[-1]), flush=True)
    headers = (
        "case",
        "stored plans re-costed",
        "Aceso's own search",
        "`aceso`",
        "of processor",
        "optimum",
        "of processor",
        "`aceso` above it",
    )
    return table(headers, rows)


def on_our_cost_model(clusters: Sequence[tuple[str, str, Precision, int]], budgets: Sequence[int]) -> str:
    """Returns the table of planning with ``aceso`` inside."""
    rows = []
    for model, cluster, precision, batch in clusters:
        where = str(ROOT / cluster) if cluster.endswith(".yaml") else cluster
        name = f"{model} on {Path(cluster).stem}"
        job = Job(global_batch=batch, seq_len=2048, precision=precision)
        zero = Job(global_batch=batch, seq_len=2048, precision=precision, pins=Pins(zero=0))
        asked = [(f"`aceso`, budget {budget}", "aceso", job, budget) for budget in budgets]
        for label, parallelizer, its_job, budget in [*asked, ("`exact` without ZeRO", "exact", zero, 0)]:
            if budget:
                planner.BUDGET = budget
            began = time.process_time()
            options = PlanOptions(parallelizers=(parallelizer,), workers=1)
            document = plan(load_model(model), load_cluster(where), its_job, options)
            took_s = time.process_time() - began
            queries = f"{document.search.counts['queries']:,}"
            seconds = document.prediction.iteration_time_s
            rows.append([name, label, f"{seconds:.3f} s", queries, f"{took_s:.1f} s"])
            print(" | ".join(rows[-1]), flush=True)
    return table(("case", "parallelizer", "predicted iteration", "queries", "of processor"), rows)


def main() -> None:
    """Measures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--write", action="store_true", help="put the tables into docs/benchmarks.md")
    parser.add_argument("--smoke", action="store_true", help="the smallest cases only")
    arguments = parser.parse_args()
    cases, clusters, budgets = CASES, CLUSTERS, BUDGETS
    if arguments.smoke:
        cases, clusters, budgets = CASES[:1], CLUSTERS[:1], BUDGETS[:1]
    first = on_its_profiles(cases)
    second = on_our_cost_model(clusters, budgets)
    print(f"\n{first}\n\n{second}")
    if arguments.write:
        by = f"Measured with `python bench/aceso.py --write`: {cpu_name()}, numpy {np.__version__}; "
        by += f"{PLANS_PER_STAGE_COUNT} pipelines per number of stages in the first table."
        write_sections(DOCS / "benchmarks.md", {"aceso": f"{by}\n\n{first}\n\n{second}"})


if __name__ == "__main__":
    main()
