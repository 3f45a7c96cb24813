"""Pipelines on Aceso's accounting: an invented profile, the published ones, and an enumeration."""

from __future__ import annotations

import csv
import json
import os
from collections.abc import Iterator
from functools import cache
from itertools import combinations, product
from pathlib import Path

import pytest

from tangram.parallelizers.aceso.accounting import AcesoSpace
from tangram.parallelizers.aceso.operators import BATCHES, Operators, Profile
from tangram.parallelizers.aceso.space import Judged, Pipeline, Space, judge

LAYERS = {"1_3B": 24, "2_6B": 32, "6_7B": 32, "13B": 40}
FOLDERS = {"V100-32": "eurosys-v100-32gb", "mini-4gpu": "miniset-4gpu"}
LIMITS_MIB = {"V100-32": 28000.0, "mini-4gpu": 12000.0}


def shared_folder() -> Path:
    root = os.environ.get("TANGRAM_SHARED") or Path(__file__).parents[2].parent / "shared"
    return Path(root) / "data" / "profiles" / "aceso-v100"


needs_shared = pytest.mark.skipif(
    not shared_folder().is_dir(), reason="the shared profiles (TANGRAM_SHARED) are not there"
)


@cache
def published_profile(gpu: str, size: str) -> Profile:
    """The profile of a GPT model."""
    folder = shared_folder() / FOLDERS[gpu]
    return Profile.read({p.name: p.read_text(encoding="utf-8") for p in folder.glob("*.csv")}, f"gpt_{size}")


def published_space(size: str, num_gpus: int, gpu: str = "V100-32", batch: int = 1024) -> AcesoSpace:
    """The space of a model on V100 nodes of eight GPUs, or on the smaller node."""
    per_node = 8 if gpu == "V100-32" else 4
    return AcesoSpace(published_profile(gpu, size), LAYERS[size], num_gpus, per_node, batch, LIMITS_MIB[gpu])


def stored_plans() -> list[tuple[dict[str, str], dict[str, object]]]:
    """Rows of the summary of stored plans that come with a plan, and these plans."""
    folder = shared_folder() / "plans-rerun"
    rows = list(csv.DictReader((folder / "summary.csv").read_text(encoding="utf-8").splitlines()))
    return [
        (row, json.loads((folder / row["plan_file"]).read_text(encoding="utf-8")))
        for row in rows
        if row["plan_file"]
    ]


def invented_profile(per_node_gb_per_s: float = 20.0) -> Profile:
    """Operators whose figures differ from row to row, with diminishing returns of tp and of small batches."""
    operators = {}
    for batch, tp in product(BATCHES, (1, 2, 4)):
        share = batch / tp
        numbers = range(16)
        time = tuple(0.2 + (0.5 + 0.13 * (7 * i % 5)) * share for i in numbers)
        kept = tuple((10.0 + 9 * (5 * i % 7)) * share for i in numbers)
        operators[batch, tp] = Operators(
            forward_ms=time,
            backward_ms=tuple(1.9 * t for t in time),
            input_mib=tuple((4.0 + 3 * (3 * i % 4)) * batch for i in numbers),
            output_mib=tuple((4.0 + 3 * (3 * (i + 1) % 4)) * batch if i < 15 else 0.0 for i in numbers),
            weights_mib=tuple((2.0 + (i % 3)) / tp for i in numbers),
            activations_mib=kept,
            kept_mib=tuple(mib * {4: 0.0, 5: 1.5}.get(i, 1.0) for i, mib in enumerate(kept)),
            forward_reserved_mib=tuple(float(i % 4) for i in numbers),
            backward_reserved_mib=tuple(float(i % 6) for i in numbers),
        )
    return Profile(operators, (per_node_gb_per_s,) * 11, (per_node_gb_per_s / 8,) * 11)


def all_pipelines(space: Space, max_stages: int) -> Iterator[Pipeline]:
    """Every pipeline of a space."""
    for micro_batch in space.micro_batches:
        for number in range(1, max_stages + 1):
            for sizes in product(space.sizes, repeat=number):
                if sum(sizes) != space.num_gpus or not space.lays_out(sizes):
                    continue
                for degrees in product(*(space.degrees(micro_batch, size) for size in sizes)):
                    for cuts in combinations(range(1, space.num_atoms), number - 1):
                        yield Pipeline(micro_batch, (*cuts, space.num_atoms), degrees)


def brute_force(space: Space, max_stages: int) -> Judged | None:
    """The best pipeline that fits."""
    fitting = (j for p in all_pipelines(space, max_stages) if (j := judge(space, p)).over == 0)
    return min(fitting, key=lambda j: j.iteration, default=None)
