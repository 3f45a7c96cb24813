from __future__ import annotations

import json

import pytest

from tangram.cli.main import main
from tangram.cluster.catalog import load_catalog
from tangram.model.presets import preset_names

Capture = pytest.CaptureFixture[str]


def out(capsys: Capture, *argv: str) -> str:
    assert main(argv) == 0
    text, err = capsys.readouterr()
    assert err == ""
    return text


def test_models(capsys: Capture) -> None:
    text = out(capsys, "models")
    assert [line.split()[0] for line in text.splitlines()[1:]] == preset_names()
    listed = json.loads(out(capsys, "models", "--json"))
    assert [entry["name"] for entry in listed] == preset_names()
    one = json.loads(out(capsys, "models", "mixtral-8x7b", "--json"))
    assert one["num_active_params"] < one["num_params"]


def test_gpus(capsys: Capture) -> None:
    text = out(capsys, "gpus")
    for name in load_catalog():
        assert f"{name} " in text
    listed = json.loads(out(capsys, "gpus", "--json"))
    assert [entry["name"] for entry in listed] == list(load_catalog())
    one = json.loads(out(capsys, "gpus", "T4", "--json"))
    assert one["peak_flop_per_s"]["fp16"] == 65e12


def test_islands(capsys: Capture) -> None:
    cluster = "1x4xA100-80GB-SXM+1x8xV100-32GB-SXM2@100Gbit"
    text = out(capsys, "islands", cluster)
    assert "A100-80GB-SXM differs from V100-32GB-SXM2" in text
    data = json.loads(out(capsys, "islands", cluster, "--json", "--island-network-tolerance", "inf"))
    assert [island["gpu"] for island in data["islands"]] == ["A100-80GB-SXM", "V100-32GB-SXM2"]
    assert data["tolerances"]["network"] is None
    assert data["precision"] == "fp16"


def test_schema(capsys: Capture) -> None:
    schema = json.loads(out(capsys, "schema"))
    assert schema["properties"]["format"]["const"] == "tangram-plan"
