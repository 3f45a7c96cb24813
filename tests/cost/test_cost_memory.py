"""Byte counts by hand."""

from __future__ import annotations

import pytest
from cost_cases import A100, T4, V100, dense_layer, island_of, job_of, model_of, moe_layer, whole

from tangram.cluster.spec import Portion
from tangram.cost.atoms import atom_costs
from tangram.cost.constants import stack_constants
from tangram.cost.types import AtomCosts, StageConfig, StageConfigs
from tangram.job import Job, OptimizerSpec, Precision
from tangram.model.atoms import cut_atoms, parse_granularity
from tangram.model.params import count_params, model_parts, part_params
from tangram.model.presets import load_preset, preset_names
from tangram.model.spec import ModelSpec
from tangram.model.vocabulary import padded_vocab_size

STACK = stack_constants()


def costs_of(
    model: ModelSpec,
    config: StageConfig,
    micro_batch: int,
    job: Job,
    part: object = A100,
    atoms: str = "layer",
) -> AtomCosts:
    island = island_of(part, num_nodes=max(1, config.num_gpus // 8))  # type: ignore[arg-type]
    portion = whole(island) if config.num_gpus >= 8 else Portion(island, 1, config.num_gpus)
    cut = cut_atoms(model, parse_granularity(atoms))
    return atom_costs(model, cut, portion, StageConfigs.of([config]), micro_batch, job)


@pytest.mark.parametrize("name", preset_names())
def test_states_are_18_bytes_per_parameter_and_padding(name: str) -> None:
    """Megatron's mixed precision: 2 weights, 4 gradients, 4 master weights, 8 moments."""
    model = load_preset(name)
    costs = costs_of(model, StageConfig(dp=1, tp=1), 1, job_of())
    padding = padded_vocab_size(model.vocab_size, 1) - model.vocab_size
    matrices = 2  # A tied head counts its copy, and tied_bytes takes it off again.
    held = costs.state_bytes.sum() - costs.tied_bytes[0]
    copies = matrices - model.tied_embeddings
    assert held == 18 * (count_params(model).total + copies * padding * model.embedding_width)


@pytest.mark.parametrize("name", preset_names())
def test_weights_come_from_the_parameter_count(name: str) -> None:
    model = load_preset(name)
    costs = costs_of(model, StageConfig(dp=1, tp=1), 1, job_of(), atoms="operator")
    rows = padded_vocab_size(model.vocab_size, 1)
    expected = [2.0 * part_params(model, i, part, vocab_size=rows).total for i, part in model_parts(model)]
    if model.shares_embedding:
        expected[-1] += 2.0 * rows * model.embedding_width
    inner = len(costs.weight_bytes) - 1  # layers for prediction are of the atom of the head
    expected = [*expected[:inner], sum(expected[inner:])]
    assert costs.weight_bytes[:, 0].tolist() == expected


@pytest.mark.parametrize("tp", [1, 2, 3, 8])
def test_vocabulary_rows_are_padded_as_the_plan_says(tp: int) -> None:
    model = model_of(dense_layer(hidden=768, heads=24, kv_heads=24, ffn=3072), hidden=768, vocab=50257)
    costs = costs_of(model, StageConfig(dp=1, tp=tp), 1, job_of())
    head_params = padded_vocab_size(50257, tp) * 768 / tp + 2 * 768
    assert costs.weight_bytes[-1, 0] == 2 * head_params


def test_gpt3_13b_needs_more_than_four_a100_of_40_gb() -> None:
    costs = costs_of(load_preset("gpt3-13b"), StageConfig(dp=1, tp=4), 1, job_of())
    total = 4 * (costs.state_bytes.sum() - costs.tied_bytes[0])
    assert 18 * 12.8e9 < total < 18 * 13.1e9
    assert total > 4 * 40 * 2**30


@pytest.mark.parametrize(
    ("zero", "weights", "gradients", "optimizer"), [(0, 1, 1, 1), (1, 1, 1, 8), (2, 1, 8, 8), (3, 8, 8, 8)]
)
def test_what_each_zero_stage_shards(zero: int, weights: int, gradients: int, optimizer: int) -> None:
    model = model_of(dense_layer())
    whole_stage = costs_of(model, StageConfig(dp=1, tp=1), 8, job_of())
    sharded = costs_of(model, StageConfig(dp=4, tp=1, cp=2, zero=zero), 8, job_of())
    assert sharded.weight_bytes == pytest.approx(whole_stage.weight_bytes / weights)
    assert sharded.gradient_bytes == pytest.approx(whole_stage.gradient_bytes / gradients)
    assert sharded.optimizer_bytes == pytest.approx(whole_stage.optimizer_bytes / optimizer)


def test_experts_are_sharded_over_their_own_replicas() -> None:
    model = model_of(moe_layer())
    params = part_params(model, 0, list(model_parts(model))[4][1])
    costs = costs_of(model, StageConfig(dp=8, tp=1, ep=4, zero=1), 8, job_of(), atoms="operator")
    moe = costs.optimizer_bytes[4, 0]
    dense = params.total - params.expert
    # 4 ranks hold a quarter of the experts each, twice: ZeRO halves that; norm and router are shared by 8.
    assert moe == pytest.approx(12 * (params.expert / 4 / 2 + dense / 8))


@pytest.mark.parametrize("precision", [Precision.FP32, Precision.TF32])
def test_single_precision_keeps_no_master_copy(precision: Precision) -> None:
    model = model_of(dense_layer())
    costs = costs_of(model, StageConfig(dp=1, tp=1), 1, job_of(precision))
    per_param = [
        a.sum() / (costs.weight_bytes.sum() / 4) for a in (costs.gradient_bytes, costs.optimizer_bytes)
    ]
    assert per_param == [4.0, 8.0]


def test_the_optimizer_states_its_bytes() -> None:
    job = Job(64, 512, Precision.BF16, OptimizerSpec(gradient_bytes=2, master_bytes=4, moment_bytes=2))
    costs = costs_of(model_of(dense_layer()), StageConfig(dp=1, tp=1), 1, job)
    assert costs.state_bytes.sum() == pytest.approx(costs.weight_bytes.sum() / 2 * (2 + 2 + 4 + 2))


def test_offloaded_optimizer_states_leave_the_gpu() -> None:
    config = StageConfig(dp=1, tp=1, offload_optimizer=True)
    costs = costs_of(model_of(dense_layer()), config, 1, job_of())
    assert costs.optimizer_bytes.sum() == 0
    assert costs.components["optimizer_offload"].sum() > 0


@pytest.mark.parametrize("tp", [1, 4])
def test_a_gpt_layer_keeps_34_s_b_h_bytes(tp: int) -> None:
    """Korthikanti et al. 2022, table 2, with sequence parallelism; flash keeps one fp32 per head instead."""
    seq, samples, hidden, heads = 512, 2, 1024, 8
    costs = costs_of(model_of(dense_layer()), StageConfig(dp=1, tp=tp), samples, job_of(seq_len=seq))
    log_sums = 4 * seq * samples * heads
    assert costs.stored_bytes[1, 0] == pytest.approx((34 * seq * samples * hidden + log_sums) / tp)


def test_unfused_attention_keeps_5_bytes_per_score() -> None:
    seq, samples, hidden, heads = 512, 2, 1024, 8
    job = job_of(Precision.FP16, seq_len=seq)
    costs = costs_of(model_of(dense_layer()), StageConfig(dp=1, tp=1), samples, job, V100)
    expected = 34 * seq * samples * hidden + 5 * heads * seq**2 * samples
    assert costs.stored_bytes[1, 0] == pytest.approx(expected)
    lean = costs_of(model_of(dense_layer()), StageConfig(dp=1, tp=1, selective=True), samples, job, V100)
    assert lean.stored_bytes[1, 0] == pytest.approx(34 * seq * samples * hidden)
    assert lean.backward_s[1, 0] > costs.backward_s[1, 0]
    assert lean.forward_s[1, 0] == costs.forward_s[1, 0]


def test_a_gated_layer_with_grouped_queries() -> None:
    """2 N (6 h + 2 kv + 3 ffn): with the terms of the 34 s b h count, as SimuMax rows confirm."""
    seq, hidden, kv, ffn = 512, 1024, 512, 2816
    model = model_of(dense_layer(gated=True, kv_heads=4, ffn=ffn))
    costs = costs_of(model, StageConfig(dp=1, tp=2), 1, job_of(seq_len=seq))
    expected = 2 * seq * (6 * hidden + 2 * kv + 3 * ffn) + 4 * seq * 8
    assert costs.stored_bytes[1, 0] == pytest.approx(expected / 2)


def test_full_recomputation_keeps_the_input_of_the_atom() -> None:
    seq, hidden = 512, 1024
    model = model_of(dense_layer(), dense_layer())
    costs = costs_of(model, StageConfig(dp=1, tp=2), 4, job_of(seq_len=seq), atoms="2")
    assert costs.recomputed_stored_bytes[1, 0] == 4 * seq * hidden * 2 / 2
    brought_back = costs.recompute_workspace_bytes[1, 0] - costs.workspace_bytes[1, 0]
    assert brought_back == pytest.approx(costs.stored_bytes[1, 0])


def test_full_recomputation_with_selective_does_the_core_once() -> None:
    job = job_of(Precision.FP16)
    plain = costs_of(model_of(dense_layer()), StageConfig(dp=1, tp=1), 1, job, V100)
    lean = costs_of(model_of(dense_layer()), StageConfig(dp=1, tp=1, selective=True), 1, job, V100)
    assert lean.backward_s + lean.recompute_s == pytest.approx(plain.backward_s + plain.recompute_s)
    assert lean.recompute_workspace_bytes == pytest.approx(plain.recompute_workspace_bytes)


def test_the_loss_needs_10_bytes_per_logit() -> None:
    """PyTorch's: logits in 16 bit and in fp32, and their log-softmax."""
    seq, rows, hidden = 512, 5120, 1024
    costs = costs_of(model_of(dense_layer()), StageConfig(dp=1, tp=2), 4, job_of(seq_len=seq))
    assert padded_vocab_size(5000, 2) == rows
    assert costs.workspace_bytes[-1, 0] == pytest.approx(10 * 4 * seq * rows / 2)
    assert costs.stored_bytes[-1, 0] == 2 * 4 * seq * hidden * 2 / 2


def test_the_gradient_of_a_large_head_needs_more_than_its_loss() -> None:
    """One short sample: gradients of the logits, of the input gathered over tp, and of the matrix (2 + 4)."""
    seq, rows, hidden = 128, 5120, 1024
    costs = costs_of(model_of(dense_layer()), StageConfig(dp=1, tp=2), 1, job_of(seq_len=seq))
    expected = 2 * seq * rows / 2 + 2 * 2 * seq * hidden + 6 * rows * hidden / 2
    assert expected > 10 * seq * rows / 2
    assert costs.workspace_bytes[-1, 0] == pytest.approx(expected)


def test_zero_3_gathers_two_layers_and_reduces_one() -> None:
    model = model_of(dense_layer(), dense_layer())
    params = costs_of(model, StageConfig(dp=1, tp=1), 8, job_of()).weight_bytes[1, 0] / 2
    for atoms in ("layer", "2"):
        plain = costs_of(model, StageConfig(dp=1, tp=1), 1, job_of(), atoms=atoms)
        sharded = costs_of(model, StageConfig(dp=8, tp=1, zero=3), 8, job_of(), atoms=atoms)
        extra = sharded.workspace_bytes[1, 0] - plain.workspace_bytes[1, 0]
        assert extra == pytest.approx((2 * 2 + 4) * params)


def test_offloaded_activations_leave_two_atoms_on_the_gpu() -> None:
    model = model_of(dense_layer())
    plain = costs_of(model, StageConfig(dp=1, tp=1), 1, job_of())
    away = costs_of(model, StageConfig(dp=1, tp=1, offload_activations=True), 1, job_of())
    assert away.stored_bytes.sum() == 0
    assert away.workspace_bytes[1, 0] == plain.workspace_bytes[1, 0] + 2 * plain.stored_bytes[1, 0]


@pytest.mark.parametrize(
    ("model", "communicators"), [(model_of(dense_layer()), 3), (model_of(moe_layer()), 5)]
)
def test_reserve_by_hand(model: ModelSpec, communicators: int) -> None:
    """Groups of the pipeline, tp and dp; with experts also ep and their replicas."""
    costs = costs_of(model, StageConfig(dp=2, tp=4, ep=2), 4, job_of(seq_len=512))
    boundary = 4 * 2 * 1024 * (2 * 512) / 4
    lost = STACK.fragmentation_frac * A100.usable_memory_bytes
    expected = STACK.context_bytes + communicators * STACK.communicator_bytes + lost + boundary
    expected += 2 * 8_519_680  # cuBLAS workspaces of the forward and of the backward thread
    assert costs.reserve_bytes[0] == pytest.approx(expected)


def test_the_reserve_leaves_most_of_a_small_gpu() -> None:
    costs = costs_of(model_of(dense_layer()), StageConfig(dp=1, tp=1), 1, job_of(Precision.FP16), T4)
    assert 2**30 < costs.reserve_bytes[0] < 2**31
