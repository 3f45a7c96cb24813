from __future__ import annotations

from pathlib import Path

import pytest
from row_samples import run_of

from tangram.validation.keys import configuration_key


@pytest.mark.parametrize(
    "cells",
    [
        {"iter_s": 0.6},
        {"peak_mem_GiB": ""},
        {"model": "other"},
        {"note": "on Monday"},
        {"source": "x"},
        {"environment": "lts"},
    ],
)
def test_repeats_share_a_key(tmp_path: Path, cells: dict[str, object]) -> None:
    assert run_of(tmp_path, **cells).key == run_of(tmp_path).key


@pytest.mark.parametrize(
    "cells",
    [
        {"n_gpus": 32, "dp": 8},
        {"micro_batch": 4},
        {"recompute": "full"},
        {"precision": "fp16"},
        {"zero_or_fsdp": "DDP"},
        {"hidden": 2048, "heads": 32},
        {"layers_per_stage": "3/5"},
        {"stack": "mine"},
        {"nic_gbit_per_s": 200},
    ],
)
def test_other_configurations_do_not(tmp_path: Path, cells: dict[str, object]) -> None:
    assert run_of(tmp_path, **cells).key != run_of(tmp_path).key


def test_groups_can_be_left_out(tmp_path: Path) -> None:
    a, b = run_of(tmp_path, recompute="full", vpp=2), run_of(tmp_path)
    assert configuration_key(a, frozenset({"saving", "vpp"})) == configuration_key(
        b, frozenset({"saving", "vpp"})
    )
    assert configuration_key(a, frozenset({"saving"})) != configuration_key(b, frozenset({"saving"}))
