from __future__ import annotations

import csv
import io
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from layer_cases import layer, record
from profile_files import read, write_json

from tangram.errors import InputError
from tangram.job import Precision
from tangram.profiles.exchange import to_csv, to_json
from tangram.profiles.records import CollectiveTime, LinkRate, Op, Scope
from tangram.profiles.shapes import LayerKind
from tangram.profiles.store import Profiles

REDUCE = CollectiveTime("T4", "nccl", "pcie", Scope.INTRA_NODE, Op.ALL_REDUCE, 4, 4, 800, 0.1, "a test")
RATE = LinkRate("T4", "nccl", "", Scope.INTER_NODE, Op.SEND, 2, 1, 1e9 / 3, "a test")
PROFILES = Profiles(
    (replace(record(), activation_bytes=7), record(layer(LayerKind.HEAD), tp=2, forward_s=1 / 3, source="ü")),
    (REDUCE,),
    (RATE,),
)


def written(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "all.profiles.json"
    path.write_text(text, encoding="utf-8")
    return path


def test_what_is_exported_can_be_imported(tmp_path: Path) -> None:
    found = read("tangram", written(tmp_path, to_json(PROFILES)))
    assert set(found.records) == set(PROFILES)
    assert (found.num_files, found.num_repeated, found.left_out) == (1, 0, ())
    assert to_json(PROFILES) == to_json(PROFILES)


def test_what_is_given_replaces_what_the_file_says(tmp_path: Path) -> None:
    path = written(tmp_path, to_json(PROFILES))
    found = read("tangram", path, gpu="a100-80gb-sxm", stack="mine", precision=Precision.BF16, link="nvlink")
    assert {r.gpu for r in found.records} == {"A100-80GB-SXM"}
    assert {r.stack for r in found.records} == {"mine"}
    assert {r.link for r in found.records if not hasattr(r, "shape")} == {"nvlink"}  # type: ignore[union-attr]


def test_csv_has_one_row_per_record() -> None:
    rows = list(csv.DictReader(io.StringIO(to_csv(PROFILES.layers))))
    assert [row["kind"] for row in rows] == ["layer", "head"]
    assert rows[0]["hidden_size"] == "64"
    assert (rows[0]["activation_bytes"], rows[1]["activation_bytes"]) == ("7", "")
    assert float(rows[1]["forward_s"]) == 1 / 3
    assert (rows[0]["includes_tp_comm"], rows[1]["includes_tp_comm"]) == ("false", "true")
    assert rows[1]["source"] == "ü"
    assert next(csv.DictReader(io.StringIO(to_csv(PROFILES.rates))))["op"] == "send"
    assert to_csv([]) == ""


@pytest.mark.parametrize(
    ("changes", "wrong"),
    [
        ({"format": "tangram-plan"}, "is no export of profiles"),
        ({"version": 2}, "has version 2 .this Tangram reads 1"),
        ({"tables": []}, "tables: is no key here"),
        ({"layers": [{"gpu": "T4"}]}, r"layers\[0\]\.stack: is missing"),
        ({"rates": 3}, "rates: is 3, but must be a list"),
    ],
)
def test_other_documents_are_refused(tmp_path: Path, changes: dict[str, Any], wrong: str) -> None:
    data = json.loads(to_json(PROFILES)) | changes
    with pytest.raises(InputError, match=wrong):
        read("tangram", write_json(tmp_path / "x.json", data))


@pytest.mark.parametrize(
    ("section", "field", "value", "wrong"),
    [
        ("layers", "forward_s", -1.0, r"layers\[0\]\.forward_s: -1.0 was not measured"),
        ("layers", "tp", 1.5, r"layers\[0\]\.tp: is 1.5, but must be a whole number"),
        ("layers", "precision", "fp7", r"layers\[0\]\.precision: is the text .fp7.; legal: .fp32., "),
        ("layers", "micro_batch", 0, r"layers\[0\]\.micro_batch: 0 is out of range"),
        ("collectives", "ranks_per_node", 3, r"collectives\[0\]\.ranks_per_node: 3 of 4"),
        ("rates", "scope", "intra-node", r"rates\[0\]\.ranks_per_node: 1 of 2"),
    ],
)
def test_broken_records_name_the_field(
    tmp_path: Path, section: str, field: str, value: object, wrong: str
) -> None:
    data = json.loads(to_json(PROFILES))
    data[section][0][field] = value
    with pytest.raises(InputError, match=wrong):
        read("tangram", write_json(tmp_path / "x.json", data))


def test_broken_shapes_name_the_place(tmp_path: Path) -> None:
    data = json.loads(to_json(PROFILES))
    data["layers"][1]["shape"]["num_heads"] = 8
    with pytest.raises(InputError, match=r"layers\[1\]\.shape: num_heads is 8 for a shape of kind head"):
        read("tangram", write_json(tmp_path / "x.json", data))
