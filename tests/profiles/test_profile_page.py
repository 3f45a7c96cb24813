"""docs/profiles.md: its example runs, and its formats are those that there are."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tangram.job import Precision
from tangram.model.presets import load_preset
from tangram.profiles.importers.formats import FORMATS
from tangram.profiles.records import LayerTime
from tangram.profiles.shapes import layer_shape
from tangram.profiles.store import save

PAGE = (Path(__file__).parents[2] / "docs" / "profiles.md").read_text(encoding="utf-8")


def test_the_example_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    model = load_preset("gpt3-1.3b")
    shape = layer_shape(model, model.layers[0], 2048)
    record = LayerTime("V100-32GB-SXM2", "test", Precision.FP16, shape, 2, 4, True, 0.014, 0.02, "a test")
    save(tmp_path / "profiles.sqlite", [record])
    monkeypatch.chdir(tmp_path)
    example = re.search(r"```python\n(.*?)```", PAGE, re.DOTALL)
    assert example is not None
    exec(example[1], {})
    out = capsys.readouterr().out
    assert "forward_s=0.014" in out
    assert "Factors(forward=" in out


def test_all_formats_are_explained() -> None:
    tables = re.findall(r"^\| `([a-z-]+)` \|", PAGE, re.MULTILINE)
    assert set(tables) == set(FORMATS)


def test_the_formats_of_the_help_are_those_that_there_are() -> None:
    from tangram.cli.app import build_command

    command = build_command().commands["profiles"].commands["import"]
    text = next(param.help for param in command.params if param.name == "format_name")
    assert set(re.findall(r"[a-z-]+", text)) - {"or"} == set(FORMATS)
