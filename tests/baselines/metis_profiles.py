"""Profiles for Metis: the published ones, cut to a number of layers, and small invented ones."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from tangram.baselines.metis.defects import Defects
from tangram.baselines.metis.profile import MetisProfile, Point, read_profile
from tangram.baselines.metis.question import Kind, Limits, Question

BYTES_PER_MS = 2**20  # Of one GB/s, as Metis counts.
A100, V100 = "A100", "V100"
MEMORY_GB = {A100: 40, V100: 16}
INTRA = {A100: 46.0, V100: 50.0}
INTER = 10.0
GLOBAL_BATCH = 128
ELEMENTS, LOGITS = 1024 * 4096, 1024 * 51200

_FOLDERS = {A100: "A100-40", V100: "V100-16"}
_MAX_BATCH = 4


def profile_folder(name: str) -> Path:
    """A folder of Metis's profiles; may not exist."""
    root = os.environ.get("TANGRAM_SHARED") or Path(__file__).parents[2].parent / "shared"
    return Path(root) / "data" / "profiles" / "metis" / name


def needs(name: str) -> pytest.MarkDecorator:
    """Skips a test where the folder is not there."""
    return pytest.mark.skipif(
        not profile_folder(name).is_dir(), reason=f"Metis's profiles {name} (TANGRAM_SHARED) are not there"
    )


def gpt_neo(num_layers: int, order: tuple[str, str]) -> MetisProfile:
    """GPT-Neo-2.7 as the note cuts it: embedding, the second block again and again, head.

    The A100 file of tp 2 and two samples comes first, as in the runs that the golden values are from.
    """
    files = []
    for gpu in (A100, V100):
        for path in sorted((profile_folder("sailor_metis") / "GPT-Neo-2.7" / _FOLDERS[gpu]).iterdir()):
            batch, _, tp = path.stem.removeprefix("mbs").partition("_tmp")
            if int(batch) <= _MAX_BATCH:
                data = _cut(json.loads(path.read_text(encoding="utf-8")), num_layers)
                files.append((Point(order.index(gpu), int(tp), int(batch)), data))
    first = Point(order.index(A100), 2, 2)
    files.sort(key=lambda file: (file[0] != first, file[0].kind != first.kind))
    return read_profile(files)


def _cut(data: dict[str, Any], num_layers: int) -> dict[str, Any]:
    def cut(values: list[float]) -> list[float]:
        return [values[0], *[values[2]] * (num_layers - 2), values[-1]]

    times = cut(data["execution_time"]["layer_compute_total_ms"])
    return {
        "model": {
            "parameters": {
                "parameters_per_layer_bytes": cut(data["model"]["parameters"]["parameters_per_layer_bytes"])
            }
        },
        "execution_time": {
            **data["execution_time"],
            "layer_compute_total_ms": times,
            "forward_backward_time_ms": sum(times) + 0.001,  # Zero counts as unknown.
        },
        "execution_memory": {"layer_memory_total_mb": cut(data["execution_memory"]["layer_memory_total_mb"])},
    }


def question(
    profile: MetisProfile, num_gpus: dict[str, int], defects: Defects, memory_gb: dict[str, int] = MEMORY_GB
) -> Question:
    """The cluster of the note: nodes of four GPUs."""
    kinds = tuple(
        Kind(gpu, count, memory_gb[gpu] * 1024.0, INTRA[gpu] * BYTES_PER_MS, INTER * BYTES_PER_MS)
        for gpu, count in num_gpus.items()
    )
    limits = Limits(max_tp=4, max_batch=_MAX_BATCH, variance=1.0, max_blocks=4, max_plans=10**9)
    return Question(kinds, 4, profile, GLOBAL_BATCH, ELEMENTS, LOGITS, limits, defects)
