from __future__ import annotations

import json
from pathlib import Path

import pytest

from tangram.cli.main import main
from tangram.job import Precision
from tangram.profiles.records import LayerTime
from tangram.profiles.shapes import LayerKind, LayerShape
from tangram.profiles.store import save

Capture = pytest.CaptureFixture[str]

HEADER = (
    "gpu,n_gpus,model,n_layers,hidden,heads,vocab,seq_len,global_batch,micro_batch,tp,pp,dp,precision,iter_s"
)
GOOD = "A100-80GB-SXM,8,small,8,1024,16,50257,2048,64,{m},1,1,8,bf16,{s}"


@pytest.fixture
def rows(tmp_path: Path) -> str:
    path = tmp_path / "mine.csv"
    good = [GOOD.format(m=m, s=s) for m, s in ((1, 0.5), (2, 0.45), (4, 0.4), (8, 0.4))]
    bad = [GOOD.format(m="two", s=0.5), GOOD.format(m=2, s=450), GOOD.format(m=3, s=0.5)]
    path.write_text("\n".join([HEADER, *good, *bad]) + "\n", encoding="utf-8")
    return str(path)


def test_a_page(rows: str, capsys: Capture) -> None:
    assert main(["validate", rows]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    assert "7 rows read, 4 used" in out
    assert "row 5, column micro_batch: 'two'" in out
    assert "row 6, column iter_s: 450 s would be" in out
    assert "row 7, column global_batch" in out


def test_json(rows: str, capsys: Capture) -> None:
    assert main(["validate", rows, "--json"]) == 0
    first = capsys.readouterr().out
    data = json.loads(first)
    assert [row["used"] for row in data["rows"]] == [True] * 4 + [False] * 3
    assert all((row["reason"] is None) == row["used"] for row in data["rows"])
    assert all(row["predicted_iter_s"] > 0 for row in data["rows"][:4])
    assert data["summary"][0]["used"] == 4
    assert main(["validate", rows, "--json"]) == 0
    assert capsys.readouterr().out == first


def test_refitting(rows: str, capsys: Capture) -> None:
    assert main(["validate", rows, "--calibrate-on", "2", "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert [row["fitted_on"] for row in data["rows"]].count(True) == 2
    assert data["summary"][0]["time"]["count"] == 2


@pytest.fixture
def store(tmp_path: Path) -> str:
    """Layers of the rows' model, for two of their four micro-batches."""
    block = {"num_heads": 16, "num_kv_heads": 16, "head_dim": 64, "intermediate_size": 4096}
    shapes = [
        LayerShape(LayerKind.LAYER, 2048, 1024, **block),
        LayerShape(LayerKind.EMBEDDING, 2048, 1024, vocab_size=50304),
        LayerShape(LayerKind.HEAD, 2048, 1024, vocab_size=50304),
    ]
    path = tmp_path / "profiles.sqlite"
    for stack in ("mine", "other"):
        save(
            path,
            [
                LayerTime(
                    gpu="A100-80GB-SXM",
                    stack=stack,
                    precision=Precision.BF16,
                    shape=shape,
                    tp=1,
                    micro_batch=m,
                    includes_tp_comm=False,
                    forward_s=0.004 * m,
                    backward_s=0.008 * m,
                    source="a test",
                )
                for shape in shapes
                for m in (1, 2)
            ],
        )
    return str(path)


def test_profiles(rows: str, store: str, capsys: Capture) -> None:
    argv = ["validate", rows, "--profiles", store, "--stack", "mine"]
    assert main([*argv, "--json"]) == 0
    first = capsys.readouterr().out
    found = json.loads(first)["rows"]
    assert [row["basis"] for row in found] == ["measured"] * 2 + ["mixed"] * 2 + [None] * 3
    # Ten atoms of 12 ms per sample; 64 samples over 8 replicas.
    for row in found[:2]:
        step = sum(row["components"][name] for name in ("grad_sync", "param_gather", "optimizer"))
        assert row["predicted_iter_s"] - step == pytest.approx(8 * 10 * 0.012)
    assert main([*argv, "--json"]) == 0
    assert capsys.readouterr().out == first
    assert main(argv) == 0
    assert "4 used; 2 rest on measured layers, 2 partly, 0 on formulas" in capsys.readouterr().out
    assert main(["validate", rows]) == 0
    assert "measured layers" not in capsys.readouterr().out


def test_profiles_of_stacks(rows: str, store: str, capsys: Capture) -> None:
    assert main(["validate", rows, "--profiles", store]) == 2
    assert "profiles of 2 stacks, and none is chosen" in capsys.readouterr().err
    assert main(["validate", rows, "--profiles", store, "--stack", "theirs"]) == 2
    assert "unknown stack 'theirs'" in capsys.readouterr().err
    assert main(["validate", rows, "--stack", "mine"]) == 2
    assert "--stack" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["nowhere.csv"], "error: nowhere.csv: cannot be read"),
        (["{rows}", "--calibrate-on", "0"], "error: --calibrate-on: 0 is out of range"),
        (["{rows}", "--calibrate-on", "4"], "no source has more than 4 rows that can be used"),
        (["{rows}", "--profiles", "nowhere.sqlite"], "nowhere.sqlite"),
        ([], "missing argument"),
    ],
)
def test_bad_input(argv: list[str], message: str, rows: str, capsys: Capture) -> None:
    assert main(["validate", *(text.format(rows=rows) for text in argv)]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert message in err
    assert "Traceback" not in err
