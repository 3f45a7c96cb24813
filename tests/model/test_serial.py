from __future__ import annotations

import dataclasses
import json

import pytest
from hypothesis import given
from model_strategies import models

from tangram.errors import InputError
from tangram.model.presets import load_preset, preset_names
from tangram.model.serial import fingerprint, from_dict, to_dict
from tangram.model.spec import ModelSpec

TINY = {
    "name": "tiny",
    "family": "mixtral",
    "source": "",
    "hidden_size": 8,
    "vocab_size": 32,
    "norm": "rmsnorm",
    "position": "rotary",
    "max_positions": 16,
    "tied_embeddings": False,
    "layer_kinds": [
        {
            "norm": "rmsnorm",
            "attention": {
                "num_heads": 2,
                "num_kv_heads": 1,
                "head_dim": 4,
                "qkv_bias": False,
                "out_bias": False,
                "qk_norm": False,
            },
            "moe": {
                "num_experts": 4,
                "top_k": 2,
                "expert": {"intermediate_size": 16, "gated": True, "bias": False},
            },
        }
    ],
    "layers": [0, 0],
}


def changed(path: str, value: object) -> dict[str, object]:
    """Returns TINY with one value replaced, or taken out (value ...)."""
    data = json.loads(json.dumps(TINY))
    at = data
    *outer, last = path.split("/")
    for key in outer:
        at = at[int(key)] if isinstance(at, list) else at[key]
    if value is ...:
        del at[last]
    else:
        at[last] = value
    return data


@given(models())
def test_there_and_back(model: ModelSpec) -> None:
    data = json.loads(json.dumps(to_dict(model)))
    assert data == to_dict(model)
    assert from_dict(data) == model


@pytest.mark.parametrize("name", preset_names())
def test_presets_there_and_back(name: str) -> None:
    model = load_preset(name)
    assert from_dict(json.loads(json.dumps(to_dict(model)))) == model


def test_equal_layers_are_written_once() -> None:
    data = to_dict(load_preset("gshard-moe-2.4b"))
    assert data["layers"] == [0, 1] * 8
    assert len(data["layer_kinds"]) == 2  # type: ignore[arg-type]


def test_the_block_that_a_layer_does_not_have_may_be_null() -> None:
    assert from_dict(changed("layer_kinds/0/feed_forward", None)) == from_dict(TINY)


def test_the_form_is_frozen() -> None:
    assert to_dict(from_dict(TINY)) == TINY


@pytest.mark.parametrize(
    ("path", "value", "expected"),
    [
        ("name", ..., "m: the key 'name' is missing"),
        ("name", 3, "m: name: is 3, but must be text"),
        ("name", None, "m: name: is null, but must be text"),
        ("name", "x" * 10_001, "m: name: is longer than 10000 characters"),
        ("hidden", 8, "m: 'hidden' is no key of a model (did you mean 'hidden_size'?)"),
        ("hidden_size", True, "m: hidden_size: is true, but must be a whole number"),
        ("norm", "batchnorm", "m: norm: is the text 'batchnorm' (legal: rmsnorm, layernorm)"),
        ("position", "sinusoidal", "m: position: is the text 'sinusoidal' (legal: rotary, learned, alibi)"),
        ("tied_embeddings", ..., "m: the key 'tied_embeddings' is missing"),
        ("tied_embeddings", 1, "m: tied_embeddings: is 1, but must be true or false"),
        ("layer_kinds", [], "m: layer_kinds: is a list, but must be a list with a kind"),
        ("layer_kinds", ..., "m: the key 'layer_kinds' is missing (a list with the different layers"),
        ("layer_kinds", None, "m: layer_kinds: is null, but must be a list with a kind"),
        ("layers", ..., "m: the key 'layers' is missing (for each layer, first to last, the number"),
        ("layer_kinds", [3], "m: layer_kinds[0]: is 3, but must be an object"),
        ("layers", [], "m: layers: lists 0 layers (legal: 1 to 10000)"),
        ("layers", [0, 1], "m: layers[1]: 1 is out of range (legal: 0 to 0)"),
        ("layers", 2, "m: layers: is 2, but must be a list"),
        ("layer_kinds/0/moe", ..., "m: layer_kinds[0]: must have either 'feed_forward' or 'moe'"),
        ("layer_kinds/0/feed_forward", {}, "m: layer_kinds[0]: must have either 'feed_forward' or 'moe'"),
        ("layer_kinds/0/attention", ..., "m: layer_kinds[0]: the key 'attention' is missing"),
        ("layer_kinds/0/attention/num_kv_heads", 3, "m: layer_kinds[0]: attention: num_kv_heads: 3 does not"),
        ("layer_kinds/0/moe/top_k", 5, "m: layer_kinds[0]: moe: top_k: 5 is more than 4 experts"),
        ("layer_kinds/0/moe/expert", 5, "m: layer_kinds[0]: moe: expert: is 5, but must be an object"),
    ],
)
def test_refusals(path: str, value: object, expected: str) -> None:
    with pytest.raises(InputError) as caught:
        from_dict(changed(path, value), where="m")
    assert str(caught.value).startswith(expected)


def test_fingerprints_see_content_only() -> None:
    model = load_preset("mixtral-8x7b")
    assert fingerprint(model) == fingerprint(dataclasses.replace(model, name="other", source="other"))
    assert fingerprint(model) != fingerprint(dataclasses.replace(model, layers=model.layers[:-1]))
    assert fingerprint(model) != fingerprint(dataclasses.replace(model, tied_embeddings=True))
    assert fingerprint(model) == "a0a6251ca513bb3b"  # plans carry it: it must not change by accident
    assert len({fingerprint(load_preset(name)) for name in preset_names()}) == len(preset_names())
