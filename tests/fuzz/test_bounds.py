"""Readers of hostile files of the largest size: bounded in time and memory.

The bounds are twice and more what was measured; what they keep out is growth with the square of the size, and
formats that expand.
"""

from __future__ import annotations

import time
import tracemalloc
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from tangram.cluster.readers import load_cluster
from tangram.errors import InputError
from tangram.model.json_file import MAX_FILE_BYTES
from tangram.model.load import load_model
from tangram.plan.json_io import read_plan
from tangram.validation.reading import MAX_BYTES as MAX_TABLE_BYTES
from tangram.validation.reading import read_runs
from tangram.yaml_reader import MAX_BYTES as MAX_YAML_BYTES

MIB = 1024**2


def filled(start: str, piece: str, end: str, size: int) -> str:
    """As many pieces as fit."""
    return start + piece * ((size - len(start) - len(end)) // len(piece)) + end


def numbered(start: str, piece: str, end: str, size: int) -> str:
    """As many pieces as fit, each with a number of seven digits."""
    length = len(piece.format(1_000_000))
    count = (size - len(start) - len(end)) // length
    return start + "".join(piece.format(1_000_000 + idx) for idx in range(count)) + end


YAML = {
    "empty lists": filled("nodes: [", "[],", "]", MAX_YAML_BYTES),
    "words": filled("nodes: [", "a,", "]", MAX_YAML_BYTES),
    "keys": numbered("", "{}: 1\n", "", MAX_YAML_BYTES),
    "nodes": numbered("nodes:\n", "- {{name: n{}, gpu: T4, gpus: 4}}\n", "", MAX_YAML_BYTES),
    "one long word": filled("nodes: ", "0_", "x", MAX_YAML_BYTES),
    "aliases": "a: &a [x, x]\n" + numbered("", "b{}: [*a, *a]\n", "", MAX_YAML_BYTES - 20),
    "indentation": "".join(" " * idx + "-\n" for idx in range(1400)),
    "brackets": "[" * MAX_YAML_BYTES,
}
JSON = {
    "empty objects": filled('{"a": [', "{},", "{}]}", MAX_FILE_BYTES),
    "keys": numbered('{"a": 0', ', "{}": 1', "}", MAX_FILE_BYTES),
    "digits": filled('{"a": ', "9", "}", MAX_FILE_BYTES),
    "objects in objects": filled("", '{"a":', "", MAX_FILE_BYTES),
    "layers": filled('{"layer_kinds": [0], "layers": [', "0,", "0]}", MAX_FILE_BYTES),
}
TABLES = {
    "columns": numbered("", "{},", "\n", MAX_TABLE_BYTES),
    "rows": filled("gpu\n", "x\n", "", MAX_TABLE_BYTES),
    "empty cells": filled("gpu\n", ",", "\n", MAX_TABLE_BYTES),
    "quotes": filled('gpu\n"', '""', "\n", MAX_TABLE_BYTES),
}
CASES = [
    *((name, text, "c.yaml", load_cluster, 4.0, 200 * MIB) for name, text in YAML.items()),
    *((name, text, "m.json", load_model, 4.0, 500 * MIB) for name, text in JSON.items()),
    ("keys", JSON["keys"], "p.json", lambda p: read_plan(Path(p)), 4.0, 500 * MIB),
    *((name, text, "r.csv", lambda p: read_runs([p]), 4.0, 500 * MIB) for name, text in TABLES.items()),
]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("text", "file", "read", "most_s", "most_bytes"),
    [pytest.param(*case, id=f"{case[1]}: {name}") for name, *case in CASES],
)
def test_largest_files_are_read_in_bounded_time_and_memory(
    text: str, file: str, read: Callable[[str], object], most_s: float, most_bytes: int, tmp_path: Path
) -> None:
    path = tmp_path / file
    path.write_text(text, encoding="utf-8")
    del text
    started = time.process_time()
    attempt(read, path)
    assert time.process_time() - started < most_s
    assert traced_peak(read, path) < most_bytes


def attempt(read: Callable[[str], object], path: Path) -> None:
    """Reads a file, or has it refused."""
    with suppress(InputError):
        read(str(path))


def traced_peak(read: Callable[[str], object], path: Path) -> int:
    """Bytes that reading takes at most."""
    tracemalloc.start()
    try:
        attempt(read, path)
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_a_bomb_of_aliases_takes_no_memory(tmp_path: Path) -> None:
    """Nine levels of nine would be 387 million texts."""
    levels = "".join(
        f"{a}: &{a} [{', '.join([f'*{b}'] * 9)}]\n" for a, b in zip("bcdefghij", "abcdefghi", strict=True)
    )
    path = tmp_path / "bomb.yaml"
    path.write_text(f"a: &a x\n{levels}nodes: *j\n", encoding="utf-8")
    with pytest.raises(InputError, match="anchors"):
        load_cluster(str(path))
    assert traced_peak(load_cluster, path) < 4 * MIB
