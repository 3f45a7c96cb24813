"""How long a prediction takes: one stage, a table of configurations, and many stages of runs at once.

python bench/cost.py            prints the table
python bench/cost.py --write    writes it to docs/benchmarks.md
"""

from __future__ import annotations

import argparse
import time
import tracemalloc
from collections.abc import Callable

import numpy as np

from markdown import DOCS, table, write_sections
from planning import cpu_name
from tangram.cluster.islands import build_islands
from tangram.cluster.readers import load_cluster
from tangram.cluster.spec import Portion
from tangram.cost.atoms import atom_costs
from tangram.cost.batch import BatchStage, StageBatch
from tangram.cost.configs import legal_configs
from tangram.cost.constants import constants_of
from tangram.cost.setting import Setting
from tangram.cost.stage import stage_cost
from tangram.cost.types import StageConfigs
from tangram.job import Job, Precision
from tangram.model.atoms import cut_atoms
from tangram.model.load import load_model

ROWS = 100_000
STAGES = 1_000


def best_s(call: Callable[[], object], repeats: int) -> float:
    """The shortest of several calls, after one that is not counted."""
    call()
    found = []
    for _ in range(repeats):
        begin = time.perf_counter()
        call()
        found.append(time.perf_counter() - begin)
    return min(found)


def peak_mib(call: Callable[[], object]) -> float:
    tracemalloc.start()
    call()
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return peak / 1024**2


def measure() -> str:
    model, cluster = load_model("gpt3-13b"), load_cluster("8x8xA100-80GB-SXM@400Gbit")
    job = Job(1024, 2048, Precision.BF16)
    (island,) = build_islands(cluster, job.precision)
    portion, atoms = Portion(island, 8, 8), cut_atoms(model)
    configs = legal_configs(model, portion, 64, job)
    many = StageConfigs.of([configs[idx % len(configs)] for idx in range(ROWS)])
    stage = BatchStage(Setting.of(model, portion, StageConfigs.of(configs[:1]), 64, job), atoms)
    batch, constants = StageBatch.of([stage] * STAGES), constants_of(island.gpu, job.basis)

    def one() -> object:
        return stage_cost(model, atoms, portion, configs[0], 64, 16, 1, [False] * len(atoms), job)

    def many_configs() -> object:
        return atom_costs(model, atoms[:1] + atoms[1:2] + atoms[-1:], portion, many, 64, job)

    cases = (
        ("one stage of 40 layers (`stage_cost`)", one, 1, 200),
        (f"a table of {ROWS:,} configurations (`atom_costs`)", many_configs, ROWS, 3),
        (
            f"{STAGES:,} stages with constants of their own (`StageBatch.costs`)",
            lambda: batch.costs(constants),
            STAGES,
            20,
        ),
    )
    rows = []
    for name, call, count, repeats in cases:
        seconds = best_s(call, repeats)
        each = f"{1e6 * seconds / count:.3g} us"
        rows.append((name, f"{1e3 * seconds:.3g} ms", each, f"{peak_mib(call):.0f} MiB"))
    measured = table(("call", "time", "each", "peak memory"), rows)
    return (
        f"Measured with `python bench/cost.py --write`: {cpu_name()}, numpy {np.__version__}.\n\n{measured}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--write", action="store_true")
    text = measure()
    print(text)
    if parser.parse_args().write:
        write_sections(DOCS / "benchmarks.md", {"cost": text})


if __name__ == "__main__":
    main()
