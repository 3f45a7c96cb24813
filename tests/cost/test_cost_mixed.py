"""Stages whose atoms differ in configuration, against stages whose atoms do not."""

from __future__ import annotations

from dataclasses import replace
from math import lcm

import pytest
from cost_cases import dense_layer, island_of, job_of, model_of, moe_layer, stages, whole
from hypothesis import given
from hypothesis import strategies as st

from tangram.cluster.spec import Portion
from tangram.cost.atoms import COMPONENTS
from tangram.cost.configs import legal_configs
from tangram.cost.constants import constants_of
from tangram.cost.links import EP, Groups, LinkRates
from tangram.cost.reshard import exchange_s
from tangram.cost.stage import stage_cost
from tangram.cost.transfer import boundary_bytes
from tangram.cost.types import StageConfig, StageConfigs, StageCost
from tangram.errors import InternalError
from tangram.job import Job
from tangram.model.atoms import Atom, cut_atoms
from tangram.model.spec import ModelSpec

Stage = tuple[ModelSpec, Portion, StageConfig, int, Job]


@given(stages(), st.data())
def test_equal_configurations_cost_what_one_does_bit_for_bit(stage: Stage, data: st.DataObject) -> None:
    model, portion, config, micro_batch, job = stage
    atoms = cut_atoms(model)
    start = data.draw(st.integers(0, len(atoms) - 1))
    held = atoms[start : data.draw(st.integers(start + 1, len(atoms)))]
    flags = data.draw(st.lists(st.booleans(), min_size=len(held), max_size=len(held)))
    args = (model, held, portion, config, micro_batch, 4, 3, flags, job)
    assert stage_cost(*args, atom_configs=[config] * len(held)) == stage_cost(*args)


@given(stages(), st.data())
def test_a_mixed_stage_is_its_runs_and_what_lies_between(stage: Stage, data: st.DataObject) -> None:
    model, portion, _, micro_batch, job = stage
    model = replace(model, tied_embeddings=False)
    configs = legal_configs(model, portion, micro_batch, job)
    if job.pins.offload == "auto":
        configs = [c for c in configs if not (c.offload_activations or c.offload_optimizer)]
    atoms = cut_atoms(model)
    chosen = [data.draw(st.sampled_from(configs)) for _ in atoms]
    flags = [data.draw(st.booleans()) for _ in atoms]
    got = stage_cost(model, atoms, portion, chosen[0], micro_batch, 4, 3, flags, job, atom_configs=chosen)
    parts = [
        stage_cost(model, [atom], portion, config, micro_batch, 4, 3, [flag], job)
        for atom, config, flag in zip(atoms, chosen, flags, strict=True)
    ]
    between = reshard_s(model, atoms, portion, chosen, micro_batch, job)
    assert got.forward_s == pytest.approx(sum(p.forward_s for p in parts) + between)
    assert got.backward_s == pytest.approx(sum(p.backward_s for p in parts) + between)
    assert got.step_s == pytest.approx(sum(p.step_s for p in parts))
    assert got.activation_bytes == pytest.approx(sum(p.activation_bytes for p in parts))
    for item in ("weights", "gradients", "optimizer", "activations"):
        assert got.memory[item] == pytest.approx(sum(p.memory[item] for p in parts))
    for item in ("workspace", "reserve"):
        assert got.memory[item] == max(p.memory[item] for p in parts)
    assert got.holding(3) == got
    reshard = got.components.get("reshard", 0.0)
    assert reshard == pytest.approx(2 * between)
    assert sum(got.components[name] for name in COMPONENTS[9:]) == pytest.approx(got.step_s)
    inner = sum(got.components[name] for name in (*COMPONENTS[:9], "recompute"))
    assert inner + reshard == pytest.approx(got.time_s)


