from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from tangram.cli.main import main
from tangram.cost.constants import Shelf, definition, shelf_of

Capture = pytest.CaptureFixture[str]

HEADER = (
    "source,gpu,n_gpus,model,n_layers,hidden,heads,vocab,seq_len,global_batch,micro_batch,tp,pp,dp,"
    "zero_or_fsdp,precision,iter_s,peak_mem_GiB,nic_gbit_per_s"
)


@pytest.fixture
def rows(tmp_path: Path) -> str:
    """A cluster whose steps take 1.4 times what a plain count of FLOP at 200 TFLOP/s says."""
    lines = [HEADER]
    for hidden in (1024, 2048, 4096):
        for m in (1, 2, 4, 8):
            seconds = 1.4 * 64 * 2048 * 6 * 12 * 8 * hidden**2 / 8 / 200e12
            cells = ("mine", "A100-80GB-SXM", 8, f"h{hidden}", 8, hidden, 16, 50257, 2048, 64, m, 1, 1, 8)
            lines.append(",".join(map(str, (*cells, "ZeRO-1", "bf16", f"{seconds:.4f}", 40, 100))))
    path = tmp_path / "mine.csv"
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return str(path)


def test_a_calibration_file_and_a_page(rows: str, tmp_path: Path, capsys: Capture) -> None:
    pytest.importorskip("scipy")
    target = tmp_path / "mine.json"
    assert main(["calibrate", rows, "-o", str(target)]) == 0
    out, _ = capsys.readouterr()
    assert "fitted to 12 rows" in out
    assert "source left out" in out
    first = target.read_bytes()
    document = json.loads(first)
    assert (document["format"], document["version"]) == ("tangram-calibration", 1)
    values = [
        (shelf, name, entry)
        for shelf in Shelf
        for entries in document[shelf.value].values()
        for name, entry in entries.items()
    ]
    assert values
    for shelf, name, entry in values:
        assert shelf_of(name) is shelf
        known = definition(name)
        assert known.low * 0.999 <= entry["value"] <= known.high * 1.001
        assert entry["low"] <= entry["value"] <= entry["high"]
        assert entry["rows"] == 12
    assert {error["target"] for error in document["errors"]} == {"time", "memory"}
    assert document["bands"][0]["num_rows"] == 12
    assert main(["calibrate", rows, "-o", str(target)]) == 0
    assert target.read_bytes() == first


def test_one_shelf_only(rows: str, tmp_path: Path) -> None:
    pytest.importorskip("scipy")
    target = tmp_path / "stack.json"
    assert main(["calibrate", rows, "-o", str(target), "--shelf", "stack"]) == 0
    document = json.loads(target.read_text(encoding="utf-8"))
    assert document["gpu_family"] == document["cluster"] == {}
    assert document["stack"]


def test_without_scipy_it_says_what_to_install(
    rows: str, tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "scipy.optimize", None)
    assert main(["calibrate", rows, "-o", str(tmp_path / "c.json")]) == 2
    assert "pip install 'tangram-llm[calibrate]'" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["nowhere.csv", "-o", "{out}"], "error: nowhere.csv: cannot be read"),
        (["{rows}", "-o", "{out}", "--splits", "0"], "error: --splits: 0 is out of range"),
        (["{rows}", "-o", "no/such/file.json"], "there is no folder"),
        (["{empty}", "-o", "{out}"], "no row can be used"),
        (["{rows}"], "-o"),
    ],
)
def test_refusals(rows: str, tmp_path: Path, capsys: Capture, argv: list[str], message: str) -> None:
    empty = tmp_path / "empty.csv"
    empty.write_text(HEADER + "\n", encoding="utf-8")
    names = {"{rows}": rows, "{out}": str(tmp_path / "out.json"), "{empty}": str(empty)}
    assert main(["calibrate", *(names.get(word, word) for word in argv)]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert message in err
    assert "Traceback" not in err
