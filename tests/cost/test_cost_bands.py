"""Bands: the runs most like the plan say how far off it may be; the widest of its GPUs counts."""

from __future__ import annotations

from dataclasses import replace

import pytest
from cost_cases import A100, V100

from tangram.cost import bands
from tangram.cost.bands import UNMEASURED_FRAC, time_band

ENTRIES = [
    {"gpu_family": "ampere", "stack": "mine", "moe": False, "num_rows": 40, "half_width_frac": 0.06},
    {"gpu_family": "ampere", "stack": None, "moe": False, "num_rows": 200, "half_width_frac": 0.25},
    {"gpu_family": "volta", "stack": None, "moe": False, "num_rows": 30, "half_width_frac": 0.4},
    {"gpu_family": None, "stack": None, "moe": False, "num_rows": 400, "half_width_frac": 0.3},
]


@pytest.fixture(autouse=True)
def calibration(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bands, "calibration_document", lambda: {"bands": ENTRIES})


def test_the_same_stack_on_the_same_family_is_most_alike() -> None:
    found = time_band([A100], "mine", moe=False)
    assert found.half_width_frac == 0.06
    assert "40 measured runs of dense models on ampere GPUs with mine" in found.basis


def test_another_stack_has_the_band_of_sources_left_out() -> None:
    found = time_band([A100], "tangram-runtime", moe=False)
    assert found.half_width_frac == 0.25
    assert found.basis.startswith("uncalibrated for tangram-runtime")


def test_the_widest_band_of_the_gpus_counts() -> None:
    assert time_band([A100, V100], "mine", moe=False).half_width_frac == 0.4


def test_what_nobody_measured_is_an_estimate() -> None:
    unknown = replace(A100, name="X1", family="xpu")
    found = time_band([unknown], "mine", moe=False)
    assert found.half_width_frac == UNMEASURED_FRAC
    assert "estimate" in found.basis
    assert time_band([A100], "mine", moe=True).half_width_frac == UNMEASURED_FRAC
