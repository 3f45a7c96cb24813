from __future__ import annotations

import doctest
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from row_samples import read, row

from tangram.units import GIB
from tangram.validation import scores
from tangram.validation.run import Run
from tangram.validation.scored import Predicted, predict_rows
from tangram.validation.scores import GroupScore, errors_of, score_groups, trivial_errors

Factor = Callable[[Run], float]


def times(factor: Factor, *, upper: float | None = None) -> Callable[[Run], Predicted]:
    """A predictor that is off by a factor."""

    def predict(run: Run) -> Predicted:
        assert run.measured.iter_s is not None
        peak = (run.measured.peak_memory_gib or 0.0) * GIB
        return Predicted(
            iter_s=run.measured.iter_s * factor(run),
            peak_memory_bytes=peak * factor(run),
            upper_peak_memory_bytes=None if upper is None else peak * upper,
            components={"matmul": 0.1},
        )

    return predict


def groups(
    folder: Path, factor: Factor, *cells: Mapping[str, object], upper: float | None = None
) -> list[GroupScore]:
    results = read(folder, *(row(**c) for c in cells))
    return score_groups(predict_rows(results, times(factor, upper=upper)))


def test_examples() -> None:
    assert doctest.testmod(scores).failed == 0


def test_errors() -> None:
    errors = errors_of([(1.1, 1.0), (2.0, 2.5), (3.0, 3.0)])
    assert errors is not None
    assert errors.count == 3
    assert errors.mape == pytest.approx(0.1)
    assert errors.median == pytest.approx(0.1)
    assert errors.worst == pytest.approx(0.2)
    assert errors.bias == pytest.approx(-1 / 30)
    assert errors_of([]) is None


@given(st.lists(st.tuples(st.floats(1e-3, 1e3), st.floats(1e-3, 1e3)), min_size=1), st.floats(1e-2, 1e2))
def test_errors_do_not_depend_on_the_unit(pairs: list[tuple[float, float]], unit: float) -> None:
    a, b = errors_of(pairs), errors_of((p * unit, m * unit) for p, m in pairs)
    assert a is not None
    assert b is not None
    assert b.mape == pytest.approx(a.mape, rel=1e-6, abs=1e-9)
    assert abs(a.bias) <= a.mape + 1e-12
    assert a.median <= a.worst + 1e-12
    assert a.mape <= a.worst * (1 + 1e-12)


def test_groups_by_file_and_gpu(tmp_path: Path) -> None:
    found = groups(
        tmp_path,
        lambda run: 1.1 if run.micro_batch == 2 else 0.9,
        {},
        {"micro_batch": 4},
        {"gpu": "H100-80GB-SXM", "iter_s": 0.2},
        {"tp": "x"},
        {"n_gpus": 99},
        {"n_gpus": 98},
    )
    assert [(g.file, g.gpu, g.rows, g.used) for g in found] == [
        ("rows.csv", "A100-80GB-SXM", 5, 2),
        ("rows.csv", "H100-80GB-SXM", 1, 1),
    ]
    assert dict(found[0].unused) == {"impossible": 2, "not-a-number": 1}
    assert list(found[0].unused) == ["impossible", "not-a-number"]
    assert found[0].time is not None
    assert found[0].time.mape == pytest.approx(0.1)
    assert found[0].time.bias == pytest.approx(0, abs=1e-12)
    assert found[1].memory is not None
    assert found[1].memory.bias == pytest.approx(0.1)


def test_what_is_not_to_be_scored(tmp_path: Path) -> None:
    (found,) = groups(tmp_path, lambda run: 2.0, {"scores_time": "no"}, {"scores_memory": "no"})
    assert found.time is not None
    assert found.memory is not None
    assert (found.used, found.time.count, found.memory.count) == (2, 1, 1)


def test_the_upper_estimate(tmp_path: Path) -> None:
    (found,) = groups(tmp_path, lambda run: 1.0, {}, {"peak_mem_GiB": 30}, upper=1.1)
    assert found.upper_memory is not None
    assert (found.upper_memory.count, found.upper_memory.below) == (2, 0)
    assert found.upper_memory.mean_above == pytest.approx(0.1)
    (found,) = groups(tmp_path, lambda run: 1.0, {}, {"peak_mem_GiB": 30}, upper=0.9)
    assert found.upper_memory is not None
    assert found.upper_memory.below == 2
    (found,) = groups(tmp_path, lambda run: 1.0, {})
    assert found.upper_memory is None


def runs(folder: Path, *cells: Mapping[str, object]) -> list[Run]:
    return [r.run for r in read(folder, *(row(**c) for c in cells)) if r.run is not None]


def test_the_constant_fits_rows_of_one_rate(tmp_path: Path) -> None:
    """Time in proportion to the batch, and another rate per precision: nothing is left to explain."""
    found = runs(
        tmp_path,
        {"global_batch": 64, "iter_s": 0.5},
        {"global_batch": 128, "iter_s": 1.0},
        {"global_batch": 64, "iter_s": 0.3, "precision": "fp16"},
    )
    errors = trivial_errors(found)
    assert errors is not None
    assert errors.worst == pytest.approx(0, abs=1e-12)
    assert trivial_errors([]) is None


def test_the_constant_counts_attention_as_suits_it_best(tmp_path: Path) -> None:
    sizes = (2048, 65536)
    for causal in (False, True):
        untimed = runs(tmp_path, *({"seq_len": s, "iter_s": ""} for s in sizes))
        flop = [run.model_flop(causal=causal) for run in untimed]
        cells = [{"seq_len": s, "iter_s": f / flop[0] * 0.5} for s, f in zip(sizes, flop, strict=True)]
        errors = trivial_errors(runs(tmp_path, *cells))
        assert errors is not None
        assert errors.worst == pytest.approx(0, abs=1e-6)


def test_the_constant_is_the_median_rate(tmp_path: Path) -> None:
    errors = trivial_errors(runs(tmp_path, *({"iter_s": s} for s in (0.4, 0.5, 0.8))))
    assert errors is not None
    assert errors.mape == pytest.approx(np.mean([0.25, 0, 0.375]))
