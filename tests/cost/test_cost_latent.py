"""Latent attention and shared experts: work and parameters against the model's own counts."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from cost_cases import A100, island_of, whole

from tangram.cost import work
from tangram.cost.atoms import atom_costs
from tangram.cost.parts import fill_part
from tangram.cost.setting import Setting
from tangram.cost.types import StageConfig, StageConfigs
from tangram.job import Job, Precision
from tangram.model.atoms import Part, cut_atoms
from tangram.model.flops import part_forward_flop
from tangram.model.params import part_params
from tangram.model.spec import (
    AttentionSpec,
    FeedForwardSpec,
    LatentSpec,
    LayerSpec,
    ModelSpec,
    MoeSpec,
    NormKind,
    PositionKind,
)

EXPERT, SHARED = FeedForwardSpec(512, gated=True), FeedForwardSpec(1024, gated=True)


def model_with(q_rank: int | None) -> ModelSpec:
    latent = LatentSpec(q_rank, kv_rank=256, nope_dim=64, rope_dim=32, value_dim=64)
    attention = AttentionSpec(16, 16, 96, latent=latent)
    layer = LayerSpec(attention, MoeSpec(8, 2, EXPERT, SHARED), NormKind.RMSNORM)
    return ModelSpec(
        "latent",
        "deepseek_v3",
        1024,
        32000,
        (layer, layer),
        NormKind.RMSNORM,
        PositionKind.ROTARY,
        4096,
        False,
    )


def tables(model: ModelSpec, config: StageConfig) -> dict[Part, np.ndarray]:
    job = Job(64, 2048, Precision.BF16)
    portion = whole(island_of(A100))
    setting = Setting.of(model, portion, StageConfigs.of([config]), 16, job)
    found = {}
    for atom_part in cut_atoms(model)[1].parts:
        table = np.zeros((work.NUM_ROWS, 1))
        fill_part(setting, atom_part, table)
        found[atom_part.part] = table[:, 0]
    return found


@pytest.mark.parametrize("q_rank", [None, 384])
def test_flop_of_one_rank_is_that_of_the_model(q_rank: int | None) -> None:
    model = model_with(q_rank)
    for part, table in tables(model, StageConfig(dp=16, tp=1)).items():
        flop = table[work.GEMM] + table[work.EXPERT] + table[work.FLASH] + table[work.UNFUSED]
        assert flop == pytest.approx(part_forward_flop(model, 0, part, 2048, 2048, causal=True))


@pytest.mark.parametrize("q_rank", [None, 384])
def test_ranks_hold_the_model_and_replicate_what_is_narrow(q_rank: int | None) -> None:
    model = model_with(q_rank)
    alone, split = (tables(model, StageConfig(dp=16 // tp, tp=tp)) for tp in (1, 2))
    for part, table in alone.items():
        held = table[work.DENSE_PARAMS] + table[work.EXPERT_PARAMS]
        assert held == part_params(model, 0, part).total
    qkv = model.layers[0].attention.latent
    assert qkv is not None
    down = 1024 * ((q_rank or 0) + 256 + 32) + (q_rank or 0) + 256 + 1024  # and three norms
    whole_qkv = alone[Part.QKV][work.DENSE_PARAMS]
    assert split[Part.QKV][work.DENSE_PARAMS] == pytest.approx((whole_qkv - down) / 2 + down)


def test_shared_experts_cost_what_a_dense_block_costs() -> None:
    """Take them away, and what is left is the routed experts alone."""
    model = model_with(384)
    layer = model.layers[0]
    assert layer.moe is not None
    bare = replace(layer, feed_forward=replace(layer.moe, shared=None))
    without = replace(model, layers=(bare, bare))
    with_table, table = (tables(m, StageConfig(dp=8, tp=2))[Part.MOE] for m in (model, without))
    tokens = 2 * 2048
    assert with_table[work.GEMM] - table[work.GEMM] == pytest.approx(2 * tokens * 3 * 1024 * 1024 / 2)
    assert with_table[work.STORED] - table[work.STORED] == pytest.approx(tokens * 3 * 1024 / 2 * 2)
    assert with_table[work.TP_CALLS] - table[work.TP_CALLS] == 2


def test_a_layer_has_finite_costs_under_all_degrees() -> None:
    model = model_with(384)
    configs = StageConfigs.of(
        [StageConfig(dp=16 // tp, tp=tp, ep=ep, zero=1) for tp in (1, 2, 8) for ep in (1, 4, 8)]
    )
    costs = atom_costs(
        model, cut_atoms(model), whole(island_of(A100)), configs, 64, Job(64, 2048, Precision.BF16)
    )
    assert np.all(costs.forward_s > 0)
    assert np.all(costs.stored_bytes >= 0)
