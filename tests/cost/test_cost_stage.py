from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from cost_cases import MODELS, dense_layer, island_of, job_of, model_of, moe_layer, stages, whole
from hypothesis import given
from hypothesis import strategies as st

from tangram.cluster.spec import Portion
from tangram.cost.atoms import COMPONENTS, atom_costs
from tangram.cost.constants import stack_constants
from tangram.cost.stage import MEMORY_ITEMS, recompute_order, stage_cost, upper_peak_bytes
from tangram.cost.types import StageConfig, StageConfigs
from tangram.errors import InternalError
from tangram.job import Job
from tangram.model.atoms import cut_atoms
from tangram.model.spec import ModelSpec

Stage = tuple[ModelSpec, Portion, StageConfig, int, Job]


@given(stages(), st.data())
def test_a_stage_is_the_sum_of_its_atoms(stage: Stage, data: st.DataObject) -> None:
    model, portion, config, micro_batch, job = stage
    atoms = cut_atoms(model)
    start = data.draw(st.integers(0, len(atoms) - 1))
    stop = data.draw(st.integers(start + 1, len(atoms)))
    flags = np.array(data.draw(st.lists(st.booleans(), min_size=stop - start, max_size=stop - start)))
    got = stage_cost(model, atoms[start:stop], portion, config, micro_batch, 4, 3, flags.tolist(), job)
    costs = atom_costs(model, atoms[start:stop], portion, StageConfigs.of([config]), micro_batch, job)
    assert got.forward_s == pytest.approx(costs.forward_s.sum())
    assert got.backward_s == pytest.approx(costs.backward_s.sum() + costs.recompute_s[flags].sum())
    assert got.step_s == pytest.approx(costs.step_s.sum() - costs.tied_step_s[0])
    assert tuple(got.memory) == MEMORY_ITEMS
    kept = np.where(flags, costs.recomputed_stored_bytes[:, 0], costs.stored_bytes[:, 0]).sum()
    assert got.activation_bytes == pytest.approx(kept)
    assert got.memory["activations"] == pytest.approx(3 * kept)
    rerun = costs.recompute_workspace_bytes[flags].max() if flags.any() else 0.0
    assert got.memory["workspace"] == max(costs.workspace_bytes.max(), rerun)
    states = sum(got.memory[item] for item in ("weights", "gradients", "optimizer"))
    assert states == pytest.approx(costs.state_bytes.sum() - costs.tied_bytes[0])
    assert got.peak_bytes == sum(got.memory.values())
    assert got.capacity_bytes == portion.island.gpu.usable_memory_bytes


@pytest.mark.parametrize("stack", ["tangram-runtime", "megatron-deepspeed-2022"])
def test_the_upper_estimate_is_that_of_the_jobs_stack(stack: str) -> None:
    model, job = model_of(dense_layer()), job_of()
    job = replace(job, basis=replace(job.basis, stack=stack))
    args = (model, cut_atoms(model), Portion(island_of(), 1, 1), StageConfig(dp=1, tp=1), 1, 4, 1)
    cost = stage_cost(*args, [False] * 3, job)
    assert upper_peak_bytes(cost, job) == cost.peak_bytes * stack_constants(stack).upper_memory_ratio
    assert 1.05 * cost.peak_bytes < upper_peak_bytes(cost, job) < 1.2 * cost.peak_bytes


@given(stages())
def test_the_parts_of_a_stage_add_up(stage: Stage) -> None:
    model, portion, config, micro_batch, job = stage
    atoms = cut_atoms(model)
    flags = [i % 2 == 1 for i in range(len(atoms))]
    got = stage_cost(model, atoms, portion, config, micro_batch, 1, 1, flags, job)
    assert set(got.components) == {*COMPONENTS, "recompute"}
    parts = sum(got.components[name] for name in (*COMPONENTS[:9], "recompute"))
    assert parts == pytest.approx(got.time_s)
    assert sum(got.components[name] for name in COMPONENTS[9:]) == pytest.approx(got.step_s)
    assert all(value >= 0 for value in got.components.values())
    assert all(value >= 0 for value in got.memory.values())


def test_no_more_in_flight_than_micro_batches() -> None:
    model = MODELS[0]
    atoms = cut_atoms(model)
    args = (model, atoms, whole(island_of()), StageConfig(8, 2, zero=1), 16)
    few = stage_cost(*args, 2, 8, [False] * len(atoms), job_of())
    assert few.memory["activations"] == 2 * few.activation_bytes


def test_a_tied_matrix_is_held_once_where_both_ends_meet() -> None:
    layers = [dense_layer()] * 2
    tied, free = model_of(*layers, tied=True), model_of(*layers)
    config, portion, job = StageConfig(1, 1), Portion(island_of(), 1, 1), job_of()
    atoms = cut_atoms(tied)
    together = stage_cost(tied, atoms, portion, config, 1, 1, 1, [False] * 4, job)
    apart = stage_cost(free, cut_atoms(free), portion, config, 1, 1, 1, [False] * 4, job)
    matrix = 5120 - 5120 % 128  # 5000 rows, padded
    assert apart.memory["weights"] - together.memory["weights"] == 2 * 1024 * matrix
    assert apart.memory["optimizer"] - together.memory["optimizer"] == 12 * 1024 * matrix
    assert together.step_s < apart.step_s
    assert together.time_s == apart.time_s
    halves = [stage_cost(tied, a, portion, config, 1, 1, 1, [False] * 2, job) for a in (atoms[:2], atoms[2:])]
    assert sum(h.memory["weights"] for h in halves) == apart.memory["weights"]


def test_recompute_order_saves_most_per_second_first() -> None:
    model = model_of(moe_layer(), dense_layer(), moe_layer(), dense_layer())
    atoms = cut_atoms(model)
    costs = atom_costs(
        model, atoms, whole(island_of()), StageConfigs.of([StageConfig(16, 1, ep=4)]), 16, job_of()
    )
    ends = [atom.is_embedding or atom.is_head for atom in atoms]
    order = recompute_order(costs, 0, [not end for end in ends])
    saved = (costs.stored_bytes - costs.recomputed_stored_bytes)[:, 0] / costs.recompute_s[:, 0]
    assert sorted(order) == [1, 2, 3, 4]
    assert order == sorted(order, key=lambda i: (-saved[i], i))
    assert order in ([1, 3, 2, 4], [2, 4, 1, 3])
    assert sorted(recompute_order(costs, 0)) == list(range(6))


def test_an_impossible_stage_is_our_own_mistake() -> None:
    model = MODELS[0]
    atoms = cut_atoms(model)
    portion = whole(island_of())
    with pytest.raises(InternalError, match="recompute flags"):
        stage_cost(model, atoms, portion, StageConfig(16, 1), 16, 1, 1, [False], job_of())
    with pytest.raises(InternalError, match="no configuration"):
        stage_cost(model, atoms, portion, StageConfig(8, 1), 16, 1, 1, [False] * len(atoms), job_of())
    with pytest.raises(InternalError, match="no configuration"):
        stage_cost(model, atoms, portion, StageConfig(16, 1), 8, 1, 1, [False] * len(atoms), job_of())
