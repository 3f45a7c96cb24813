"""Configurations against the index of the checkpoint beside them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from family_configs import ALL, GEMMA3, GPT2, LLAMA, parse, without

from tangram.errors import InputError
from tangram.model.load import load_model
from tangram.model.params import num_params


def folder(tmp_path: Path, config: dict[str, object], index: object) -> Path:
    (tmp_path / "config.json").write_text(json.dumps(config))
    text = index if isinstance(index, str) else json.dumps(index)
    (tmp_path / "model.safetensors.index.json").write_text(text)
    return tmp_path


def sized(total_size: object, *names: str) -> dict[str, object]:
    return {"metadata": {"total_size": total_size}, "weight_map": dict.fromkeys(names, "a.safetensors")}


def refusal(path: Path) -> str:
    with pytest.raises(InputError) as caught:
        load_model(path)
    return str(caught.value)


@pytest.mark.parametrize("name", sorted(ALL))
@pytest.mark.parametrize(("key", "dtype", "size"), [("dtype", "float32", 4), ("torch_dtype", "bfloat16", 2)])
def test_equal_counts_are_accepted(tmp_path: Path, name: str, key: str, dtype: str, size: int) -> None:
    config = ALL[name] | {key: dtype}
    total = num_params(parse(config)) * size
    assert load_model(folder(tmp_path, config, sized(total))).layers == parse(config).layers
    assert load_model(folder(tmp_path, config, sized(float(int(total * 1.009)))).joinpath("config.json"))


def test_a_contradiction_is_said_with_both_numbers(tmp_path: Path) -> None:
    config = LLAMA | {"torch_dtype": "bfloat16"}
    total = 2 * num_params(parse(config))
    fewer = config | {"num_hidden_layers": 3}
    message = refusal(folder(tmp_path, fewer, sized(total)))
    counted = num_params(parse(fewer))
    assert message.startswith(
        f"{tmp_path}/model.safetensors.index.json: the checkpoint holds {total // 2:,} elements "
        f"({total:,} bytes, 2 of bfloat16), the configuration describes {counted:,} ("
    )
    assert "a key of the configuration is wrong or missing" in message
    assert "the checkpoint holds" in refusal(folder(tmp_path, config, sized(int(total * 1.02))))
    assert "the checkpoint holds" in refusal(folder(tmp_path, config, sized(int(total * 0.98))))


def test_without_a_dtype_either_usual_size_will_do(tmp_path: Path) -> None:
    count = num_params(parse(LLAMA))
    for size in (2, 4):
        assert load_model(folder(tmp_path, LLAMA, sized(size * count)))
    assert "2 each, dtype not stated" in refusal(folder(tmp_path, LLAMA, sized(3 * count)))


def test_a_tied_head_may_be_written_twice(tmp_path: Path) -> None:
    count = num_params(parse(GPT2))
    assert load_model(folder(tmp_path, GPT2, sized(4 * (count + 500 * 64), "wte.weight", "lm_head.weight")))
    assert "the checkpoint holds" in refusal(
        folder(tmp_path, GPT2, sized(4 * (count + 500 * 64), "wte.weight"))
    )


def test_other_parts_may_make_the_checkpoint_larger_but_not_smaller(tmp_path: Path) -> None:
    config: dict[str, object] = {"model_type": "gemma3", "text_config": GEMMA3 | {"torch_dtype": "bfloat16"}}
    count = num_params(parse(config))
    assert load_model(folder(tmp_path, config, sized(3 * count)))
    assert "the checkpoint holds" in refusal(folder(tmp_path, config, sized(count)))


def test_what_cannot_be_compared_is_not(tmp_path: Path) -> None:
    quantised = LLAMA | {"quantization_config": {"quant_method": "fp8"}}
    assert load_model(folder(tmp_path, quantised, sized(1)))
    for index in ({}, {"metadata": {}}, {"metadata": None}, {"metadata": {"total_size": None}}):
        assert load_model(folder(tmp_path, LLAMA, index))
    other = tmp_path / "other.json"
    other.write_text(json.dumps(LLAMA))
    folder(tmp_path, without(LLAMA, "vocab_size"), "no JSON")
    assert load_model(other)  # the index belongs to config.json


@pytest.mark.parametrize("total", [True, "12", -4, 0, 1.5, [1]])
def test_sizes_that_are_none(tmp_path: Path, total: object) -> None:
    message = refusal(folder(tmp_path, LLAMA, sized(total)))
    assert message.endswith("model.safetensors.index.json: metadata.total_size: is no number of bytes")


def test_a_broken_index_is_named(tmp_path: Path) -> None:
    assert "model.safetensors.index.json:1: is not JSON: it begins with 'oh'" in refusal(
        folder(tmp_path, LLAMA, "oh")
    )
    (tmp_path / "model.safetensors.index.json").unlink()
    (tmp_path / "model.safetensors.index.json").mkdir()
    assert "is a folder, not a regular file" in refusal(tmp_path)
