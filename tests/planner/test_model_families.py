"""Models of other families, planned whole: the plan is sound, and survives the way through its file."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest

from tangram.cluster.readers import load_cluster
from tangram.errors import InputError
from tangram.job import Job, Pins, Precision
from tangram.model.load import load_model, trim_layers
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
from tangram.plan.check import check_plan
from tangram.plan.json_io import parse_plan, to_json
from tangram.plan.schema import PlanDocument
from tangram.planner.options import PlanOptions
from tangram.planner.planner import plan
from tangram.planner.recost import cost_violations

EXAMPLES = Path(__file__).parents[2] / "examples" / "models"
PAIR = "1x2xA100-40GB-SXM+1x2xV100-32GB-SXM2@100Gbit"


def neox() -> ModelSpec:
    """The layers of GPT-NeoX: both blocks from one input."""
    model = load_model("gpt3-1.3b")
    layer = replace(model.layers[0], parallel=True)
    return replace(model, name="neox", layers=(layer,) * 8)


def predicting() -> ModelSpec:
    """Five layers of DeepSeek's kind, and one that predicts a further token."""
    latent = LatentSpec(q_rank=None, kv_rank=256, nope_dim=64, rope_dim=32, value_dim=64)
    attention = AttentionSpec(16, 16, 96, latent=latent)
    expert = FeedForwardSpec(512, gated=True)
    layer = LayerSpec(attention, MoeSpec(8, 2, expert, expert), NormKind.RMSNORM)
    dense = LayerSpec(attention, FeedForwardSpec(4096, gated=True), NormKind.RMSNORM)
    layers = (dense, layer, layer, layer, layer, layer)
    ends = (NormKind.RMSNORM, PositionKind.ROTARY, 4096, False)
    model = ModelSpec("predicting", "deepseek_v3", 1024, 32000, layers, *ends)
    return replace(model, num_prediction_layers=1)


MODELS = {
    "opt-350m": load_model("opt-350m"),
    "bloom": trim_layers(load_model("bloom-176b"), 1),
    "gpt-neo": trim_layers(load_model("gpt-neo-2.7b"), 8),
    "deepseek": trim_layers(load_model("deepseek-v3").main, 2),
    "prediction": predicting(),
    "prediction, tied": replace(predicting(), tied_embeddings=True),
    "neox": neox(),
    "own form": trim_layers(load_model(EXAMPLES / "two-kinds-9b.json"), 8),
}


@cache
def planned(name: str) -> PlanDocument:
    cluster = "1x8xA100-80GB-SXM" if name in ("bloom", "deepseek") else PAIR
    return plan(MODELS[name], load_cluster(cluster), Job(16, 1024, Precision.FP16))


@pytest.mark.parametrize("name", MODELS)
def test_the_plan_is_sound(name: str) -> None:
    doc = planned(name)
    assert check_plan(doc) == []
    assert cost_violations(doc) == []
    again = parse_plan(to_json(doc), where="x")
    assert to_json(again) == to_json(doc)
    assert again.model.to_spec() == MODELS[name]


def test_heads_that_eight_ranks_cannot_share() -> None:
    """28 heads and 4 for keys and values: a tp of 8 is refused with all that there is instead."""
    pinned = Job(64, 4096, Precision.BF16, pins=Pins(tp=8))
    with pytest.raises(InputError) as caught:
        plan(load_model("qwen2-7b"), load_cluster("1x8xA100-80GB-SXM"), pinned)
    error = caught.value
    assert str(error.where) == "--tp"
    assert "tp 8 does not suit the model: 28 heads, 4 key/value heads" in str(error)
    assert error.hint == "legal: 1, 2, 4"


def test_experts_are_spread_over_the_ranks_that_there_are() -> None:
    """Experts are cut anew among the same ranks: tp 4 and ep 8 are no 32 GPUs."""
    model, cluster = load_model("qwen3-30b-a3b"), load_cluster("1x8xA100-80GB-SXM")
    doc = plan(model, cluster, Job(64, 2048, Precision.BF16, pins=Pins(tp=4, ep=8)))
    (stage,) = doc.stages
    assert (len(stage.ranks), stage.tp, stage.dp, stage.ep) == (8, 4, 2, 8)
    assert check_plan(doc) == []
    with pytest.raises(InputError, match="ep 3 does not divide 128 experts") as caught:
        plan(model, cluster, Job(64, 2048, Precision.BF16, pins=Pins(ep=3)))
    assert caught.value.hint == "legal: 1, 2, 4, 8, 16, 32, 64, 128"


def test_learned_positions_end_where_the_offset_table_does() -> None:
    """OPT's table has 2,050 rows for 2,048 positions."""
    cluster = load_cluster("1x2xA100-40GB-SXM")
    with pytest.raises(InputError, match="opt-350m has 2048 learned positions, a sample has 2050 tokens"):
        plan(load_model("opt-350m"), cluster, Job(16, 2050, Precision.BF16))


@pytest.mark.parametrize("name", ["prediction", "prediction, tied"])
@pytest.mark.parametrize("stages", [1, 3])
def test_layers_for_prediction_run_with_the_head(name: str, stages: int) -> None:
    model = MODELS[name]
    pins = Pins(pp=stages)
    doc = plan(model, load_cluster(PAIR), Job(16, 1024, Precision.FP16, pins=pins))
    assert check_plan(doc) == []
    assert cost_violations(doc) == []
    last = doc.stages[-1]
    assert last.has_head
    assert last.layers[-1] == 6
    assert doc.num_atoms == 7
    # Its embedding is that of the first stage, so their gradients are summed.
    groups = [group.stages for group in doc.tied_weight_groups]
    assert groups == ([[0, stages - 1]] if stages > 1 else [])


def test_layers_per_stage_do_not_count_those_for_prediction() -> None:
    pins = Pins(layers_per_stage=(3, 2))
    doc = plan(MODELS["prediction"], load_cluster(PAIR), Job(16, 1024, Precision.FP16, pins=pins))
    assert [tuple(stage.layers) for stage in doc.stages] == [(0, 3), (3, 6)]
    alone = Pins(layers_per_stage=(5, 0))
    doc = plan(MODELS["prediction"], load_cluster(PAIR), Job(16, 1024, Precision.FP16, pins=alone))
    assert [tuple(stage.layers) for stage in doc.stages] == [(0, 5), (5, 6)]
    assert doc.stages[1].expert_mesh is not None


@pytest.mark.parametrize("parallelizer", ["uniform", "galvatron", "alpa", "aceso"])
def test_other_parallelizers_plan_layers_for_prediction(parallelizer: str) -> None:
    options = PlanOptions(parallelizers=(parallelizer,))
    doc = plan(MODELS["prediction"], load_cluster(PAIR), Job(16, 1024, Precision.FP16), options)
    assert check_plan(doc) == []
    assert cost_violations(doc) == []
