from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from cost_cases import MODELS, dense_layer, island_of, job_of, model_of, moe_layer, stages, whole
from hypothesis import given
from hypothesis import strategies as st

from tangram.basis import CostBasis, Override
from tangram.cluster.spec import Portion
from tangram.cost.atoms import COMPONENTS, atom_costs
from tangram.cost.constants import stack_constants
from tangram.cost.stage import MEMORY_ITEMS, recompute_order, stage_cost
from tangram.cost.types import StageConfig, StageConfigs
from tangram.errors import InputError, InternalError
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
    best = sum(size for item, size in cost.memory.items() if item != "margin")
    assert cost.best_peak_bytes == best
    states = sum(cost.memory[item] for item in ("weights", "gradients", "optimizer"))
    assert cost.state_bytes == states
    ratio = stack_constants(stack).upper_memory_ratio
    assert cost.peak_bytes == pytest.approx(states + ratio * (best - states), rel=1e-15)
    assert 1.05 * (best - states) < cost.peak_bytes - states < 1.5 * (best - states)


@pytest.mark.parametrize("frac", [0.0, 0.25, 1.0])
def test_a_margin_of_the_user_comes_before_the_stacks(frac: float) -> None:
    model, job = model_of(dense_layer()), job_of()
    override = Override("stack", "tangram-runtime", "upper_memory_ratio", 1.5)
    overridden = replace(job, basis=replace(job.basis, overrides=(override,)))
    args = (model, cut_atoms(model), Portion(island_of(), 1, 1), StageConfig(dp=1, tp=1), 1, 4, 1)
    usual = stage_cost(*args, [False] * 3, job)
    fitted = stage_cost(*args, [False] * 3, overridden)
    chosen = replace(overridden, basis=replace(overridden.basis, memory_margin_frac=frac))
    cost = stage_cost(*args, [False] * 3, chosen)
    for one, margin in ((fitted, 0.5), (cost, frac)):
        estimated = sum(usual.memory[item] for item in ("activations", "workspace", "reserve"))
        assert one.memory["margin"] == pytest.approx(margin * estimated, rel=1e-15)
        # Nothing else depends on it.
        assert one.best_peak_bytes == usual.best_peak_bytes
        assert (one.forward_s, one.backward_s, one.step_s) == (
            usual.forward_s,
            usual.backward_s,
            usual.step_s,
        )


@given(stages(), st.integers(1, 9))
def test_more_in_flight_adds_activations_with_their_margin(stage: Stage, in_flight: int) -> None:
    model, portion, config, micro_batch, job = stage
    atoms = cut_atoms(model)
    args, flags = (model, atoms, portion, config, micro_batch, 9), [False] * len(atoms)
    one, more = (stage_cost(*args, held, flags, job) for held in (1, in_flight))
    assert one.holding(in_flight) == more
    added = (in_flight - 1) * one.activation_bytes * one.upper_ratio
    assert more.peak_bytes - one.peak_bytes == pytest.approx(added, abs=1e-6 * one.peak_bytes)


@pytest.mark.parametrize("frac", [-0.01, 1.01, float("nan"), float("inf")])
def test_a_margin_out_of_range_is_refused(frac: float) -> None:
    with pytest.raises(InputError, match="memory margin") as caught:
        CostBasis(memory_margin_frac=frac)
    assert caught.value.where == "--memory-margin"


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
