"""``tangram profile`` from end to end on a CPU, and what goes wrong."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from tangram.cli.main import main

Capture = pytest.CaptureFixture[str]

MODEL = {
    "model_type": "mixtral",
    "num_hidden_layers": 4,
    "hidden_size": 32,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 48,
    "num_local_experts": 4,
    "num_experts_per_tok": 2,
    "vocab_size": 300,
    "max_position_embeddings": 64,
}


def needs_torch() -> None:
    torch = pytest.importorskip("torch", reason="PyTorch is not installed (pip install 'tangram-llm[train]')")
    torch.set_num_threads(1)


@pytest.fixture
def model(tmp_path: Path) -> str:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(MODEL))
    return str(path)


def profile(model: str, store: Path, *options: str) -> int:
    quick = ["--gpu", "CPU", "--seq-len", "16", "--repeats", "2", "--warmup", "0", "--store", str(store)]
    return main(["profile", model, *quick, *options])


def test_a_page_and_a_store(model: str, tmp_path: Path, capsys: Capture) -> None:
    needs_torch()
    from tangram.profiles.store import load

    store = tmp_path / "new" / "folder" / "store.sqlite"
    assert profile(model, store, "--tp", "1,2", "--micro-batch", "2,1", "--precision", "bf16") == 0
    text, err = capsys.readouterr()
    assert err == ""
    for words in ("embedding h32", "layer h32 s16 a4/2x8 f48g e4k2", "head h32", "12 records in"):
        assert words in text
    records = load(store).layers
    assert len(records) == 12
    assert {record.precision.value for record in records} == {"bf16"}
    assert {(record.tp, record.micro_batch) for record in records} == {(1, 1), (1, 2), (2, 1), (2, 2)}


def test_json_holds_what_the_store_holds(model: str, tmp_path: Path, capsys: Capture) -> None:
    needs_torch()
    from tangram.profiles.store import load

    store = tmp_path / "store.sqlite"
    assert profile(model, store, "--layers", "0,head", "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert [layer["shape"]["kind"] for layer in found["layers"]] == ["layer", "head"]
    assert found["collectives"] == found["skipped"] == []
    by_kind = {record.shape.kind: record for record in load(store).layers}
    for layer in found["layers"]:
        record = by_kind[layer["shape"]["kind"]]
        assert layer["forward_s"] == record.forward_s == layer["spreads"]["forward_s"]["median_s"]
        assert layer["workspace_bytes"] is None
        assert layer["notes"]


def test_a_second_run_replaces_the_first(model: str, tmp_path: Path, capsys: Capture) -> None:
    needs_torch()
    from tangram.profiles.store import load

    store = tmp_path / "store.sqlite"
    assert profile(model, store) == profile(model, store, "--layers", "layer") == 0
    assert len(load(store).layers) == 3


def test_a_model_is_priced_by_its_measurements(model: str, tmp_path: Path) -> None:
    """Profile, then look every atom up: as measured, between two micro-batches, and never by a formula."""
    needs_torch()
    from tangram.job import Precision
    from tangram.model.atoms import cut_atoms
    from tangram.model.load import load_model
    from tangram.profiles.lookup import Basis, layer_times
    from tangram.profiles.measured import LayerQuery, MeasuredLayers
    from tangram.profiles.shapes import atom_shapes
    from tangram.profiles.store import load

    store = tmp_path / "store.sqlite"
    assert profile(model, store, "--tp", "1,2", "--micro-batch", "1,4") == 0
    records = load(store).layers
    measured = MeasuredLayers.of(records)
    spec = load_model(model)
    for tp, micro_batch, basis in (
        (1, 1, Basis.MEASURED),
        (2, 4, Basis.MEASURED),
        (2, 2, Basis.INTERPOLATED),
    ):
        for atom in cut_atoms(spec):
            (shape,) = atom_shapes(spec, atom, 16)
            found = layer_times(measured, LayerQuery("CPU", Precision.FP32, shape, tp, micro_batch))
            assert found is not None
            assert found.basis is basis
            assert not found.includes_tp_comm
            of_shape = [r for r in records if r.shape == shape and r.tp == tp]
            low, high = sorted(r.forward_s for r in of_shape)
            assert low <= found.forward_s * (1 + 1e-12)
            assert found.forward_s <= high * (1 + 1e-12)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--tp", "3"], "--tp: tp 3 does not divide"),
        (["--tp", "1;2"], "--tp: '1;2' is no number above zero"),
        (["--micro-batch", "0"], "--micro-batch: '0' is no number above zero"),
        (["--layers", "4"], "--layers: '4' is no piece of"),
        (["--layers", "none"], "there is nothing to time"),
        (["--collectives"], "--collectives: one process has nobody to talk to"),
        (["--precision", "tf32"], "--precision: a CPU has no tf32"),
        (["--gpu", "T4"], "this device is a CPU, not T4"),
        (["--device", "cuda"], "PyTorch finds no GPU"),
        (["--seq-len", "0"], "--seq-len: 0 tokens are out of range"),
        (["--repeats", "0"], "--repeats: repeats 0 is out of range"),
        (["--store", "/"], "/: is a folder, not a file"),
    ],
)
def test_bad_input(model: str, tmp_path: Path, capsys: Capture, options: list[str], message: str) -> None:
    needs_torch()
    assert profile(model, tmp_path / "store.sqlite", "--device", "cpu", *options) == 2
    text, err = capsys.readouterr()
    assert text == ""
    assert message in err
    assert "Traceback" not in err
    assert not (tmp_path / "store.sqlite").exists()


def test_a_file_that_is_no_store_is_refused(model: str, tmp_path: Path, capsys: Capture) -> None:
    needs_torch()
    path = tmp_path / "notes.txt"
    path.write_text("not a database, but a text that somebody wants to keep")
    assert profile(model, path) == 2
    assert "is no profile store" in capsys.readouterr().err
    assert path.read_text().startswith("not a database")


def test_nothing_fits(model: str, tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    needs_torch()
    from tangram.profiler.device import Device

    monkeypatch.setattr(Device, "free_bytes", lambda self: 1)
    assert profile(model, tmp_path / "store.sqlite") == 3
    err = capsys.readouterr().err
    assert "nothing could be timed" in err
    assert "head h32 s16 v384, tp 1, micro-batch 1: needs" in err


def test_without_torch(model: str, tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    assert profile(model, tmp_path / "store.sqlite") == 2
    err = capsys.readouterr().err
    assert err == "error: tangram profile: PyTorch is not installed\n  pip install 'tangram-llm[train]'\n"
    assert not (tmp_path / "store.sqlite").exists()


def test_an_unknown_model_needs_no_torch(
    tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    assert profile("gpt3-13c", tmp_path / "store.sqlite") == 2
    assert "did you mean" in capsys.readouterr().err
