"""The store from the command line: import, list, export."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tangram.cli.main import main

Capture = pytest.CaptureFixture[str]

TABLE = """\
size(B),count,type,time(ns),busbw(GB/s),time(ns),busbw(GB/s)
1048576,262144,float,60000,26.21,52740,29.82
"""


@pytest.fixture(autouse=True)
def _store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TANGRAM_PROFILES", str(tmp_path / "store.sqlite"))
    (tmp_path / "AR_GPU4_1M_1024M_LUT").write_text(TABLE, encoding="utf-8")
    layers = {str(idx): [0.04, 0.08, 0.01] for idx in range(26)}
    folder = tmp_path / "OPT-350" / "V100-16"
    folder.mkdir(parents=True)
    (folder / "profile.json").write_text(json.dumps({"1": {"1": layers, "2": layers}}), encoding="utf-8")


def run(capsys: Capture, *argv: str) -> str:
    assert main(["profiles", *argv]) == 0
    text, err = capsys.readouterr()
    assert err == ""
    return text


def fails(capsys: Capture, *argv: str) -> str:
    assert main(["profiles", *argv]) == 2
    text, err = capsys.readouterr()
    assert text == ""
    assert err.startswith("error: ")
    assert "Traceback" not in err
    return err


def both(capsys: Capture, tmp_path: Path) -> None:
    run(capsys, "import", "sailor", str(tmp_path / "OPT-350"), "--precision", "fp32")
    run(capsys, "import", "vtrain", str(tmp_path), "--gpu", "A100-40GB-SXM", "--link", "nvlink")


def test_import_says_what_it_did(capsys: Capture, tmp_path: Path) -> None:
    argv = ("import", "sailor", str(tmp_path / "OPT-350"), "--precision", "fp32")
    text = run(capsys, *argv)
    assert "6: 6 new, 0 changed, 0 known" in text
    assert "52 x optimizer times" in text
    again = json.loads(run(capsys, *argv, "--json"))
    assert (again["num_records"], again["new"], again["changed"], again["same"]) == (6, 0, 0, 6)
    assert again["store"] == str(tmp_path / "store.sqlite")


def test_list(capsys: Capture, tmp_path: Path) -> None:
    both(capsys, tmp_path)
    text = run(capsys, "list")
    assert "7 records" in text
    lines = {line.strip() for line in text.splitlines()}
    assert any(line.startswith("layer h1024 s2048 a16/16x64 f4096  1 2  in") for line in lines)
    assert any(line.startswith("all_reduce  intra-node  4") and "29.82 GB/s" in line for line in lines)
    data = json.loads(run(capsys, "list", "--json", "--gpu", "v100-16gb-sxm2"))
    assert [group["shape"]["kind"] for group in data["layers"]] == ["embedding", "head", "layer"]
    assert data["links"] == []
    layer = data["layers"][2]
    assert (layer["tp"], layer["includes_tp_comm"], layer["measures"]) == (
        [1, 2],
        [True],
        ["forward_s", "backward_s"],
    )


def test_export_and_import_again(capsys: Capture, tmp_path: Path) -> None:
    both(capsys, tmp_path)
    path = tmp_path / "all.json"
    assert main(["profiles", "export", "-o", str(path)]) == 0
    assert capsys.readouterr().err == f"wrote {path}\n"
    other = str(tmp_path / "other.sqlite")
    run(capsys, "import", "tangram", str(path), "--store", other)
    assert run(capsys, "export", "--store", other) == path.read_text(encoding="utf-8")
    table = run(capsys, "export", "--format", "csv", "--kind", "collectives").splitlines()
    assert len(table) == 2
    assert table[0].startswith("gpu,stack,link,scope,op,ranks")


def test_mistakes_are_told_in_one_message(capsys: Capture, tmp_path: Path) -> None:
    assert "no such profile store" in fails(capsys, "list")
    assert "tangram profiles --help" in fails(capsys)
    profile = str(tmp_path / "OPT-350")
    assert "give --precision" in fails(capsys, "import", "sailor", profile)
    assert "unknown format 'sailr'" in fails(capsys, "import", "sailr", profile)
    assert "--op: unknown collective 'x'" in fails(capsys, "import", "vtrain", profile, "--op", "x")
    assert "--seq-len: sequence length 0" in fails(capsys, "import", "sailor", profile, "--seq-len", "0")
    assert "--model: unknown model 'OPT'" in fails(
        capsys, "import", "sailor", profile, "--precision", "fp32", "--model", "OPT"
    )
    assert "which variant" in fails(
        capsys, "import", "sailor", profile, "--precision", "fp32", "--gpu", "V100"
    )
    assert not (tmp_path / "store.sqlite").exists()
    both(capsys, tmp_path)
    assert "unknown kind 'layer'" in fails(capsys, "export", "--kind", "layer")
    assert "unknown format 'xml'" in fails(capsys, "export", "--format", "xml")
    assert "there is no folder" in fails(capsys, "export", "-o", str(tmp_path / "no" / "x.json"))


def test_an_import_of_nothing_is_a_mistake(capsys: Capture, tmp_path: Path) -> None:
    data: dict[str, Any] = {"allreduce_size_4_consec_0": 140.0}
    path = tmp_path / "allreduce_bandwidth_1nodes_8gpus_per_node.json"
    path.write_text(json.dumps(data), encoding="utf-8")
    err = fails(capsys, "import", "galvatron", str(path), "--gpu", "T4")
    assert "nothing in these files can be used" in err
    assert "1 x strided ranks inside one node" in err
