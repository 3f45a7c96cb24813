"""Broken files of every format: read, or refused with one message; never anything else."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from layer_cases import record
from profile_files import FP32, read, small_model
from test_profile_aceso import operators
from test_profile_galvatron import memory
from test_profile_metis import NAME, document
from test_profile_nccl_tests import HEAD, ROWS
from test_profile_sailor import SMALL
from test_profile_vtrain import HEADER, ROW

from tangram.errors import InputError
from tangram.profiles.exchange import to_json
from tangram.profiles.store import Profiles, save

TOKENS = ["", "nan", "-1", "1e999", "1e300", "0", "{", "]", '"', ",", "null", "true", "x", "\x00", "\n"]
TOKENS += ["1e-320", "9" * 19, "9" * 400]


def samples(folder: Path) -> dict[str, tuple[str, str, str]]:
    """Of each kind of file: the format, the name, and a text that can be read."""
    times = {"layernum[2]_bsz1_seq8": 3.0, "layernum[4]_bsz1_seq8": 5.0, "layertype_0_bsz1_seq8": 1.0}
    return {
        "exchange": ("tangram", "x.json", to_json(Profiles((record(),)))),
        "sailor": ("sailor", "profile.json", json.dumps({"1": {"1": SMALL}})),
        "metis": ("metis", NAME, json.dumps(document())),
        "operators": ("aceso", "gpt_350M_mbs1_tp2_algo0.csv", operators(folder).read_text(encoding="utf-8")),
        "collectives": ("aceso", "prim_x_all_gather_4gpus.csv", "data_size(MB),time(ms)\n8,0.5\n"),
        "messages": ("aceso", "p2p_intra_node.csv", "1,2\n3.5,4.5\n"),
        "bandwidths": (
            "galvatron",
            "p2p_bandwidth_1nodes_8gpus_per_node.json",
            json.dumps({"pp_size_2": 7.5}),
        ),
        "times": ("galvatron", "computation_profiling_bf16_mine.json", json.dumps(times)),
        "memory": (
            "galvatron",
            "memory_profiling_bf16_mine.json",
            json.dumps({"layertype_0_sp": {"8": memory(**{"1": 4.0, "checkpoint": 1.0})}}),
        ),
        "table": ("vtrain", "AR_GPU4_1M_1024M_LUT", f"{HEADER}\n{ROW}\n"),
        "output": ("nccl-tests", "run.log", HEAD + ROWS),
    }


MODELS = {"operators": "gpt_350M"}


def given_of(kind: str, folder: Path) -> dict[str, Any]:
    config = folder / "config.json"
    if not config.exists():
        small_model(folder)
    given: dict[str, Any] = {"gpu": "abacus", "model": MODELS.get(kind, str(config)), "seq_len": 8}
    if kind in ("sailor", "metis"):
        given["precision"] = FP32
    return given


KINDS = [
    "exchange",
    "sailor",
    "metis",
    "operators",
    "collectives",
    "messages",
    "bandwidths",
    "times",
    "memory",
    "table",
    "output",
]


@pytest.mark.parametrize("kind", KINDS)
def test_the_samples_can_be_read(kind: str, tmp_path: Path) -> None:
    name, file, text = samples(tmp_path)[kind]
    path = tmp_path / file
    path.write_text(text, encoding="utf-8")
    assert read(name, path, **given_of(kind, tmp_path)).records


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_broken_files_are_refused_with_one_message(kind: str, data: st.DataObject, tmp_path: Path) -> None:
    name, file, text = samples(tmp_path)[kind]
    for _ in range(data.draw(st.integers(1, 3))):
        start = data.draw(st.integers(0, len(text)))
        length = data.draw(st.integers(0, 12))
        text = text[:start] + data.draw(st.sampled_from(TOKENS)) + text[start + length :]
    path = tmp_path / file
    path.write_text(text, encoding="utf-8")
    refused = refusal(name, path, given_of(kind, tmp_path))
    assert refused is None or file in refused


def refusal(name: str, path: Path, given: dict[str, Any]) -> str | None:
    """The message that the file is refused with; None when it was read, and could be saved."""
    try:
        found = read(name, path, **given)
    except InputError as error:
        return str(error)
    save(path.with_suffix(".sqlite"), found.records)
    return None
