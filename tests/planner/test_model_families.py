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
from tangram.model.spec import ModelSpec
from tangram.plan.check import check_plan
from tangram.plan.json_io import parse_plan, to_json
from tangram.plan.schema import PlanDocument
from tangram.planner.planner import plan
from tangram.planner.recost import cost_violations

EXAMPLES = Path(__file__).parents[2] / "examples" / "models"
PAIR = "1x2xA100-40GB-SXM+1x2xV100-32GB-SXM2@100Gbit"


def neox() -> ModelSpec:
    """The layers of GPT-NeoX: both blocks from one input."""
    model = load_model("gpt3-1.3b")
    layer = replace(model.layers[0], parallel=True)
    return replace(model, name="neox", layers=(layer,) * 8)


MODELS = {
    "opt-350m": load_model("opt-350m"),
    "bloom": trim_layers(load_model("bloom-176b"), 1),
    "gpt-neo": trim_layers(load_model("gpt-neo-2.7b"), 8),
    "deepseek": trim_layers(load_model("deepseek-v3"), 2),
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


def test_learned_positions_end_where_the_offset_table_does() -> None:
    """OPT's table has 2,050 rows for 2,048 positions."""
    cluster = load_cluster("1x2xA100-40GB-SXM")
    with pytest.raises(InputError, match="opt-350m has 2048 learned positions, a sample has 2050 tokens"):
        plan(load_model("opt-350m"), cluster, Job(16, 2050, Precision.BF16))
