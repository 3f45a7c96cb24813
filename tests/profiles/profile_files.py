"""Small files in the formats of other tools, written by hand, and the shared published ones."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from tangram.job import Precision
from tangram.profiles.importers.formats import Imported, import_files
from tangram.profiles.importers.harvest import Given
from tangram.profiles.records import CollectiveTime, LayerTime, LinkRate
from tangram.profiles.shapes import LayerKind


def shared_profiles() -> Path:
    """The folder of published profiles; may not exist."""
    root = os.environ.get("TANGRAM_SHARED") or Path(__file__).parents[2].parent / "shared"
    return Path(root) / "data" / "profiles"


needs_shared = pytest.mark.skipif(
    not shared_profiles().is_dir(), reason="the shared profiles (TANGRAM_SHARED) are not there"
)


def read(name: str, *paths: Path, **given: Any) -> Imported:
    return import_files(name, paths, Given(**given))


def layers(found: Imported) -> dict[tuple[LayerKind, int, int], LayerTime]:
    """By kind, tp and micro-batch."""
    records = [record for record in found.records if isinstance(record, LayerTime)]
    by_point = {(record.shape.kind, record.tp, record.micro_batch): record for record in records}
    assert len(by_point) == len(records)
    return by_point


def collectives(found: Imported) -> list[CollectiveTime]:
    return [record for record in found.records if isinstance(record, CollectiveTime)]


def rates(found: Imported) -> list[LinkRate]:
    return [record for record in found.records if isinstance(record, LinkRate)]


def write_json(path: Path, data: object) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(data), encoding="utf-8")
    return path


def small_model(folder: Path, *, num_layers: int = 2) -> str:
    """A model of 2 layers: 4 heads of 64, a block of 1024, 1000 words (1024 padded)."""
    config = {
        "model_type": "llama",
        "hidden_size": 256,
        "intermediate_size": 1024,
        "num_attention_heads": 4,
        "num_hidden_layers": num_layers,
        "num_key_value_heads": 4,
        "vocab_size": 1000,
        "max_position_embeddings": 512,
        "rms_norm_eps": 1e-5,
        "tie_word_embeddings": False,
    }
    return str(write_json(folder / "config.json", config))


FP32 = Precision.FP32
TF32 = Precision.TF32
