"""Small tables of measured runs, written by hand."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Mapping
from pathlib import Path

from tangram.validation.reading import RowResult, read_runs
from tangram.validation.run import Run

# A dense model of GPT's kind on two nodes: 8 layers, tp 2, pp 2, dp 4.
ROW = {
    "source": "my cluster",
    "gpu": "A100-80GB-SXM",
    "n_gpus": "16",
    "model": "small",
    "n_layers": "8",
    "hidden": "1024",
    "ffn_hidden": "4096",
    "heads": "16",
    "kv_heads": "16",
    "vocab": "50257",
    "experts": "",
    "top_k": "",
    "seq_len": "2048",
    "global_batch": "64",
    "micro_batch": "2",
    "tp": "2",
    "pp": "2",
    "vpp": "",
    "cp": "1",
    "ep": "1",
    "dp": "4",
    "zero_or_fsdp": "ZeRO-1",
    "recompute": "none",
    "precision": "bf16",
    "tokens_per_s_per_gpu": "",
    "iter_s": "0.5",
    "peak_mem_GiB": "20",
    "note": "",
}


def row(**cells: object) -> dict[str, str]:
    """The sample row with some cells changed; a cell of None takes the column away."""
    merged: dict[str, object] = {**ROW, **cells}
    return {name: str(cell) for name, cell in merged.items() if cell is not None}


def write(path: Path, rows: Iterable[Mapping[str, str]]) -> Path:
    """Writes rows of one header."""
    listed = list(rows)
    with path.open("w", encoding="utf-8", newline="") as stream:
        writer = csv.DictWriter(stream, list(dict.fromkeys(name for r in listed for name in r)))
        writer.writeheader()
        writer.writerows(listed)
    return path


def read(folder: Path, *rows: Mapping[str, str], name: str = "rows.csv") -> list[RowResult]:
    """Writes rows into a file and reads them."""
    return read_runs([str(write(folder / name, rows))])


def run_of(folder: Path, **cells: object) -> Run:
    """The run of the sample row with some cells changed."""
    (result,) = read(folder, row(**cells))
    assert result.run is not None, result.reason
    return result.run


def reason_of(folder: Path, **cells: object) -> str:
    """Why the sample row with some cells changed cannot be used."""
    (result,) = read(folder, row(**cells))
    assert result.run is None
    return result.reason
