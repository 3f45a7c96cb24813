"""The shared tables of measured runs: how many rows are read and used, and why the others are not."""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path

import pytest

from tangram.validation.reading import RowResult, read_runs
from tangram.validation.sources import rule_names

# Rows, and rows that become runs.
EXPECTED = {
    "measured/alpa_measured.csv": (109, 40),
    "measured/amp_heterogeneous.csv": (57, 57),
    "measured/bigscience_bloom_a100.csv": (104, 79),
    "measured/bigscience_v100.csv": (43, 38),
    "measured/dgxc_benchmarking.csv": (112, 107),
    "measured/galvatron_measured.csv": (110, 77),
    "measured/llm_foundry.csv": (136, 136),
    "measured/megatron_bridge.csv": (218, 175),
    "measured/megatron_bridge_ep_overlap.csv": (3, 3),
    "measured/megatron_bridge_memory.csv": (14, 12),
    "measured/megatron_lm_ci.csv": (282, 280),
    "measured/nemo_automodel.csv": (12, 10),
    "measured/sailor_artifact.csv": (22, 22),
    "measured/sailor_validation.csv": (22, 22),
    "measured/simumax_b200.csv": (28, 28),
    "measured/vtrain_multi.csv": (69, 69),
    "simulated/vtrain_single.csv": (1440, 1440),
}

# What makes a row incomplete: something that a prediction needs is not stated, or nothing was measured.
INCOMPLETE = {
    "missing",
    "plan-not-stated",
    "layers-not-stated",
    "hybrid-model",
    "no-measurement",
    "out-of-memory",
    "projected",
    "check-mismatch",
}


def shared() -> Path:
    return Path(os.environ.get("TANGRAM_SHARED", Path(__file__).parents[3] / "shared")) / "data"


@pytest.fixture(params=sorted(EXPECTED))
def table(request: pytest.FixtureRequest) -> tuple[str, list[RowResult]]:
    path = shared() / request.param
    if not path.is_file():
        pytest.skip(f"the shared rows are not at {path}")
    return request.param, read_runs([str(path)])


def test_rows_read_and_used(table: tuple[str, list[RowResult]]) -> None:
    name, results = table
    assert (len(results), sum(result.run is not None for result in results)) == EXPECTED[name]
    assert [result.origin.line for result in results] == list(range(1, len(results) + 1))


def test_every_row_left_out_has_a_reason_of_the_list(table: tuple[str, list[RowResult]]) -> None:
    legal = {*rule_names(), "missing", "impossible", "plan-not-stated", "no-measurement"}
    for result in table[1]:
        assert (result.run is None) == bool(result.reason) == bool(result.code)
        assert result.code in legal | {""}, result.reason
        assert result.origin.source != "unknown"


def test_complete_rows_are_used(table: tuple[str, list[RowResult]]) -> None:
    """At least 95 % of the rows whose configuration is complete."""
    codes = Counter(result.code for result in table[1])
    complete = len(table[1]) - sum(codes[name] for name in INCOMPLETE)
    assert codes[""] >= 0.95 * complete


def test_runs_are_whole(table: tuple[str, list[RowResult]]) -> None:
    for result in table[1]:
        run = result.run
        if run is None:
            continue
        assert run.software.stack != "unknown"
        assert len(run.layers_per_stage) == run.degrees.pp
        assert sum(run.layers_per_stage) == run.model.num_layers
        assert run.num_micro_batches * run.micro_batch * run.degrees.dp == run.global_batch
        assert len(run.hardware.hosts) in (1, run.degrees.pp)
        assert run.measured.iter_s or run.measured.peak_memory_gib
        assert run.hardware.host().nic_bytes_per_s > 1e8
