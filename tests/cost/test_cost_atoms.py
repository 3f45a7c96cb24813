"""Properties of the table of atom costs."""

from __future__ import annotations

from dataclasses import fields, replace

import numpy as np
import pytest
from cost_cases import (
    A100,
    MODELS,
    V100,
    change_gpu,
    dense_layer,
    island_of,
    job_of,
    model_of,
    scaled,
    stages,
    whole,
)
from hypothesis import given, settings

from tangram.cluster.spec import Portion
from tangram.cost.atoms import COMPONENTS, atom_costs
from tangram.cost.configs import legal_configs
from tangram.cost.types import AtomCosts, FloatArray, StageConfig, StageConfigs
from tangram.errors import InputError
from tangram.job import Job, Precision
from tangram.model.atoms import cut_atoms, parse_granularity
from tangram.model.spec import ModelSpec

Stage = tuple[ModelSpec, Portion, StageConfig, int, Job]
STEP_PARTS = COMPONENTS[9:]
FASTER = (
    "intra_bandwidth_bytes_per_s",
    "inter_bandwidth_bytes_per_s",
    "nic_bandwidth_bytes_per_s",
)


def single(stage: Stage, portion: Portion | None = None) -> AtomCosts:
    model, own, config, micro_batch, job = stage
    return atom_costs(model, cut_atoms(model), portion or own, StageConfigs.of([config]), micro_batch, job)


def arrays(costs: AtomCosts) -> dict[str, FloatArray]:
    named = {f.name: getattr(costs, f.name) for f in fields(costs) if f.name != "components"}
    return named | dict(costs.components)


def total_s(costs: AtomCosts) -> FloatArray:
    return costs.forward_s + costs.backward_s + costs.step_s


@given(stages())
def test_nothing_is_negative_or_undefined(stage: Stage) -> None:
    costs = single(stage)
    for name, values in arrays(costs).items():
        assert np.isfinite(values).all(), name
        assert (values >= 0).all(), name
    assert (costs.forward_s > 0).all()
    assert (costs.backward_s > 0).all()
    assert (costs.recompute_workspace_bytes >= costs.workspace_bytes).all()


@given(stages())
def test_components_add_up(stage: Stage) -> None:
    costs = single(stage)
    assert tuple(costs.components) == COMPONENTS
    compute = sum(costs.components[name] for name in COMPONENTS[:9])
    assert compute == pytest.approx(costs.forward_s + costs.backward_s)
    assert sum(costs.components[name] for name in STEP_PARTS) == pytest.approx(costs.step_s)


@pytest.mark.parametrize("model", MODELS, ids=["gpt", "llama-tied", "mixed-moe", "moe-tied"])
@pytest.mark.parametrize("part", [A100, V100], ids=["a100", "v100"])
def test_a_table_says_exactly_what_its_rows_say(model: ModelSpec, part: object) -> None:
    portion = whole(island_of(part))  # type: ignore[arg-type]
    job = job_of(Precision.FP16, offload="auto")
    configs = legal_configs(model, portion, 16, job)
    assert len(configs) > 10
    atoms = cut_atoms(model)
    table = arrays(atom_costs(model, atoms, portion, StageConfigs.of(configs), 16, job))
    for i, config in enumerate(configs):
        row = arrays(atom_costs(model, atoms, portion, StageConfigs.of([config]), 16, job))
        for name, values in row.items():
            assert (table[name][..., i] == values[..., 0]).all(), (name, config)


def test_equal_atoms_cost_the_same_whatever_else_is_asked() -> None:
    model = model_of(dense_layer(), dense_layer(gated=True), dense_layer())
    atoms = cut_atoms(model)
    args = (whole(island_of()), StageConfigs.of([StageConfig(8, 2, zero=1)]), 16, job_of())
    together = atom_costs(model, atoms, *args)
    assert together.forward_s[1, 0] == together.forward_s[3, 0] != together.forward_s[2, 0]
    backwards = atom_costs(model, atoms[::-1], *args)
    for name, values in arrays(together).items():
        expected = values[::-1] if values.ndim == 2 else values
        assert (arrays(backwards)[name] == expected).all(), name


@pytest.mark.parametrize("name", ["forward_s", "backward_s", "weight_bytes", "stored_bytes"])
def test_finer_atoms_add_up_to_layers(name: str) -> None:
    model = MODELS[2]
    args = (whole(island_of()), StageConfigs.of([StageConfig(4, 4, ep=4, zero=1)]), 16, job_of())
    sums = [
        getattr(atom_costs(model, cut_atoms(model, parse_granularity(g)), *args), name).sum()
        for g in ("operator", "block", "layer", "2")
    ]
    assert sums == pytest.approx([sums[0]] * 4)


@given(stages())
def test_a_faster_link_is_never_slower(stage: Stage) -> None:
    portion = stage[1]
    before = single(stage)
    for name in FASTER:
        island = replace(portion.island, **{name: 3 * getattr(portion.island, name)})
        after = single(stage, replace(portion, island=island))
        for time in ("forward_s", "backward_s", "step_s"):
            assert (getattr(after, time) <= getattr(before, time) * (1 + 1e-12)).all(), (name, time)
        assert (after.state_bytes == before.state_bytes).all()


