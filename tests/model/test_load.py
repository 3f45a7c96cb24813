from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from tangram.errors import InputError, UnknownNameError
from tangram.model.load import load_model, trim_layers
from tangram.model.params import num_params
from tangram.model.presets import load_preset
from tangram.model.serial import to_dict

GPT2 = {"model_type": "gpt2", "n_layer": 3, "n_embd": 64, "n_head": 4, "n_positions": 128, "vocab_size": 500}


def test_a_preset() -> None:
    assert load_model("llama-3-8b") == load_preset("llama-3-8b")


def test_a_file_and_a_folder(tmp_path: Path) -> None:
    folder = tmp_path / "my-gpt"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(GPT2))
    assert load_model(str(folder)) == load_model(folder / "config.json")
    assert load_model(folder).name == "my-gpt"


def test_a_preset_wins_over_a_folder_of_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "llama-3-8b"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(GPT2))
    monkeypatch.chdir(tmp_path)
    assert load_model("llama-3-8b").family == "llama"
    assert load_model("./llama-3-8b").family == "gpt2"
    monkeypatch.setenv("HOME", str(tmp_path))
    assert load_model("~/llama-3-8b").family == "gpt2"


def test_a_file_in_our_own_form(tmp_path: Path) -> None:
    model = load_preset("gshard-moe-10b")
    file = tmp_path / "moe.json"
    file.write_text(json.dumps(to_dict(model)))
    assert load_model(file) == model


def test_unknown_names() -> None:
    with pytest.raises(UnknownNameError) as caught:
        load_model("lama-3-8b")
    assert "unknown model 'lama-3-8b' (did you mean 'llama-3-8b'" in str(caught.value)
    with pytest.raises(UnknownNameError) as caught:
        load_model("zzzz\x1b[31m")
    assert str(caught.value).isprintable()
    assert "gpt3-13b" in str(caught.value)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("meta-llama/llama-3-8B", "nothing is downloaded); the nearest preset is 'llama-3-8b'"),
        ("./absent", "no such file or folder"),
        ("absent.json", "no such file or folder"),
        ("", "the name of the model is empty"),
        ("  ", "the name of the model is empty"),
        ("nul\0byte", ""),
        ("x" * 5000, ""),
        ("~nobody-of-that-name/x", "is not a path"),
        ("/dev/null", "is a device, not a regular file"),
        ("/dev/null/x", "no such file or folder"),
    ],
    ids=range(10),
)
def test_refused_paths(text: str, expected: str) -> None:
    with pytest.raises(InputError) as caught:
        load_model(text)
    message = str(caught.value)
    assert expected in message
    assert message.isprintable()
    assert len(message) < 500


def test_a_pipe_does_not_block(tmp_path: Path) -> None:
    pipe = tmp_path / "config.json"
    os.mkfifo(pipe)
    for path in (pipe, tmp_path):
        with pytest.raises(InputError, match="is a pipe, not a regular file"):
            load_model(path)


def test_an_empty_folder(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"the folder has no config\.json"):
        load_model(tmp_path)


def test_trimming() -> None:
    model = load_preset("mixtral-8x7b")
    half = trim_layers(model, 16)
    assert half.name == "mixtral-8x7b[16 layers]"
    assert half.layers == model.layers[:16]
    assert (half.hidden_size, half.vocab_size, half.source) == (4096, 32000, model.source)
    ends = 2 * 32000 * 4096 + 4096
    assert (num_params(half) - ends) * 2 == num_params(model) - ends
    assert trim_layers(half, 8).name == "mixtral-8x7b[8 layers]"
    assert trim_layers(half, 8) == trim_layers(model, 8)
    assert trim_layers(model, 1).name == "mixtral-8x7b[1 layer]"
    assert trim_layers(trim_layers(model, 1), 1).name == "mixtral-8x7b[1 layer]"
    assert trim_layers(model, 32) is model


def test_trimming_keeps_the_first_layers() -> None:
    model = trim_layers(load_preset("gshard-moe-2.4b"), 3)
    assert [layer.moe is not None for layer in model.layers] == [True, False, True]


@pytest.mark.parametrize("num_layers", [0, -1, 33, True, 2.0, "2"])
def test_trimming_out_of_range(num_layers: int) -> None:
    with pytest.raises(InputError) as caught:
        trim_layers(load_preset("mixtral-8x7b"), num_layers)
    assert str(caught.value).startswith("--num-layers: ")
    assert "legal: 1 to 32" in str(caught.value)
