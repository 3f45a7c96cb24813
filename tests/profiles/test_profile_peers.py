from __future__ import annotations

import json
from importlib import resources
from pathlib import Path

import pytest

from tangram.errors import InputError, UnknownNameError
from tangram.model.presets import load_preset
from tangram.profiles.peers import knows_gpu, profiled_gpu, profiled_model

DATA = json.loads(resources.files("tangram.profiles").joinpath("peers.json").read_text(encoding="utf-8"))
PAGE = Path(__file__).parents[2] / "docs" / "profiles.md"


@pytest.mark.parametrize("name", list(DATA["models"]))
def test_models_are_whole(name: str) -> None:
    entry = DATA["models"][name]
    found = profiled_model(name)
    assert found.spec.num_layers == entry["num_layers"]
    assert found.spec.layers[0].attention.query_width == found.spec.hidden_size
    assert found.seq_len == entry["seq_len"]
    assert entry["source"]
    assert f"`{name}`" in PAGE.read_text(encoding="utf-8")


def test_presets_are_models_too() -> None:
    found = profiled_model("gpt3-1.3b")
    assert (found.spec, found.seq_len, found.last_is_head) == (load_preset("gpt3-1.3b"), None, True)
    with pytest.raises(UnknownNameError, match="OPT-350"):
        profiled_model("OPT-35")


@pytest.mark.parametrize("name", list(DATA["gpus"]))
def test_gpus_are_whole(name: str) -> None:
    assert knows_gpu(name)
    assert profiled_gpu(name) == DATA["gpus"][name]["name"]
    assert DATA["gpus"][name]["source"]


def test_gpus_of_the_catalogue_and_of_nobody() -> None:
    assert profiled_gpu("NVIDIA A100-SXM4-80GB") == "A100-80GB-SXM"
    assert profiled_gpu(" abacus ") == "abacus"
    assert not knows_gpu("abacus")
    assert not knows_gpu("A100")
    with pytest.raises(InputError, match="which variant"):
        profiled_gpu("A100")