@given(stages())
def test_lower_latency_is_never_slower(stage: Stage) -> None:
    portion = stage[1]
    island = replace(portion.island, intra_latency_s=1e-6, inter_latency_s=2e-6)
    after, before = single(stage, replace(portion, island=island)), single(stage)
    assert (total_s(after) <= total_s(before) * (1 + 1e-12)).all()


@given(stages())
def test_a_faster_gpu_is_never_slower(stage: Stage) -> None:
    portion = stage[1]
    part = portion.island.gpu
    before = single(stage)
    changes = (
        {"achieved_flop_per_s": scaled(part.achieved_flop_per_s, 1.7)},
        {"memory_bandwidth_bytes_per_s": 1.7 * part.memory_bandwidth_bytes_per_s},
        {"pcie_bytes_per_s": 1.7 * part.pcie_bytes_per_s},
    )
    for change in changes:
        after = single(stage, replace(portion, island=change_gpu(portion.island, **change)))
        assert (total_s(after) <= total_s(before) * (1 + 1e-12)).all(), change
        recomputed = total_s(after) + after.recompute_s
        assert (recomputed <= (total_s(before) + before.recompute_s) * (1 + 1e-12)).all(), change


@given(stages())
def test_more_memory_changes_no_time_and_leaves_more(stage: Stage) -> None:
    portion = stage[1]
    usable = portion.island.gpu.usable_memory_bytes
    larger = change_gpu(portion.island, usable_memory_bytes=2 * usable)
    before, after = single(stage), single(stage, replace(portion, island=larger))
    assert (total_s(after) == total_s(before)).all()
    assert 2 * usable - after.reserve_bytes[0] > usable - before.reserve_bytes[0]


@given(stages())
def test_recomputation_never_stores_more(stage: Stage) -> None:
    model, portion, config, micro_batch, job = stage
    stage = (model, portion, replace(config, offload_activations=False), micro_batch, job)
    costs = single(stage)
    assert (costs.recomputed_stored_bytes <= costs.stored_bytes).all()
    lean = single((model, portion, replace(stage[2], selective=True), micro_batch, job))
    full = single((model, portion, replace(stage[2], selective=False), micro_batch, job))
    assert (lean.stored_bytes <= full.stored_bytes).all()


@given(stages())
def test_a_higher_zero_stage_never_holds_more_states(stage: Stage) -> None:
    model, portion, config, micro_batch, job = stage
    held = [single((model, portion, replace(config, zero=z), micro_batch, job)).state_bytes for z in range(4)]
    assert all((held[z + 1] <= held[z]).all() for z in range(3))


@pytest.mark.parametrize("dp", [2, 8])
def test_a_higher_zero_stage_needs_less_memory_in_all_on_eight_layers(dp: int) -> None:
    """Below that, ZeRO 3 can need more: two gathered layers and one of gradients outweigh what it shards."""
    model = model_of(*[dense_layer()] * 8)
    portion = Portion(island_of(num_nodes=1), 1, dp)
    configs = StageConfigs.of([StageConfig(dp, 1, zero=z) for z in range(4)])
    costs = atom_costs(model, cut_atoms(model)[1:-1], portion, configs, dp, job_of())
    peak = costs.state_bytes.sum(axis=0) + costs.workspace_bytes.max(axis=0)
    assert (np.diff(peak) <= 0).all()


@pytest.mark.parametrize("model", MODELS[:2], ids=["gpt", "llama-tied"])
@pytest.mark.parametrize("zero", [0, 1])
def test_more_tensor_parallelism_holds_fewer_weights(model: ModelSpec, zero: int) -> None:
    configs = StageConfigs.of([StageConfig(8 // tp, tp, zero=zero) for tp in (1, 2, 4)])
    costs = atom_costs(model, cut_atoms(model), Portion(island_of(), 1, 8), configs, 8, job_of())
    assert (np.diff(costs.weight_bytes, axis=1) < 0).all()


def test_ties_are_counted_only_with_both_ends_at_hand() -> None:
    model = MODELS[1]
    args = (
        whole(island_of()),
        StageConfigs.of([StageConfig(16, 1, zero=1), StageConfig(4, 4, zero=3)]),
        16,
        job_of(),
    )
    atoms = cut_atoms(model)
    both, first = atom_costs(model, atoms, *args), atom_costs(model, atoms[:-1], *args)
    assert (both.tied_bytes > 0).all()
    assert (both.tied_step_s > 0).all()
    assert (both.tied_bytes < both.state_bytes[0]).all()
    assert (both.tied_step_s <= both.step_s[0]).all()
    assert (first.tied_bytes == 0).all()
    assert (first.tied_step_s == 0).all()


def test_the_job_needs_a_precision_that_the_gpu_has() -> None:
    model = MODELS[0]
    with pytest.raises(InputError, match="no bf16"):
        atom_costs(
            model,
            cut_atoms(model),
            whole(island_of(V100)),
            StageConfigs.of([StageConfig(16, 1)]),
            16,
            job_of(),
        )


@settings(max_examples=20)
@given(stages())
def test_costs_are_repeatable(stage: Stage) -> None:
    first, second = arrays(single(stage)), arrays(single(stage))
    assert all((first[name] == second[name]).all() for name in first)
