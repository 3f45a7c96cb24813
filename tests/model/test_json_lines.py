"""Lines of what is wrong in JSON files, against the lines that Python's writer puts things on."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tangram.errors import InputError, UnknownNameError
from tangram.model.json_lines import line_of, lines_named
from tangram.model.load import load_model
from tangram.model.serial import to_dict

EXAMPLE = Path(__file__).parents[2] / "examples" / "models" / "two-kinds-9b.json"

PLAIN = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8)
TREES = st.recursive(
    PLAIN,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=6), inner, max_size=4),
    max_leaves=24,
)


def lines_of(
    value: Any, path: tuple[str | int, ...], first: int
) -> Iterator[tuple[tuple[str | int, ...], int]]:
    """Every member and item with its line in ``json.dumps(value, indent=1)``: counted, not searched for."""
    members = value.items() if isinstance(value, dict) else enumerate(value)
    line = first + 1
    for key, inner in members:
        yield (*path, key), line
        if isinstance(inner, dict | list):
            yield from lines_of(inner, (*path, key), line)
        line += json.dumps(inner, indent=1).count("\n") + 1


@given(st.dictionaries(st.text(max_size=6), TREES, max_size=4))
def test_every_member_is_found(tree: dict[str, Any]) -> None:
    text = json.dumps(tree, indent=1)
    for path, line in lines_of(tree, (), 1):
        assert line_of(text, path) == line
        assert line_of(text, (*path, "\0 not there")) == line
        assert line_of(text.replace("\n", " "), path) == 1


@given(st.text(max_size=40), st.lists(st.text(max_size=3) | st.integers(0, 3), max_size=4))
def test_no_field_is_a_crash(field: str, path: list[str | int]) -> None:
    """Whatever a message calls the field: a line of the file, and the message as it was."""
    text = json.dumps({"a": [1, {"b": 2}], "c": None}, indent=1)
    assert 1 <= line_of(text, path) <= text.count("\n") + 1
    with pytest.raises(InputError) as caught, lines_named(text, "f.json"):
        raise InputError("is wrong", where=f"f.json: {field}")
    assert str(caught.value).startswith("f.json:")
    assert str(caught.value).endswith(f": {field}: is wrong")


def test_errors_about_other_things_stay() -> None:
    for where in (None, "f.json", "f.json:3:2", "other.json: a", "--tp"):
        with pytest.raises(InputError) as caught, lines_named('{"a": 1}', "f.json"):
            raise InputError("is wrong", where=where)
        assert caught.value.where == where


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ('"hidden_size": 4096', '"hidden_size": "wide"', "5: hidden_size: is the text 'wide'"),
        ('"hidden_size": 4096', '"hidden_sizes": 4096', "5: 'hidden_sizes' is no key of a model"),
        ('"num_experts": 8', '"num_experts": 0', "42: layer_kinds[1]: moe: num_experts: 0 is out of range"),
        ('"num_experts": 8', '"experts": 8', "42: layer_kinds[1]: moe: 'experts' is no key of"),
        ('"window": 1024', '"window": true', "23: layer_kinds[0]: attention: window: is true"),
        ("[0, 0, 0, 1,", "[0, 0, 0, 7,", "57: layers[3]: 7 is out of range"),
    ],
)
def test_a_model_in_the_own_form(old: str, new: str, says: str, tmp_path: Path) -> None:
    text = EXAMPLE.read_text()
    assert text.count(old) == 1
    file = tmp_path / "model.json"
    file.write_text(text.replace(old, new))
    with pytest.raises(InputError) as caught:
        load_model(file)
    assert str(caught.value).startswith(f"{file}:{says}")
    assert json.dumps(to_dict(load_model(EXAMPLE)))  # as it is, it is a model


def test_a_configuration(tmp_path: Path) -> None:
    file = tmp_path / "config.json"
    file.write_text('{\n "model_type": "llama",\n "text_config": null,\n "hidden_size": -1\n}\n')
    with pytest.raises(InputError, match=r"config\.json:4: hidden_size: -1 is out of range"):
        load_model(tmp_path)
    file.write_text('{\n "model_type": "lama"\n}\n')
    with pytest.raises(UnknownNameError, match=r"config\.json: unknown model_type 'lama'"):
        load_model(tmp_path)
