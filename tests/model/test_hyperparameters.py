"""What only training needs travels with the model, into the plan and back, and changes nothing else."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tangram.errors import InputError
from tangram.model.hf import parse_hf_config
from tangram.model.presets import load_preset
from tangram.model.serial import fingerprint, from_dict, to_dict
from tangram.plan.schema import ModelSection

CONFIG: dict[str, Any] = {
    "model_type": "llama",
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 64,
    "vocab_size": 100,
    "max_position_embeddings": 64,
    "rope_theta": 5e5,
    "rope_scaling": {"rope_type": "linear", "factor": 2.0},
    "pad_token_id": None,
    "torch_dtype": "bfloat16",
}


def test_a_configuration_keeps_what_training_needs() -> None:
    model = parse_hf_config(CONFIG, name="tiny", where="config.json")
    assert model.hyperparameters == {key: CONFIG[key] for key in ("rope_theta", "rope_scaling")}


def test_a_nested_configuration_too() -> None:
    outer = {"model_type": "llava", "text_config": CONFIG}
    model = parse_hf_config(outer, name="tiny", where="config.json")
    assert model.hyperparameters["rope_theta"] == 5e5


def test_they_travel_with_the_plan() -> None:
    model = load_preset("llama-3-405b")
    section = ModelSection.of(model)
    assert section.hyperparameters["rope_scaling"]["rope_type"] == "llama3"
    assert section.to_spec().hyperparameters == model.hyperparameters
    assert ModelSection.of(section.to_spec()) == section


def test_models_that_differ_in_nothing_else_are_equal() -> None:
    model = load_preset("mixtral-8x7b")
    other = replace(model, hyperparameters={})
    assert model == other
    assert hash(model) == hash(other)
    assert fingerprint(model) == fingerprint(other)


def test_own_form() -> None:
    data = to_dict(load_preset("gpt3-125m"))
    assert from_dict(data | {"hyperparameters": {"resid_pdrop": 0.1}}).hyperparameters == {"resid_pdrop": 0.1}
    with pytest.raises(InputError, match="must be an object"):
        from_dict(data | {"hyperparameters": [1]})
