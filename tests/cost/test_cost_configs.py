from __future__ import annotations

from typing import Any

import pytest
from cost_cases import A100, MODELS, V100, dense_layer, island_of, job_of, model_of, moe_layer, whole
from hypothesis import given
from hypothesis import strategies as st

from tangram.cluster.spec import Portion, portions
from tangram.cost.configs import CONTEXT_PARALLEL_TOKENS, legal_configs, tensor_parallel_degrees
from tangram.cost.types import StageConfig
from tangram.errors import InputError
from tangram.job import Job, Pins, Precision, Recompute
from tangram.model.spec import FeedForwardSpec, ModelSpec

DENSE, MOE = MODELS[0], model_of(moe_layer())
FULL = whole(island_of())


def degrees(configs: list[StageConfig], *names: str) -> set[Any]:
    return {tuple(getattr(c, n) for n in names) if len(names) > 1 else getattr(c, names[0]) for c in configs}


@given(
    st.sampled_from(MODELS),
    st.sampled_from([A100, V100]),
    st.sampled_from([1, 6, 8, 64]),
    st.integers(0, 9),
    st.booleans(),
)
def test_all_configurations_are_executable(
    model: ModelSpec, part: object, micro_batch: int, which: int, cross: bool
) -> None:
    choices = portions(island_of(part, num_nodes=3))  # type: ignore[arg-type]
    portion = choices[which % len(choices)]
    job = job_of(Precision.FP16, seq_len=CONTEXT_PARALLEL_TOKENS, offload="auto", allow_cross_node_tp=cross)
    configs = legal_configs(model, portion, micro_batch, job)
    assert len(set(configs)) == len(configs)
    for c in configs:
        assert c.dp * c.cp * c.tp == portion.num_gpus == c.ep * c.expert_tp * c.expert_dp
        assert micro_batch % c.dp == 0
        assert job.seq_len % (c.cp * c.tp) == 0
        assert cross or portion.gpus_per_node % c.tp == 0
        assert c.expert_tp in (1, c.tp)
        assert c.zero == 0 or c.dp * c.cp > 1
        for layer in model.layers:
            assert layer.attention.num_heads % c.tp == 0
            assert layer.attention.num_kv_heads % c.tp == 0
            block = layer.feed_forward
            if isinstance(block, FeedForwardSpec):
                assert block.intermediate_size % c.tp == 0
            else:
                assert block.num_experts % c.ep == 0
                assert block.expert.intermediate_size % c.expert_tp == 0


def test_what_is_searched_for_a_dense_model() -> None:
    configs = legal_configs(DENSE, FULL, 16, job_of())
    assert degrees(configs, "dp", "tp", "cp") == {(16, 1, 1), (8, 2, 1), (4, 4, 1), (2, 8, 1)}
    assert degrees(configs, "zero") == {1, 2, 3}
    assert degrees(configs, "ep", "expert_tp") == {(1, 1)}
    assert not any(c.selective or c.offload_optimizer or c.offload_activations for c in configs)
    assert len(configs) == 12


def test_a_single_gpu_has_one_configuration() -> None:
    assert legal_configs(DENSE, Portion(island_of(), 1, 1), 1, job_of()) == [StageConfig(dp=1, tp=1)]


def test_dp_divides_the_micro_batch() -> None:
    assert degrees(legal_configs(DENSE, FULL, 12, job_of()), "dp") == {2, 4}
    assert legal_configs(DENSE, FULL, 1, job_of()) == []


def test_key_value_heads_limit_tp() -> None:
    model = model_of(dense_layer(gated=True, heads=16, kv_heads=2))
    assert tensor_parallel_degrees(model, 8) == [1, 2]
    assert degrees(legal_configs(model, FULL, 16, job_of()), "tp") == {1, 2}


def test_every_layer_counts() -> None:
    model = model_of(dense_layer(), dense_layer(ffn=4098))
    assert tensor_parallel_degrees(model, 8) == [1, 2]


