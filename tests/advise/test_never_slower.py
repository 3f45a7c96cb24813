"""On every configuration of the paper's clusters: nobody beats ``auto``, nor ``exact`` in its own space.

Each question is that of a figure of docs/paper-evaluation.md, put to all planners that are built in.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from pathlib import Path

import pytest
from example_plans import example_cluster

from tangram.advise.compare import DEFAULT_PLANNERS, Question, compare
from tangram.advise.comparison import ComparisonDocument
from tangram.cluster.spec import Cluster
from tangram.job import Job
from tangram.job_reader import load_job_file
from tangram.model.load import load_model, trim_layers
from tangram.planner.precision import choose_precision

JOBS = Path(__file__).parents[2] / "examples" / "jobs"
PLANNERS = ("galvatron-alone", *DEFAULT_PLANNERS)


def c1(t4_nodes: int, v100_nodes: int) -> Cluster:
    """The paper's C1 with so many nodes of four GPUs of each kind."""
    t4, v100 = example_cluster("c1-t4-16"), example_cluster("c1-v100-16")
    return replace(t4, nodes=(*t4.nodes[:t4_nodes], *v100.nodes[:v100_nodes]))


def question(cluster: Cluster, job: str, model: str | None = None, *, whole: bool = False) -> Question:
    """What a job file asks, of another model or of all its layers where that is said."""
    file = load_job_file(JOBS / f"{job}.yaml")
    spec = load_model(model or file.model)
    if file.num_layers and not whole:
        spec = trim_layers(spec, file.num_layers)
    precision, _ = choose_precision(cluster, file.precision)
    return Question(spec, cluster, Job(file.global_batch, file.seq_len, precision, file.optimizer))


QUICK = {
    "c3-a100": question(example_cluster("c3-a100"), "fig11-gpt3-13b"),
    "2.4b on c1 4+4": question(c1(1, 1), "fig9-gshard-moe", "gshard-moe-2.4b"),
}
SLOW = {
    **{
        f"gpt3 on {4 * t4} T4 + {4 * v100} V100": question(c1(t4, v100), "fig8-gpt3")
        for t4, v100 in ((4, 0), (3, 1), (2, 2), (1, 3), (0, 4))
    },
    **{
        f"{size} on c1 8+8": question(c1(2, 2), "fig9-gshard-moe", f"gshard-moe-{size}")
        for size in ("2.4b", "7.1b", "10b")
    },
    **{
        f"{job}, {'full' if whole else 'half'}": question(example_cluster("c2-h100-a100"), job, whole=whole)
        for job in ("fig10-mixtral", "fig10-qwen3")
        for whole in (False, True)
    },
    **{
        name: question(example_cluster(name), "fig11-gpt3-13b")
        for name in ("c3-two-islands", "c3-three-islands", "c3-four-islands")
    },
}


@lru_cache(maxsize=1)
def asked(name: str) -> ComparisonDocument:
    """All answers to a question."""
    return compare({**QUICK, **SLOW}[name], PLANNERS)


def check(name: str) -> None:
    """Compares all answers that can be executed with those of ``auto`` and ``exact``."""
    entries = {entry.planner: entry for entry in asked(name).planners}
    assert set(entries) == set(PLANNERS)
    seconds = {
        planner: entry.iteration_time_s
        for planner, entry in entries.items()
        if entry.executable and entry.iteration_time_s is not None
    }
    for planner, theirs in seconds.items():
        assert seconds["auto"] <= theirs * (1 + 1e-9), planner
        assert entries[planner].lacked_by_exact or seconds["exact"] <= theirs * (1 + 1e-9), planner


@pytest.mark.parametrize("name", QUICK)
def test_nobody_is_faster(name: str) -> None:
    check(name)


@pytest.mark.slow
@pytest.mark.parametrize("name", SLOW)
def test_nobody_is_faster_on_the_others(name: str) -> None:
    check(name)
