"""Plausibility against published measurements; bands are stated, and wide (see ``measured_rows``)."""

from __future__ import annotations

import json
from collections.abc import Sequence
from importlib import resources

import numpy as np
import pytest
from measured_rows import Run, bloom, llm_foundry, measured_folder, simumax

pytestmark = pytest.mark.skipif(
    not measured_folder().is_dir(),
    reason=f"the measured rows are not at {measured_folder()} (TANGRAM_SHARED)",
)


def errors(runs: Sequence[Run]) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    return np.abs([run.error_frac for run in runs])


@pytest.fixture(scope="module")
def by_family() -> dict[str, list[Run]]:
    return {
        "ampere": [*llm_foundry("A100"), *bloom()],
        "hopper": list(llm_foundry("H100")),
        "blackwell": list(simumax()),
    }


def test_a100_steps_are_within_35_per_cent(by_family: dict[str, list[Run]]) -> None:
    off = errors(by_family["ampere"])
    assert len(off) == 143
    assert off.max() < 0.35
    assert np.median(off) < 0.15


@pytest.mark.parametrize(("family", "within"), [("hopper", 46), ("blackwell", 19)])
def test_most_steps_of_newer_gpus_are_within_35_per_cent(
    by_family: dict[str, list[Run]], family: str, within: int
) -> None:
    off = errors(by_family[family])
    assert (off < 0.35).sum() >= within
    assert np.median(off) < 0.15


def test_the_constants_state_their_errors_truly(by_family: dict[str, list[Run]]) -> None:
    text = resources.files("tangram.cost").joinpath("constants.json").read_text(encoding="utf-8")
    stated = json.loads(text)["checked"]
    assert stated.keys() == by_family.keys()
    for family, runs in by_family.items():
        off = errors(runs)
        assert stated[family]["num_rows"] == len(off)
        assert stated[family]["median_error_frac"] == pytest.approx(np.median(off), abs=0.005)
        assert stated[family]["worst_error_frac"] == pytest.approx(off.max(), abs=0.005)


def test_allocated_memory_is_safe_and_within_12_per_cent(by_family: dict[str, list[Run]]) -> None:
    """Megatron's losses in place take less than those of Tangram's own runtime, which are counted here."""
    off = [run.allocated_gib() / float(run.row["peak_mem_GiB"]) - 1 for run in by_family["blackwell"]]
    assert len(off) == 19
    assert min(off) > -0.005
    assert max(off) < 0.12
    assert abs(np.median(off)) < 0.03


def test_more_gpus_keep_the_pace(by_family: dict[str, list[Run]]) -> None:
    """Weak scaling from 8 to 512 GPUs: where only their number differs, both grow alike within 5 %."""
    keys = ("gpu", "model", "seq_len", "micro_batch", "zero_or_fsdp", "recompute")
    groups: dict[tuple[str, ...], list[Run]] = {}
    for run in (*by_family["ampere"], *by_family["hopper"]):
        if run.pp == 1:
            groups.setdefault(tuple(run.row[k] for k in keys), []).append(run)
    off = []
    for group in groups.values():
        first = min(group, key=lambda run: int(run.row["n_gpus"]))
        for run in group:
            if run.row["n_gpus"] != first.row["n_gpus"]:
                measured = float(run.row["iter_s"]) / float(first.row["iter_s"])
                predicted = run.iteration_s() / first.iteration_s()
                off.append(abs(predicted / measured - 1))
    assert len(off) > 20
    assert np.median(off) < 0.05
    assert np.quantile(off, 0.9) < 0.15
