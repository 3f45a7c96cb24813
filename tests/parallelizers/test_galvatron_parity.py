"""The knapsack on Galvatron's own profile and accounting finds the strategies that its program ships.

Llama2-7B on 8 GPUs of 36 GB, 16 samples of 2,048 tokens, one micro-batch, one stage: the file shipped beside
the profile. The accounting is that of the program (main, June 2026): states of 16 bytes per parameter, of
which a share ``1 / D + 0.003`` stays with zero 3 and 7/8 of that and 1/8 with zero 2; gradients beside
backward at a measured slowdown, one gather for zero 3; measured collectives; a fifth of the memory kept free,
and what embedding and head take (split over 2 ranks by sequence, zero 3) set aside.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from math import ceil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tangram.parallelizers.galvatron.knapsack import Chain, Menu

FOLDER = (
    Path(os.environ.get("TANGRAM_SHARED") or Path(__file__).parents[2].parent / "shared")
    / "data/profiles/galvatron/main"
)
SHIPPED = "galvatron_config_llama2-7b_1nodes_8gpus_per_node_36GB_bf16.json"

pytestmark = pytest.mark.skipif(
    not FOLDER.is_dir(), reason="Galvatron's profiles (TANGRAM_SHARED) are not there"
)

NUM_GPUS, NUM_LAYERS, SAMPLES, TOKENS, HIDDEN = 8, 32, 16, 2048, 4096
LIMIT_MB, KEPT_FREE, CONTEXT_MB = 36 * 1024, 0.2, 1024
BEST_MS = 16 / 14.73 * 1e3
"""Of a step, as the program estimates its own plan: 14.73 samples/s."""


def data(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((FOLDER / name).read_text(encoding="utf-8"))
    return found


@dataclass(frozen=True)
class Strategy:
    """Degree of tp (or of Ulysses), zero, and whether a layer is recomputed."""

    degree: int
    ulysses: bool
    zero: int
    again: bool

    @property
    def shards(self) -> int:
        """Ranks that share states."""
        return NUM_GPUS if self.ulysses else NUM_GPUS // self.degree

    @property
    def samples(self) -> int:
        """Of a micro-batch on a rank."""
        return SAMPLES * self.degree // NUM_GPUS


STRATEGIES = [
    Strategy(degree, ulysses, zero, again)
    for degree in (1, 2, 4, 8)
    for ulysses in ((False, True) if degree > 1 else (False,))
    for zero in (2, 3)
    for again in (False, True)
    if ulysses or degree < 8 or zero == 2
]


def shard(zero: int, ranks: int) -> float:
    """Share of the states that a rank holds, one micro-batch per step."""
    left = 1 / ranks + 0.003
    return 1.0 if ranks == 1 else left if zero == 3 else 7 / 8 * left + 1 / 8


def memory_mb(s: Strategy) -> float:
    layer = data("memory_profiling_bf16_llama2-7b_all.json")["layertype_0_sp"][str(TOKENS)]
    params = layer["parameter_size"] / (1 if s.ulysses else s.degree)
    kept = layer["tp_activation_per_bsz_dict"]
    activations = kept["checkpoint"] / s.degree if s.again else kept[str(s.degree)]
    return float(4 * params * shard(s.zero, s.shards) + activations * s.samples)


def time_ms(s: Strategy) -> float:
    """Forward, backward, gradients and collectives of one layer."""
    timed = data("computation_profiling_bf16_llama2-7b_all.json")
    points = [(b, b * timed[f"layertype_0_bsz{b}_seq{TOKENS}"]) for b in range(1, 13)]
    slope, intercept = np.polyfit(*zip(*points, strict=True), 1)
    forward = slope * (s.samples / s.degree) + intercept
    backward = forward * (3 if s.again else 2)
    rates, slowdown = data("allreduce_bandwidth_1nodes_8gpus_per_node.json"), data("overlap_coefficient.json")
    layer = data("memory_profiling_bf16_llama2-7b_all.json")["layertype_0_sp"][str(TOKENS)]
    params = layer["parameter_size"] / (1 if s.ulysses else s.degree)
    moved, q = 0.0, 0.0
    if s.shards > 1:
        consecutive = int(s.degree == 1 or s.shards == NUM_GPUS)
        q = 1 / rates[f"allreduce_size_{s.shards}_consec_{consecutive}"]
        moved = (s.shards - 1) / s.shards * params  # Twice that, in half the width.
    o = slowdown["overlap_coe"]
    beside, busy = moved * q * o, backward * o
    backward = busy + (moved - busy / (q * o)) * q if beside > busy else beside + (backward - beside / o)
    gathered = moved / 2 * q if s.zero == 3 else 0.0
    return float(forward + backward + gathered + collectives_ms(s))


def collectives_ms(s: Strategy) -> float:
    if s.degree == 1:
        return 0.0
    times = data("sp_time_1nodes_8gpus_per_node.json")
    size = s.samples * TOKENS * HIDDEN * 2 // 2**20
    if s.ulysses:
        size //= s.degree
    name = "all2all" if s.ulysses else "allreduce"
    each = times[f"{name}_size_{s.degree}_{size}MB_time"]
    return float((4 * each if s.ulysses else 6 * each / 2) * (1.5 if s.again else 1.0))


def budget_mb() -> float:
    """What is left for layers."""
    ends = data("memory_profiling_bf16_llama2-7b_all.json")["other_memory_pp_off_sp"][str(TOKENS)]
    held = ends["model_states"]["1"] * shard(3, NUM_GPUS) + ends["activation"]["2"] * (SAMPLES // 4)
    return float(LIMIT_MB * (1 - KEPT_FREE) - held - CONTEXT_MB)


def test_the_shipped_strategies() -> None:
    memory, times = (np.array([f(s) for s in STRATEGIES]) for f in (memory_mb, time_ms))
    degrees = sorted({s.degree for s in STRATEGIES})
    sent_mb = SAMPLES // NUM_GPUS * TOKENS * HIDDEN * 2 / 2**20
    change = [[0.0 if a == b else sent_mb * max(a, b) / 150 for a in degrees] for b in degrees]
    menu = Menu(
        strategies=(tuple(range(len(STRATEGIES))),),
        layout=np.array([degrees.index(s.degree) for s in STRATEGIES]),
        value_s=times[None, :],
        steps=np.array([[ceil(size - memory.min()) for size in memory]]),
        exchange_s=np.array([change]),
    )
    room = int(budget_mb() - NUM_LAYERS * memory.min())
    chain = Chain(menu, (0,) * NUM_LAYERS, room)
    chosen = [STRATEGIES[idx] for idx in chain.strategies(NUM_LAYERS, room)]
    shipped = data(SHIPPED)
    assert sorted(int(s.again) for s in chosen) == sorted(map(int, shipped["checkpoint"].split(",")))
    assert {s.degree for s in chosen} == set(map(int, shipped["tp_sizes_enc"].split(",")))
    assert {int(s.zero == 3) for s in chosen} == set(map(int, shipped["dp_types_enc"].split(",")))
    # Of layers alone; embedding and head are a few percent of a step.
    assert chain.best(NUM_LAYERS, room) == pytest.approx(BEST_MS, rel=0.03)
