from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from profile_files import FP32, TF32, layers, needs_shared, read, shared_profiles, small_model, write_json

from tangram.errors import InputError
from tangram.job import Precision
from tangram.profiles.importers.sailor import STACK
from tangram.profiles.shapes import LayerKind

K = LayerKind
SMALL = {"0": [0.01, 3e-6, 0.5], "1": [0.03, 0.07, 0.5], "2": [0.05, 0.09, 0.5], "3": [0.2, 0.4, 0.5]}


def profile(tmp_path: Path, layers_of_point: object = SMALL) -> Path:
    return write_json(tmp_path / "mine" / "A100-40" / "profile.json", {"4": {"2": layers_of_point}})


def test_a_file(tmp_path: Path) -> None:
    model = small_model(tmp_path)
    found = read("sailor", profile(tmp_path), model=model, seq_len=128, precision=TF32)
    by_point = layers(found)
    assert set(by_point) == {(K.EMBEDDING, 2, 4), (K.LAYER, 2, 4), (K.HEAD, 2, 4)}
    layer = by_point[K.LAYER, 2, 4]
    assert (layer.forward_s, layer.backward_s) == (pytest.approx(0.04), pytest.approx(0.08))
    assert (layer.gpu, layer.stack, layer.precision) == ("A100-40GB-SXM", STACK, TF32)
    assert layer.includes_tp_comm
    assert str(layer.shape) == "layer h256 s128 a4/4x64 f1024g"
    assert layer.source == "Sailor, mine/A100-40/profile.json"
    embedding = by_point[K.EMBEDDING, 2, 4]
    assert (embedding.forward_s, embedding.backward_s) == (0.01, None)  # its backward pass was not run
    assert embedding.shape.vocab_size == 1024
    assert all(record.optimizer_s is None for record in by_point.values())
    assert dict(found.left_out) == {
        "backward passes of the embedding, which were not run": 1,
        "optimizer times, which are not those of single layers": 4,
    }


def test_a_norm_of_its_own_goes_into_the_head(tmp_path: Path) -> None:
    entries = {**SMALL, "3": [0.001, 0.002, 0.5], "4": [0.2, 0.4, 0.5]}
    found = layers(
        read("sailor", profile(tmp_path, entries), model=small_model(tmp_path), seq_len=8, precision=TF32)
    )
    assert found[K.FINAL_NORM, 2, 4].forward_s == 0.001
    assert found[K.HEAD, 2, 4].backward_s == pytest.approx(0.402)


@pytest.mark.parametrize(
    ("point", "wrong", "where"),
    [
        ({"0": SMALL["0"]}, "has 1 entries", "4.2"),
        ({**SMALL, "5": SMALL["3"]}, "layer 4 is missing", "4.2"),
        ({**SMALL, "2": [0.1, 0.2]}, "has 2 numbers, not 3", "4.2.2"),
        ({**SMALL, "2": [0.1, "x", 0.2]}, "is text, but must be a number", "4.2.2"),
        ({**SMALL, "2": [0.1, -1, 0.2]}, "-1 is out of range", "4.2.2"),
        ([1], "is a list, but must be an object", "4.2"),
        ({**SMALL, "2": [0.0, 0.2, 0.2], "1": [0.0, 0.2, 0.2]}, "was not measured", "4.2: layer: forward_s"),
    ],
)
def test_broken_files_name_the_place(tmp_path: Path, point: object, wrong: str, where: str) -> None:
    with pytest.raises(InputError, match=wrong) as caught:
        read("sailor", profile(tmp_path, point), model=small_model(tmp_path), seq_len=8, precision=TF32)
    assert where in str(caught.value)


@pytest.mark.parametrize(
    ("changes", "wrong"),
    [
        ({"model": None}, "'mine' names no known model"),
        ({"precision": None}, "in which precision"),
        ({"seq_len": None}, "how long sequences are"),
        ({"precision": Precision.FP32, "seq_len": 100_000}, "would run at"),
    ],
)
def test_what_nobody_says_is_asked_for(tmp_path: Path, changes: dict[str, Any], wrong: str) -> None:
    given = {"model": small_model(tmp_path), "seq_len": 8, "precision": TF32} | changes
    with pytest.raises(InputError, match=wrong):
        read("sailor", profile(tmp_path), **given)


def test_an_unknown_gpu_folder_is_asked_for(tmp_path: Path) -> None:
    path = write_json(tmp_path / "mine" / "my-box" / "profile.json", {"1": {"1": SMALL}})
    with pytest.raises(InputError, match="'my-box' names no GPU"):
        read("sailor", path, model=small_model(tmp_path), seq_len=8, precision=TF32)


