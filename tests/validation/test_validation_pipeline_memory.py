"""How many micro-batches and chunks of layers a stage holds at its peak, and what upper estimates add."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from row_samples import run_of

from tangram.cost.batch import BatchCosts
from tangram.cost.constants import stack_constants
from tangram.validation.pipelines import RunBatch, peak_bytes, peak_parts, predict_batch
from tangram.validation.run import Attention, MemoryRanks, Run
from tangram.validation.slots import Shelves


def costs_of(run: Run) -> tuple[RunBatch, BatchCosts]:
    batch = RunBatch.of([run])
    return batch, batch.stages.costs(Shelves(batch, []).constants([]))


def layers_held(run: Run, rank: MemoryRanks) -> float:
    """Layers' worth of activations that the peak of a rank holds, found by doubling them."""
    run = replace(run, measured=replace(run.measured, memory_ranks=rank))
    batch, costs = costs_of(run)
    more = replace(costs, layer_activation_bytes=2 * costs.layer_activation_bytes)
    extra = peak_bytes(batch, more) - peak_bytes(batch, costs)
    stage = 0 if rank is MemoryRanks.FIRST_STAGE else run.degrees.pp - 1
    column = batch.column[stage]
    per_layer = costs.layer_activation_bytes[column] / batch.stages.counts[2:, column].sum()
    return float(extra[0] / per_layer)


@pytest.mark.parametrize(
    ("cells", "first", "last"),
    [
        ({}, 2 * 4, 4),  # 8 layers on two stages, one micro-batch per stage behind
        ({"vpp": 2}, 5 * 2, 3 * 2),  # 2 (pp - 1) + (v - 1) pp + 1 chunks of two layers
        ({"vpp": 2, "chunk_group": 3}, 6 * 2, 4 * 2),
        ({"vpp": 2, "global_batch": 8}, 2 * 2, 2 * 2),  # one micro-batch: both chunks of it, once
        # A chunk of three layers in front of one of one: the last chunk is held once.
        ({"vpp": 2, "n_layers": 6, "layers_per_stage": "3/3"}, 4 * 2 + 1, 2 * 2 + 1),
        # All layers in the first chunk, only the head in the last.
        ({"vpp": 2, "n_layers": 3, "layers_per_stage": "2/1"}, 5, 2),
        # A layer for multi-token prediction belongs to the last chunk.
        ({"vpp": 2, "mtp_layers": 1}, 5 * 2, 2 * 2 + 3),
    ],
)
def test_layers_held(tmp_path: Path, cells: dict[str, object], first: float, last: float) -> None:
    run = run_of(tmp_path, **cells)
    held = [layers_held(run, rank) for rank in (MemoryRanks.FIRST_STAGE, MemoryRanks.LAST_STAGE)]
    assert held == pytest.approx([first, last])


def peaks(run: Run) -> tuple[float, float]:
    batch, _ = costs_of(run)
    found = predict_batch(batch, Shelves(batch, []).constants([]))
    return float(found.peak_bytes[0]), float(found.upper_peak_bytes[0])


@pytest.mark.parametrize("stack", ["tangram-runtime", "megatron-2025", "megatron-deepspeed-2022"])
def test_the_upper_estimate_is_a_ratio_of_the_stack(tmp_path: Path, stack: str) -> None:
    run = run_of(tmp_path, stack=stack, attention="flash", memory_ranks="first-stage")
    best, upper = peaks(run)
    batch, costs = costs_of(run)
    states = peak_parts(batch, costs)[0][0]
    first = batch.column[batch.first_of_run[0]]
    counted = costs.weight_bytes + costs.gradient_bytes + costs.optimizer_bytes
    assert states == counted[first]
    assert upper == pytest.approx(states + stack_constants(stack).upper_memory_ratio * (best - states))
    assert upper > best


def test_an_attention_kernel_that_nobody_states_may_keep_scores(tmp_path: Path) -> None:
    run = run_of(tmp_path, stack="megatron-2025", vocab=500_000, dropout=True)
    assert run.software.attention is Attention.UNKNOWN
    best, upper = peaks(run)
    flash, _ = peaks(replace(run, software=replace(run.software, attention=Attention.FLASH)))
    unfused, _ = peaks(replace(run, software=replace(run.software, attention=Attention.UNFUSED)))
    ratio = stack_constants("megatron-2025").upper_memory_ratio
    assert best == flash < unfused
    assert unfused < upper < 1.03 * ratio * unfused


def test_replicas_of_shards_hold_experts_in_full(tmp_path: Path) -> None:
    """Two instances of a distributed optimizer on four ranks, of which two hold each expert."""
    cells = {"experts": 8, "top_k": 1, "ep": 2, "expert_tp": 2, "dp": 4, "pp": 2, "tp": 2}
    states = []
    for ranks in (None, 2):
        batch, costs = costs_of(run_of(tmp_path, **cells, shard_ranks=ranks or ""))
        setting = batch.stages.setting
        states.append((setting.data_ranks[0], setting.expert_data_ranks[0], costs.optimizer_bytes[0]))
    assert states[0][:2] == (4, 2)
    assert states[1][:2] == (2, 1)
    assert states[1][2] == pytest.approx(2 * states[0][2])


def test_offloaded_layers_leave_two_on_the_gpu(tmp_path: Path) -> None:
    _, kept = costs_of(run_of(tmp_path))
    _, some = costs_of(run_of(tmp_path, offloaded_layers=4))
    _, away = costs_of(run_of(tmp_path, offloaded_layers=8))
    assert np.array_equal(some.layer_activation_bytes, kept.layer_activation_bytes)
    assert (away.layer_activation_bytes == 0).all()
    assert (away.workspace_bytes >= kept.workspace_bytes).all()


def test_only_devices_count_context_and_communicators(tmp_path: Path) -> None:
    batch, costs = costs_of(run_of(tmp_path, memory_ranks="first-stage"))
    device, _ = costs_of(run_of(tmp_path, memory_ranks="first-stage", memory_kind="device"))
    more = peak_bytes(device, costs) - peak_bytes(batch, costs)
    assert more[0] == pytest.approx(costs.reserve_bytes[0] - costs.library_bytes[0])
    assert costs.library_bytes[0] == 2 * 8_519_680
