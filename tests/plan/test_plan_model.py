"""The model in a plan document: complete, and written as before where a model has nothing rare."""

from __future__ import annotations

import hashlib
import json

import pytest
from hypothesis import given
from model_strategies import models
from samples import dense_plan, edited, operator_plan

from tangram.errors import InputError
from tangram.model.presets import load_preset, preset_names
from tangram.model.serial import from_dict, to_dict
from tangram.model.spec import ModelSpec
from tangram.plan.check import check_plan
from tangram.plan.schema_model import ModelSection

RARE = {"embedding_size", "embedding_norm", "final_norm", "position_offset", "post_norm", "parallel"}
RARE |= {"num_prediction_layers"}


def keys_of(section: ModelSection) -> set[str]:
    data = json.loads(section.model_dump_json())
    return set(data).union(*data["layer_kinds"])


@given(models())
def test_any_model_survives(model: ModelSpec) -> None:
    section = ModelSection.of(model)
    again = ModelSection.model_validate_json(section.model_dump_json(), strict=True)
    assert again == section
    assert again.to_spec() == model


@pytest.mark.parametrize("name", preset_names())
def test_rare_fields_are_written_where_a_model_has_them(name: str) -> None:
    model = load_preset(name)
    section = ModelSection.of(model)
    assert section.to_spec() == model
    expected = {
        "bloom-176b": {"embedding_norm"},
        "deepseek-v3": {"num_prediction_layers"},
        "opt-30b": {"position_offset"},
        "opt-350m": {"position_offset", "embedding_size", "final_norm"},
    }
    assert keys_of(section) & RARE == expected.get(name, set())


@pytest.mark.parametrize(
    ("name", "digest"), [("gshard-moe-2.4b", "5041979651040cab"), ("llama-3-8b", "9c5b80baea354855")]
)
def test_other_models_have_the_bytes_that_they_had(name: str, digest: str) -> None:
    text = ModelSection.of(load_preset(name)).model_dump_json()
    assert hashlib.sha256(text.encode()).hexdigest()[:16] == digest


@pytest.mark.parametrize(
    ("key", "value", "expected"),
    [
        ("embedding_size", 0, "embedding_size: 0 is out of range"),
        ("embedding_size", "512", "embedding_size: is the text '512', but must be a whole number"),
        ("position_offset", -1, "position_offset: -1 is out of range"),
        ("num_prediction_layers", 24, "num_prediction_layers: 24 is out of range (legal: 0 to 23)"),
        ("final_norm", 1, "final_norm: is 1, but must be true or false"),
        ("embedding_norms", True, "'embedding_norms' is no key of a model (did you mean 'embedding_norm'?)"),
    ],
)
def test_rare_fields_are_read_strictly(key: str, value: object, expected: str) -> None:
    data = to_dict(load_preset("opt-350m")) | {key: value}
    with pytest.raises(InputError) as caught:
        from_dict(data, where="m")
    assert str(caught.value).startswith(f"m: {expected}")


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("model.num_prediction_layers", 99),
        ("model.position_offset", 2**62),
        ("model.embedding_size", 2**62),
    ],
)
def test_a_plan_with_a_broken_model_is_reported(path: str, value: int) -> None:
    # The fingerprint is given, so that nothing is derived from a model that there cannot be.
    doc = edited(dense_plan(), {path: value, "model.fingerprint": "x"})
    assert "model-invalid" in {violation.code for violation in check_plan(doc)}


def test_a_rare_field_changes_the_fingerprint() -> None:
    doc = dense_plan()
    changed = edited(doc, {"model.embedding_norm": True, "model.fingerprint": doc.model.fingerprint})
    assert "model-fingerprint" in {violation.code for violation in check_plan(changed)}


def test_a_plan_that_cuts_between_blocks_side_by_side_is_reported() -> None:
    doc = operator_plan()
    kinds = range(len(doc.model.layer_kinds))
    doc = edited(doc, {f"model.layer_kinds[{idx}].parallel": True for idx in kinds})
    assert "granularity-invalid" in {violation.code for violation in check_plan(doc)}
