"""The configuration that is written describes the model that was trained."""

from __future__ import annotations

from dataclasses import replace

import pytest
from samples import dense_plan

from tangram.errors import InputError
from tangram.model.hf import parse_hf_config
from tangram.model.presets import load_preset, preset_names
from tangram.model.spec import ModelSpec
from tangram.plan.schema import ModelSection, PlanDocument
from tangram.runtime.hf_config import check_saveable, config_of
from tangram.runtime.models.names import FAMILIES


def plan_with(model: ModelSpec) -> PlanDocument:
    return dense_plan().model_copy(update={"model": ModelSection.of(model)})


@pytest.mark.parametrize("name", [name for name in preset_names() if load_preset(name).family in FAMILIES])
def test_presets(name: str) -> None:
    model = load_preset(name)
    plan = plan_with(model)
    check_saveable(plan)
    again = parse_hf_config(config_of(plan), name=name, where="config.json", source=model.source)
    assert again == model
    assert dict(model.hyperparameters).items() <= dict(again.hyperparameters).items()


def test_windows_of_some_layers() -> None:
    model = load_preset("qwen2-7b")
    windowed = replace(model.layers[0], attention=replace(model.layers[0].attention, window=512))
    check_saveable(plan_with(replace(model, layers=(*model.layers[:20], *[windowed] * 8))))
    other = replace(windowed, attention=replace(windowed.attention, window=256))
    with pytest.raises(InputError, match="model_type qwen2 describes this model"):
        check_saveable(plan_with(replace(model, layers=(*model.layers[:20], *[windowed] * 4, *[other] * 4))))


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("llama-3-8b", {"qk_norm": True}),
        ("llama-3-8b", {"window": 512}),
        ("llama-3-8b", {"qkv_bias": True}),
        ("qwen2-7b", {"qkv_bias": False}),
        ("mixtral-8x7b", {"qkv_bias": True}),
        ("gpt3-125m", {"qkv_bias": False}),
    ],
)
def test_what_no_configuration_says(name: str, changes: dict[str, object]) -> None:
    model = load_preset(name)
    layers = [
        replace(layer, attention=replace(layer.attention, **changes))  # type: ignore[arg-type]
        for layer in model.layers
    ]
    with pytest.raises(InputError, match="describes this model"):
        check_saveable(plan_with(replace(model, layers=tuple(layers))))
