"""The same bytes: for any hash seed, any number of workers, any order of the nodes, and any time."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest

import tangram
from tangram.cluster.readers import load_cluster
from tangram.cluster.spec import Cluster
from tangram.job import Job, Pins, Precision
from tangram.model.load import load_model, trim_layers
from tangram.plan.json_io import to_json
from tangram.planner.options import PlanOptions

CLUSTERS = Path(__file__).parents[2] / "examples" / "clusters"
HASH_SEEDS = ("0", "1", "2", "77", "4242")


def question(model: str, num_layers: int, micro_batch: int | None = None) -> tuple[tangram.ModelSpec, Job]:
    job = Job(32, 1024, Precision.FP16, pins=Pins(micro_batch=micro_batch))
    return trim_layers(load_model(model), num_layers), job


@cache
def example(name: str) -> Cluster:
    return load_cluster(str(CLUSTERS / f"{name}.yaml"))


def plan_text(
    model: str,
    num_layers: int,
    cluster: Cluster,
    parallelizers: Sequence[str] = ("exact",),
    *,
    workers: int = 1,
    micro_batch: int | None = None,
) -> str:
    spec, job = question(model, num_layers, micro_batch)
    options = PlanOptions(parallelizers=tuple(parallelizers), workers=workers)
    return to_json(tangram.plan(spec, cluster, job, options))


PROGRAM = """
import sys
sys.path[:0] = sys.argv[1:]
from test_determinism import example, plan_text
sys.stdout.write(plan_text("llama-3-8b", 8, example("c3-four-islands")))
sys.stdout.write(plan_text("gshard-moe-2.4b", 6, example("c1-v100-16"), ("exact", "uniform"), micro_batch=8))
"""


def test_same_bytes_for_every_hash_seed() -> None:
    texts = set()
    for hash_seed in HASH_SEEDS:
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM, str(Path(__file__).parent)],
            capture_output=True,
            text=True,
            check=True,
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
        )
        assert done.stderr == ""
        texts.add(done.stdout)
    assert len(texts) == 1
    (text,) = texts
    assert text.count('"tangram-plan"') == 2


def test_same_bytes_for_every_number_of_workers() -> None:
    """One worker asks in this process, two and four in spawned ones."""
    texts = {
        workers: plan_text(
            "gpt3-1.3b", 6, example("c3-two-islands"), ("uniform",), workers=workers, micro_batch=8
        )
        for workers in (1, 2, 4)
    }
    assert texts[2] == texts[1]
    assert texts[4] == texts[1]


@pytest.mark.slow
def test_same_bytes_for_every_number_of_workers_and_all_micro_batches() -> None:
    """Several tables one after the other in one pool, beside a parallelizer that needs none."""
    texts = {
        plan_text("gpt3-1.3b", 4, example("c3-two-islands"), ("exact", "uniform"), workers=workers)
        for workers in (0, 1, 2, 4)
    }
    assert len(texts) == 1


def test_workers_do_nothing_to_the_exact_table() -> None:
    texts = {plan_text("llama-3-8b", 4, example("c3-two-islands"), workers=workers) for workers in (0, 1, 3)}
    assert len(texts) == 1


@pytest.mark.parametrize(
    "name", ["a100-v100-mixed", "c1-t4-v100-8-8", "c1-v100-16", "c2-h100-a100", "c3-four-islands"]
)
def test_same_bytes_for_every_order_of_nodes(name: str) -> None:
    """The file's order of nodes is in nothing that a plan says."""
    cluster = example(name)
    texts = {plan_text("llama-3-8b", 8, cluster)}
    for seed in range(3):
        nodes = list(cluster.nodes)
        random.Random(seed).shuffle(nodes)
        texts.add(plan_text("llama-3-8b", 8, replace(cluster, nodes=tuple(nodes))))
    assert len(texts) == 1


def test_same_bytes_for_every_order_of_nodes_in_the_file(tmp_path: Path) -> None:
    """From the file on, entries of nodes in any order."""
    lines = [
        "  - {name: a, count: 2, gpu: A100-40GB-SXM, gpus: 2, intra: nvlink, nics: 25Gbit}",
        "  - {name: b, count: 1, gpu: V100-16GB-SXM2, gpus: 4, intra: nvlink, nics: 25Gbit}",
        "  - {name: c, count: 1, gpu: T4, gpus: 4, intra: pcie, nics: 10Gbit}",
    ]
    links = [
        "    - {between: [a, b], bandwidth: 10Gbit, latency: 20us}",
        "    - {between: [b, c], bandwidth: 5Gbit, latency: 40us}",
    ]
    texts = set()
    for order in ((0, 1, 2), (2, 0, 1), (1, 2, 0)):
        file = tmp_path / f"cluster-{order[0]}" / "small.yaml"
        file.parent.mkdir()
        entries = [lines[i] for i in order]
        text = ["name: small", "nodes:", *entries, "network:", "  default: 25Gbit", "  links:", *links]
        file.write_text("\n".join(text) + "\n")
        texts.add(plan_text("gpt3-1.3b", 6, load_cluster(str(file))))
    assert len(texts) == 1


def test_planning_again_changes_nothing() -> None:
    """No state is left behind: neither by the same question nor by another one in between."""
    first = plan_text("llama-3-8b", 6, example("c3-three-islands"))
    plan_text("gshard-moe-2.4b", 4, example("c1-t4-16"))
    assert plan_text("llama-3-8b", 6, example("c3-three-islands")) == first
