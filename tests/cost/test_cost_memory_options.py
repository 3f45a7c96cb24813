"""What the software does in its own way, byte by byte."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from cost_cases import A100, H100, V100, dense_layer, island_of, model_of, moe_layer

from tangram.basis import SHIPPED_BASIS
from tangram.cluster.spec import GpuSpec, Portion
from tangram.cost import work
from tangram.cost.batch import HEAD, BatchCosts, BatchStage, StageBatch
from tangram.cost.constants import Constants, constants_of, stack_constants
from tangram.cost.memory_options import PLAIN, MemoryOptions
from tangram.cost.setting import Setting
from tangram.cost.types import StageConfig, StageConfigs
from tangram.job import Job, Precision
from tangram.model.atoms import cut_atoms
from tangram.model.params import part_params
from tangram.model.spec import FeedForwardSpec, LatentSpec, LayerSpec, ModelSpec, MoeSpec
from tangram.units import MIB

SEQ, SAMPLES, HIDDEN, HEADS = 512, 2, 1024, 8
TOKENS = SEQ * SAMPLES
SCORES = HEADS * SEQ * TOKENS
MEGATRON = "megatron-2025"


def stage_of(
    model: ModelSpec,
    options: MemoryOptions,
    part: GpuSpec = A100,
    config: StageConfig | None = None,
    precision: Precision = Precision.FP16,
) -> BatchStage:
    config = config or StageConfig(dp=1, tp=1)
    portion = Portion(island_of(part), 1, config.num_gpus)
    job = Job(64, SEQ, precision)
    setting = Setting.of(model, portion, StageConfigs.of([config]), SAMPLES * config.dp, job, memory=options)
    return BatchStage(setting, cut_atoms(model))


def costs_of(stage: BatchStage, part: GpuSpec = A100, stack: str | None = None) -> BatchCosts:
    constants = constants_of(part, SHIPPED_BASIS)
    if stack is not None:
        constants = Constants(constants.gpu, stack_constants(stack), constants.cluster)
    return StageBatch.of([stage]).costs(constants)


def layer_bytes(model: ModelSpec, part: GpuSpec = A100, **options: object) -> float:
    """What the layers keep per micro-batch."""
    found = costs_of(stage_of(model, MemoryOptions(**options), part), part)  # type: ignore[arg-type]
    return float(found.layer_activation_bytes[0])


def head_bytes(stack: str, vocab: int = 50_000, **options: object) -> float:
    """Transient of the head of a model whose head is the largest thing."""
    stage = stage_of(model_of(dense_layer(), vocab=vocab), MemoryOptions(**options))  # type: ignore[arg-type]
    return float(costs_of(stage, stack=stack).workspace_bytes[0])


def library_bytes(part: GpuSpec, stack: str, **options: object) -> float:
    stage = stage_of(model_of(dense_layer()), MemoryOptions(**options), part)  # type: ignore[arg-type]
    return float(costs_of(stage, part, stack).library_bytes[0])


def with_block(block: FeedForwardSpec | MoeSpec) -> ModelSpec:
    return model_of(replace(dense_layer(gated=True), feed_forward=block))


def test_no_options_are_tangrams_own_runtime() -> None:
    model = model_of(dense_layer(), moe_layer())
    portion, config = Portion(island_of(), 1, 1), StageConfigs.of([StageConfig(dp=1, tp=1)])
    assert Setting.of(model, portion, config, 1, Job(64, SEQ, Precision.BF16)).memory == PLAIN


def test_dropout_keeps_masks_and_dropped_scores() -> None:
    model = model_of(dense_layer())
    plain = layer_bytes(model, V100)
    assert plain == layer_bytes(model, V100, dropout=True) == 34 * TOKENS * HIDDEN + 5 * SCORES
    assert layer_bytes(model, V100, dropout=False) == 32 * TOKENS * HIDDEN + 2 * SCORES
    gated = model_of(dense_layer(gated=True))
    assert layer_bytes(gated, dropout=True) - layer_bytes(gated) == 2 * TOKENS * HIDDEN


def test_relu_needs_its_output_only() -> None:
    model, gated = model_of(dense_layer(ffn=4096)), model_of(dense_layer(gated=True, ffn=2816))
    assert layer_bytes(model) - layer_bytes(model, relu=True) == 2 * TOKENS * 4096
    assert layer_bytes(gated, relu=True) == layer_bytes(gated)


def test_normalised_queries_and_keys_are_kept_twice() -> None:
    plain = dense_layer(kv_heads=4)
    normed = replace(plain, attention=replace(plain.attention, qk_norm=True))
    extra = layer_bytes(model_of(normed)) - layer_bytes(model_of(plain))
    assert extra == 2 * TOKENS * (HIDDEN + HIDDEN // 2)


def latent_layer() -> LayerSpec:
    latent = LatentSpec(q_rank=256, kv_rank=128, nope_dim=64, rope_dim=32, value_dim=64)
    layer = moe_layer()
    return replace(layer, attention=replace(layer.attention, head_dim=96, latent=latent))


def test_recomputed_modules_keep_their_inputs() -> None:
    def saved(model: ModelSpec, *modules: str) -> float:
        return layer_bytes(model) - layer_bytes(model, recomputed=modules)

    dense, experts = model_of(dense_layer(gated=True, ffn=2816)), model_of(latent_layer())
    assert saved(dense, "layernorm") == 2 * 2 * TOKENS * HIDDEN
    assert saved(dense, "mlp") == 2 * 3 * TOKENS * 2816
    assert saved(dense, "moe_act") == saved(dense, "mla_up_proj") == saved(dense) == 0
    # Queries and keys of 96 = 64 + 32, values of 64, for all heads.
    assert saved(experts, "mla_up_proj") == 2 * TOKENS * HEADS * (96 + 96 + 64)
    assert saved(experts, "moe_act") == 2 * 2 * TOKENS * 512  # top-2
    # Norm output and router; inputs, up outputs, activations and outputs of two experts.
    moe = 2 * HIDDEN + 4 * 8 + 2 * 2 * (2 * HIDDEN + 3 * 512)
    assert saved(experts, "moe") == TOKENS * moe


def test_shared_experts_can_be_run_again() -> None:
    shared = FeedForwardSpec(256, gated=True)
    model = with_block(MoeSpec(8, 2, FeedForwardSpec(512, gated=True), shared=shared))
    saved = layer_bytes(model) - layer_bytes(model, recomputed=("shared_experts",))
    assert saved == 2 * 3 * TOKENS * 256


@pytest.mark.parametrize("gated", [True, False])
def test_where_the_router_weights(gated: bool) -> None:
    model = with_block(MoeSpec(8, 2, FeedForwardSpec(512, gated=gated)))
    outside, inside = layer_bytes(model), layer_bytes(model, weighs_outputs=False)
    outputs, activations = 2 * 2 * TOKENS * HIDDEN, 2 * 2 * TOKENS * 512
    assert outside - inside == outputs - (0 if gated else activations)


def test_balanced_experts_store_the_mean() -> None:
    model, config = model_of(moe_layer()), StageConfig(dp=4, tp=1, ep=4)
    table = StageBatch.of([stage_of(model, PLAIN, config=config)]).work.table
    routed = table[work.EXPERT_STORED].sum()
    plain, even = (
        float(costs_of(stage_of(model, options, config=config)).layer_activation_bytes[0])
        for options in (PLAIN, MemoryOptions(balanced_experts=True))
    )
    assert plain - even == pytest.approx((stack_constants().expert_imbalance - 1) * routed)


def test_losses_by_hand() -> None:
    rows = 50_048  # padded to 128
    logits = TOKENS * rows
    stack = stack_constants(MEGATRON)
    assert head_bytes(MEGATRON) == pytest.approx(logits * (2 + stack.logit_fixed_bytes))
    assert head_bytes(MEGATRON, loss_copies=2) == pytest.approx(logits * (2 + 2 * stack.logit_fixed_bytes))
    # In place, the gradients decide: of the logits, of input and its gradient, and of the matrix.
    in_place = 2 * logits + 2 * 2 * TOKENS * HIDDEN + 2 * rows * HIDDEN
    assert head_bytes(MEGATRON, loss_copies=0) == pytest.approx(in_place)
    assert head_bytes(MEGATRON, deferred_heads=2) - head_bytes(MEGATRON) == pytest.approx(2 * 2 * logits)
    assert head_bytes(MEGATRON, further_losses=1) - head_bytes(MEGATRON) == pytest.approx(4 * logits)


def test_workspaces_of_products() -> None:
    """cuBLAS has 8.125 MiB on A100 and 32 on H100, Transformer Engine 4 and 32."""
    plain = 2 * 8.125 * MIB
    assert library_bytes(A100, "tangram-runtime") == plain
    assert library_bytes(A100, MEGATRON) == plain + 4 * MIB
    assert library_bytes(A100, MEGATRON, deterministic=True) == 68 * MIB
    assert library_bytes(H100, MEGATRON) == library_bytes(H100, MEGATRON, deterministic=True) == 96 * MIB
    assert library_bytes(H100, MEGATRON, grouped_products=True) == (96 + 4 * 32) * MIB


def test_placeholders_have_the_shapes_of_one_layer_and_one_expert() -> None:
    model = model_of(dense_layer(), moe_layer(num_experts=8), dense_layer())
    layers = [part_params(model, i, part.part) for i in (0, 1) for part in cut_atoms(model)[i + 1].parts]
    dense = sum(p.total for p in layers[: len(cut_atoms(model)[1].parts)])
    one_expert = sum(p.expert for p in layers) / 8
    plain, fused = (
        float(costs_of(stage_of(model, MemoryOptions(fused_accumulation=on))).library_bytes[0])
        for on in (False, True)
    )
    assert fused - plain == pytest.approx(2 * (dense + one_expert))


def test_gradients_held_twice() -> None:
    model = model_of(dense_layer())
    plain, twice = (
        costs_of(stage_of(model, MemoryOptions(further_gradient_bytes=extra))) for extra in (0.0, 2.0)
    )
    assert twice.gradient_bytes[0] == pytest.approx(1.5 * plain.gradient_bytes[0])
    assert twice.weight_bytes[0] == plain.weight_bytes[0]


def test_attention_that_nobody_states_may_be_unfused() -> None:
    model = model_of(dense_layer())
    flash, doubtful = (
        costs_of(stage_of(model, MemoryOptions(attention_stated=stated))) for stated in (True, False)
    )
    unfused = costs_of(stage_of(model, PLAIN, V100), V100)
    assert flash.doubtful_bytes[0] == 0
    assert doubtful.layer_activation_bytes[0] == flash.layer_activation_bytes[0]
    total = doubtful.layer_activation_bytes[0] + doubtful.doubtful_bytes[0]
    assert total == pytest.approx(unfused.layer_activation_bytes[0])


def test_context_parallel_ranks_keep_the_output_twice() -> None:
    model = model_of(dense_layer(gated=True))
    one, four = (
        costs_of(stage_of(model, PLAIN, config=StageConfig(dp=1, tp=1, cp=cp))).layer_activation_bytes[0]
        for cp in (1, 4)
    )
    assert four == pytest.approx((one + 2 * TOKENS * HIDDEN) / 4)


def test_an_embeddings_gradient_comes_late() -> None:
    """It is there when its micro-batch has nothing else left."""
    vocab, seen = 200_000, []
    for layers in (1, 8):
        model = model_of(*[dense_layer()] * layers, vocab=vocab)
        stage = stage_of(model, PLAIN)
        costs = costs_of(replace(stage, atoms=cut_atoms(model)[:-1]))
        gradient = 2 * (TOKENS * HIDDEN + 200_064 * HIDDEN)
        assert costs.workspace_bytes[0] == pytest.approx(gradient, rel=0.2)
        assert 0 <= costs.late_bytes[0] <= costs.layer_activation_bytes[0]
        seen.append(float(costs.late_bytes[0]))
    assert seen[0] == pytest.approx(layer_bytes(model_of(dense_layer())))
    assert seen[1] > seen[0]


def test_stages_with_and_without_options_stand_side_by_side() -> None:
    stages = [
        stage_of(model_of(dense_layer(), vocab=50_000), options)
        for options in (PLAIN, MemoryOptions(loss_copies=0, deterministic=True, further_gradient_bytes=2))
    ]
    together = StageBatch.of(stages).costs(constants_of(A100, SHIPPED_BASIS))
    for idx, stage in enumerate(stages):
        alone = costs_of(stage)
        for name in ("workspace_bytes", "library_bytes", "gradient_bytes", "reserve_bytes"):
            assert getattr(together, name)[idx] == pytest.approx(getattr(alone, name)[0])
    assert np.diff(together.library_bytes)[0] > 0
    assert together.workspace_bytes[0] > together.workspace_bytes[1]
    assert StageBatch.of(stages).counts[HEAD].tolist() == [1, 1]
