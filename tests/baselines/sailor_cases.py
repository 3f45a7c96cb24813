"""Questions for Sailor: its own published files, and tiny ones made up."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from tangram.baselines.sailor.files import SailorFiles, published_problem
from tangram.baselines.sailor.profile import (
    Endpoint,
    GpuProfile,
    LayerSizes,
    LayerTimes,
    Line,
    Link,
    SailorPlan,
    SailorProblem,
    Zone,
)

MEMORY_GIB = {"A100-40": 40.0, "V100-16": 16.0, "GH-96": 96.0}


def _folder() -> Path:
    root = os.environ.get("TANGRAM_SHARED") or Path(__file__).parents[2].parent / "shared"
    return Path(root) / "data" / "profiles" / "sailor"


needs_sailor_files = pytest.mark.skipif(
    not _folder().is_dir(), reason="Sailor's published profiles (TANGRAM_SHARED) are not there"
)


@cache
def _json(path: str) -> Any:
    return json.loads((_folder() / path).read_text(encoding="utf-8"))


def published(
    model: str,
    zones: Mapping[str, Mapping[str, int]],
    global_batch: int,
    *,
    defects: bool = True,
    of_simulator: bool = False,
) -> SailorProblem:
    """A question on Sailor's files: those of its planner, or the profiles of its simulator."""
    gpus = sorted({gpu for counts in zones.values() for gpu in counts})
    if of_simulator:
        profiles = {gpu: _json("simulator_profiles.json")[model][gpu] for gpu in gpus}
    else:
        profiles = {gpu: _json(f"layer_profiles/{model}/{gpu}/profile.json") for gpu in gpus}
    network = _json("network/multizone_bandwidths_het.json")
    files = SailorFiles(profiles, _json("llm_info.json")[model], network, MEMORY_GIB)
    return published_problem(files, zones, global_batch, defects=defects)


def described(problem: SailorProblem, plan: SailorPlan) -> str:
    """A plan as the table of results writes it: layers, replicas x type / tp."""
    stages = []
    for stage in plan.stages:
        runs = [
            f"{run.replicas}x{problem.gpus[run.endpoint.gpu].name.partition('-')[0]}/{run.endpoint.lanes}"
            for run in stage.runs
        ]
        stages.append(f"{stage.stop - stage.start}: " + " + ".join(runs))
    return f"P{len(stages)} m{plan.micro_batch} D{plan.dp}: " + ", ".join(stages)


class Lines:
    """A network given link by link; the same both ways."""

    def __init__(self, lines: Mapping[tuple[int, int], Line]) -> None:
        self.lines = lines

    def link(self, sender: Endpoint, receiver: Endpoint) -> Link:
        return self.lines[min(sender.gpu, receiver.gpu), max(sender.gpu, receiver.gpu)]


def tiny_gpu(
    name: str, layer_s: tuple[float, ...], *, capacity_bytes: float = 1e9, scaling: float = 0.6
) -> GpuProfile:
    """A type with these layers on one GPU; twice the GPUs take ``scaling`` of the time."""
    times, sizes = {}, {}
    for tp in (1, 2):
        share = scaling if tp == 2 else 1.0
        for micro_batch in (1, 2):
            whole = tuple(share * micro_batch * seconds for seconds in layer_s)
            thirds = tuple(seconds / 3 for seconds in whole)
            rest = tuple(seconds - third for seconds, third in zip(whole, thirds, strict=True))
            times[micro_batch, tp] = LayerTimes(thirds, rest, (0.01,) * len(layer_s))
        sizes[tp] = LayerSizes((1e6 / tp,) * len(layer_s), (2e7 / tp,) * len(layer_s), 1e7)
    return GpuProfile(name, capacity_bytes, 18.0, times, sizes)


def tiny_problem(
    gpus: tuple[GpuProfile, ...],
    counts: tuple[int, ...],
    global_batch: int,
    lines: Mapping[tuple[int, int], Line] | None = None,
) -> SailorProblem:
    """A question in one zone."""
    num_layers = len(next(iter(gpus[0].times.values())).forward_s)
    kinds = range(len(gpus))
    same = {(a, b): Line(1e-4, 1e9) for a in kinds for b in kinds if a <= b}
    return SailorProblem(
        gpus=gpus,
        network=Lines(lines or same),
        gradient_bytes=(4e6,) * num_layers,
        output_bytes=(1e6,) * num_layers,
        zones=(Zone("here", "here", counts),),
        global_batch=global_batch,
    )