def test_one_name_for_two_gpus_is_refused(tmp_path: Path) -> None:
    for gpu in ("A100-40", "V100-16"):
        write_json(tmp_path / "mine" / gpu / "profile.json", {"1": {"1": SMALL}})
    given = {"model": small_model(tmp_path), "seq_len": 8, "precision": FP32}
    with pytest.raises(InputError, match="cannot stand for both A100-40 and V100-16"):
        read("sailor", tmp_path / "mine", gpu="T4", **given)
    assert {record.gpu for record in read("sailor", tmp_path / "mine", **given).records} == {
        "A100-40GB-SXM",
        "V100-16GB-SXM2",
    }


def test_the_simulators_file_holds_many(tmp_path: Path) -> None:
    one = {"1": {"1": {str(i): [0.1, 0.2, 0] for i in range(26)}}}
    path = write_json(tmp_path / "simulator.json", {"OPT-350": {"V100-16": one, "RTX-2080": one}})
    assert {record.gpu for record in read("sailor", path, precision=FP32).records} == {
        "V100-16GB-SXM2",
        "RTX-2080",
    }
    found = read("sailor", path, precision=FP32, gpu="V100-16", model="OPT-350")
    assert {record.gpu for record in found.records} == {"V100-16GB-SXM2"}
    with pytest.raises(InputError, match="no profile of T4"):
        read("sailor", path, precision=FP32, gpu="T4")
    with pytest.raises(InputError, match="no model 'x'"):
        read("sailor", path, precision=FP32, model="x")


# Precisions follow from the rates that the times imply; see docs/profiles.md.
PUBLISHED = {
    "A100-40": {"OPT-350": TF32, "GPT-Neo-2.7": TF32, "OPT-30": FP32, "LLAMA-3-8": FP32},
    "A100-80": {"OPT-350": TF32, "GPT-Neo-2.7": TF32},
    "V100-16": {"OPT-350": FP32, "GPT-Neo-2.7": FP32, "OPT-30": FP32, "LLAMA-3-8": FP32},
    "GH-96": {"OPT-350": TF32, "OPT-30": TF32, "LLAMA-3-8": TF32},
    "RTX-2080": {"OPT-350": FP32},
    "RTX-3090": {"OPT-350": TF32},
    "Titan-RTX": {"OPT-350": FP32},
}


@needs_shared
def test_all_published_files_import() -> None:
    root = shared_profiles() / "sailor" / "layer_profiles"
    num_layers = num_points = 0
    for gpu, models in PUBLISHED.items():
        for model, precision in models.items():
            found = read("sailor", root / model / gpu, precision=precision)
            assert found.num_files == 1
            num_layers += sum(kind is K.LAYER for kind, _, _ in layers(found))
            text = (root / model / gpu / "profile.json").read_text(encoding="utf-8")
            num_points += sum(len(degrees) for degrees in json.loads(text).values())
    assert len(list(root.rglob("profile.json"))) == sum(map(len, PUBLISHED.values())) + 1  # see the next test
    assert num_layers == num_points == 210


@needs_shared
def test_traps_of_the_published_files() -> None:
    root = shared_profiles() / "sailor" / "layer_profiles"
    # The file of GPT-Neo on GH200 is a copy of OPT-350's.
    with pytest.raises(InputError, match=r"has 26 entries, but GPT-Neo-2\.7 has 32 layers"):
        read("sailor", root / "GPT-Neo-2.7" / "GH-96", precision=TF32)
    simulator = shared_profiles() / "sailor" / "simulator_profiles.json"
    found = layers(read("sailor", simulator, precision=TF32, gpu="GH-96", model="GPT-Neo-2.7"))
    assert found[K.LAYER, 1, 1].total_s == pytest.approx(8.0e-3, rel=0.01)
    # GPT-Neo's last entry has no LM head; A100 cannot have run fp32.
    assert not any(kind is K.HEAD for kind, _, _ in found)
    with pytest.raises(InputError, match="A100-40GB-SXM has 20 in fp32"):
        read("sailor", root / "OPT-350" / "A100-40", precision=FP32)
    # tp 4 is slower than tp 2 there: kept as it was measured.
    opt = layers(read("sailor", root / "OPT-350" / "GH-96", precision=TF32))
    assert (opt[K.LAYER, 4, 1].total_s or 0) > (opt[K.LAYER, 2, 1].total_s or 0)


@needs_shared
def test_values_checked_by_hand() -> None:
    """OPT-350 on A100-40, micro-batch 1, tp 1: layers 2 to 24 say 0.002314 and 0.005909 s, layer 1 more."""
    root = shared_profiles() / "sailor" / "layer_profiles"
    found = layers(read("sailor", root / "OPT-350" / "A100-40", precision=TF32))
    layer = found[K.LAYER, 1, 1]
    assert (layer.forward_s, layer.backward_s) == (0.002314, 0.005909)
    assert str(layer.shape) == "layer h1024 s2048 a16/16x64 f4096"
    head = found[K.HEAD, 1, 1]
    assert (head.forward_s, head.backward_s, head.shape.vocab_size) == (0.004508, 0.003989, 50304)