def reshard_s(
    model: ModelSpec,
    atoms: tuple[Atom, ...],
    portion: Portion,
    configs: list[StageConfig],
    size: int,
    job: Job,
) -> float:
    """One way, from the words: an all-to-all of what crosses the cut, among ranks with the same samples."""
    constants, seconds = constants_of(portion.island.gpu, job.basis), 0.0
    for atom, a, b in zip(atoms, configs, configs[1:], strict=False):
        if (a.dp, a.cp, a.tp) == (b.dp, b.cp, b.tp):
            continue
        group = lcm(portion.num_gpus // a.dp, portion.num_gpus // b.dp)
        like_experts = StageConfigs.of([StageConfig(portion.num_gpus, 1, ep=group)])
        rates = LinkRates.of(Groups.of(portion, like_experts), constants.stack, constants.cluster)
        share = boundary_bytes(model, atom, size, job) / portion.num_gpus
        seconds += float(rates.latency_s[EP, 0] + share * rates.all_to_all_s_per_byte[0])
    return seconds


DENSE = model_of(*[dense_layer()] * 4)
FLAGS = [False] * 6
DP, TP = StageConfig(16, 1, zero=3), StageConfig(4, 4, zero=1)


def mixed(*configs: StageConfig, portion: Portion | None = None, model: ModelSpec = DENSE) -> StageCost:
    where = portion or whole(island_of())
    atoms = cut_atoms(model)
    return stage_cost(model, atoms, where, configs[0], 16, 1, 1, FLAGS, job_of(), atom_configs=configs)


def test_every_change_of_layout_is_charged_once_and_others_are_free() -> None:
    one = mixed(DP, DP, DP, TP, TP, TP).components["reshard"]
    assert one > 0
    assert mixed(DP, TP, TP, DP, DP, DP).components["reshard"] == pytest.approx(2 * one)
    assert mixed(TP, TP, TP, DP, DP, DP).components["reshard"] == pytest.approx(one)
    assert mixed(DP, DP, DP, replace(DP, zero=1), DP, DP).components["reshard"] == 0
    experts = model_of(*[moe_layer()] * 4)
    other = replace(DP, ep=4)
    assert mixed(DP, DP, other, other, other, other, model=experts).components["reshard"] == 0


def test_it_is_dearer_across_nodes_and_on_slow_links() -> None:
    inside, across = [(16, 1, 1), (8, 1, 2)], [(16, 1, 1), (1, 2, 8)]
    slow, quick = (whole(island_of(nic=nic)) for nic in (1e9, 100e9))
    share = 16 * 512 * 1024 * 2.0
    assert exchange_s(slow, inside, share, job_of())[0, 1] == exchange_s(quick, inside, share, job_of())[0, 1]
    times = [exchange_s(p, across, share, job_of())[0, 1] for p in (slow, quick)]
    assert times[0] > 10 * times[1] > exchange_s(quick, inside, share, job_of())[0, 1]


def test_tables_of_exchanges_are_symmetric_and_grow_with_bytes() -> None:
    layouts = [(16, 1, 1), (8, 1, 2), (8, 2, 1), (2, 1, 8)]
    few, many = (exchange_s(whole(island_of()), layouts, size, job_of()) for size in (0.0, 1e9))
    assert (few == few.T).all()
    assert (few.diagonal() == 0).all()
    assert (many >= few).all()
    assert few[1, 2] > 0  # Samples are on the same ranks, tokens are not.
    assert many[0, 1] < many[0, 3]


def test_what_no_stage_can_be_is_our_own_mistake() -> None:
    with pytest.raises(InternalError, match="5 configurations"):
        mixed(DP, DP, DP, TP, TP)
    with pytest.raises(InternalError, match="no configuration of 16 GPUs"):
        mixed(DP, DP, DP, TP, TP, StageConfig(8, 1))
    with pytest.raises(InternalError, match="share a matrix"):
        mixed(DP, DP, DP, TP, TP, TP, model=model_of(*[dense_layer()] * 4, tied=True))
    atoms = cut_atoms(DENSE)
    with pytest.raises(InternalError, match="the first"):
        stage_cost(
            DENSE, atoms, whole(island_of()), TP, 16, 1, 1, FLAGS, job_of(), atom_configs=[DP, *[TP] * 5]
        )


def test_a_tied_matrix_is_held_once_in_a_mixed_stage_too() -> None:
    tied, free = (model_of(*[dense_layer()] * 4, tied=tied) for tied in (True, False))
    configs = (DP, TP, TP, TP, TP, DP)
    together, apart = mixed(*configs, model=tied), mixed(*configs, model=free)
    ends = [mixed(*[DP] * 6, model=model) for model in (tied, free)]
    saved = ends[1].memory["weights"] - ends[0].memory["weights"]
    assert saved > 0
    assert apart.memory["weights"] - together.memory["weights"] == pytest.approx(saved)
    assert apart.step_s - together.step_s == pytest.approx(ends[1].step_s - ends[0].step_s)