def test_tp_crosses_nodes_only_when_allowed() -> None:
    model = model_of(dense_layer(heads=16, kv_heads=16))
    assert 16 not in degrees(legal_configs(model, FULL, 16, job_of()), "tp")
    assert 16 in degrees(legal_configs(model, FULL, 16, job_of(allow_cross_node_tp=True)), "tp")


def test_context_parallelism_from_long_sequences_on() -> None:
    assert degrees(legal_configs(DENSE, FULL, 16, job_of(seq_len=16_384)), "cp") == {1}
    assert degrees(legal_configs(DENSE, FULL, 16, job_of(seq_len=32_768)), "cp") == {1, 2, 4, 8, 16}
    assert degrees(legal_configs(DENSE, FULL, 16, job_of(seq_len=512, cp=4)), "cp", "tp") == {
        (4, 1),
        (4, 2),
        (4, 4),
    }
    assert degrees(legal_configs(DENSE, FULL, 16, job_of(seq_len=516, cp=4)), "tp") == {1}


def test_experts() -> None:
    pairs = degrees(legal_configs(MOE, FULL, 16, job_of(tp=2)), "expert_tp", "ep")
    assert pairs == {(1, 1), (1, 2), (1, 4), (1, 8), (2, 1), (2, 2), (2, 4), (2, 8)}
    assert degrees(legal_configs(MOE, FULL, 16, job_of(ep=4)), "ep") == {4}
    odd = model_of(moe_layer(num_experts=6, width=258))
    assert degrees(legal_configs(odd, FULL, 16, job_of(tp=4)), "expert_tp", "ep") == {(1, 1), (1, 2)}


def test_pins_of_experts_on_a_dense_model() -> None:
    assert legal_configs(DENSE, FULL, 16, job_of(ep=4)) == []
    assert legal_configs(DENSE, FULL, 16, job_of(ep=1)) != []


@pytest.mark.parametrize(
    ("pins", "field", "values"),
    [
        ({"dp": 4}, "dp", {4}),
        ({"tp": 4}, "tp", {4}),
        ({"zero": 0}, "zero", {0}),
        ({"zero": 3}, "zero", {3}),
        ({"offload": "optimizer"}, "offload_optimizer", {True}),
        ({"offload": "both"}, "offload_activations", {True}),
        ({"offload": "auto"}, "offload_optimizer", {True, False}),
        ({"recompute": Recompute.SELECTIVE}, "selective", {True}),
        ({"recompute": Recompute.FULL}, "selective", {False}),
    ],
)
def test_pins_replace_the_choice(pins: dict[str, Any], field: str, values: set[Any]) -> None:
    assert degrees(legal_configs(DENSE, FULL, 16, job_of(**pins)), field) == values


def test_a_pin_that_nothing_can_honour_leaves_nothing() -> None:
    for pins in ({"dp": 3}, {"tp": 3}, {"cp": 5}, {"tp": 8, "dp": 16}):
        assert legal_configs(DENSE, FULL, 16, job_of(**pins)) == []


def test_selective_recomputation_is_for_unfused_attention() -> None:
    v100 = whole(island_of(V100))
    assert degrees(legal_configs(DENSE, v100, 16, job_of(Precision.FP16)), "selective") == {False, True}
    assert degrees(legal_configs(DENSE, FULL, 16, job_of(Precision.TF32)), "selective") == {False, True}
    none = Job(64, 512, Precision.FP16, pins=Pins(recompute=Recompute.NONE))
    assert degrees(legal_configs(DENSE, v100, 16, none), "selective") == {False}


def test_a_gpu_without_the_precision_is_refused() -> None:
    with pytest.raises(InputError, match="V100-16GB-SXM2 has no bf16 arithmetic"):
        legal_configs(DENSE, whole(island_of(V100)), 16, job_of())


def test_order_is_fixed() -> None:
    configs = legal_configs(MOE, FULL, 16, job_of())
    keys = [(c.tp, c.cp, c.expert_tp, c.ep, c.zero) for c in configs]
    assert keys == sorted(keys)
