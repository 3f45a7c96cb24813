from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from profile_files import FP32, TF32, layers, needs_shared, read, shared_profiles, small_model, write_json

from tangram.errors import InputError
from tangram.profiles.importers.metis import STACK
from tangram.profiles.shapes import LayerKind

K = LayerKind
PER_LAYER = 4 * 256 * 256 + 3 * 256 * 1024 + 2 * 256


def document(**changes: Any) -> dict[str, Any]:
    return {
        "model": {
            "model_name": "mine",
            "num_layers": 4,
            "parameters": {"parameters_per_layer_bytes": [1, 2 * PER_LAYER, 2 * PER_LAYER, 1]},
        },
        "execution_time": {
            "forward_backward_time_ms": 16.0,
            "optimizer_time_ms": 5.0,
            "layer_compute_total_ms": changes.pop("times", [1.0, 3.0, 5.0, 6.0]),
        },
        "execution_memory": {"layer_memory_total_mb": [1, 1, 1, 1]},
    } | changes


NAME = "DeviceType.A100-40_tp2_bs4.json"


def given(tmp_path: Path, **changes: Any) -> dict[str, Any]:
    return {"model": small_model(tmp_path), "seq_len": 128, "precision": TF32} | changes


def test_a_file(tmp_path: Path) -> None:
    found = read("metis", write_json(tmp_path / NAME, document()), **given(tmp_path))
    by_point = layers(found)
    assert set(by_point) == {(K.EMBEDDING, 2, 4), (K.LAYER, 2, 4), (K.HEAD, 2, 4)}
    layer = by_point[K.LAYER, 2, 4]
    assert (layer.forward_s, layer.backward_s, layer.forward_backward_s) == (None, None, 0.004)
    assert (layer.gpu, layer.stack, layer.includes_tp_comm) == ("A100-40GB-SXM", STACK, True)
    assert by_point[K.EMBEDDING, 2, 4].total_s == 0.001
    assert layer.activation_bytes is None


def test_converted_files_lack_the_embeddings_backward_pass(tmp_path: Path) -> None:
    path = write_json(tmp_path / "A100-40" / "mbs4_tmp2.json", document(times=[1.0, 4.0, 5.0, 6.0]))
    found = read("metis", path, **given(tmp_path))
    assert {kind for kind, _, _ in layers(found)} == {K.LAYER, K.HEAD}
    assert dict(found.left_out) == {"embeddings without their backward pass": 1}


def test_the_profile_of_another_model_is_refused(tmp_path: Path) -> None:
    other = {"model_name": "mine", "parameters": {"parameters_per_layer_bytes": [1, 3 * PER_LAYER, 1, 1]}}
    with pytest.raises(InputError, match="this is the profile of another model"):
        read("metis", write_json(tmp_path / NAME, document(model=other)), **given(tmp_path))
    path = write_json(tmp_path / NAME, document())
    deep = given(tmp_path, model=small_model(tmp_path / "deep", num_layers=5))
    with pytest.raises(InputError, match="has 4 entries, but"):
        read("metis", path, **deep)


@pytest.mark.parametrize(
    ("changes", "wrong"),
    [
        ({"model": {"parameters": {}}}, "'parameters_per_layer_bytes' is missing"),
        ({"model": 3}, "is a number, but must be an object"),
        ({"execution_time": {}}, "'layer_compute_total_ms' is missing"),
        ({"times": [1.0, 3.0, None, 6.0]}, r"layer_compute_total_ms\[2\]: is null"),
        ({"times": [1.0, -3.0, 1.0, 6.0]}, r"layer_compute_total_ms\[1\]: -3 is out of range"),
    ],
)
def test_broken_files_name_the_place(tmp_path: Path, changes: dict[str, Any], wrong: str) -> None:
    with pytest.raises(InputError, match=wrong):
        read("metis", write_json(tmp_path / NAME, document(**changes)), **given(tmp_path))


def test_broken_json_names_line_and_column(tmp_path: Path) -> None:
    path = tmp_path / NAME
    path.write_text('{\n  "model": ,\n}', encoding="utf-8")
    with pytest.raises(InputError, match=r"json:2:12: broken JSON"):
        read("metis", path, **given(tmp_path))


@needs_shared
def test_all_published_files_import_and_agree_with_sailors() -> None:
    """They were converted from Sailor's profiles, some of them from newer ones."""
    root = shared_profiles() / "metis" / "sailor_metis"
    num_files = num_layers = 0
    for folder in sorted(path for path in root.glob("*/*") if path.is_dir()):
        precision = FP32 if folder.name in ("V100-16", "RTX-2080", "Titan-RTX") else TF32
        found = read("metis", folder, precision=precision)
        num_files += found.num_files
        num_layers += sum(kind is K.LAYER for kind, _, _ in layers(found))
    assert (num_files, num_layers) == (178, 178)
    mine = layers(read("metis", root / "OPT-350" / "A100-40", precision=TF32))
    theirs = layers(
        read(
            "sailor", shared_profiles() / "sailor" / "layer_profiles" / "OPT-350" / "A100-40", precision=TF32
        )
    )
    for point, record in mine.items():
        assert record.total_s == pytest.approx(theirs[point].total_s)
    assert mine[K.LAYER, 1, 1].total_s == pytest.approx(0.008223)


@needs_shared
def test_sailors_llama_is_not_llama_3() -> None:
    path = shared_profiles() / "metis" / "sailor_metis" / "LLAMA-3-8" / "GH-96"
    with pytest.raises(InputError, match="llama-3-8b has 218,112,000 parameters per layer"):
        read("metis", path, precision=TF32, model="llama-3-8b", seq_len=8192)
    found = layers(read("metis", path, precision=TF32))
    shapes = {"layer h4096 s8192 a32/32x128 f16384g", "final_norm h4096 s8192"}
    assert {str(record.shape) for record in found.values()} == shapes
