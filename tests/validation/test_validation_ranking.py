from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from row_samples import read, row

from tangram.validation.ranking import Ranking, score_ranking, spearman, top_1_regret
from tangram.validation.run import Run
from tangram.validation.scored import Predicted, predict_rows

floats = st.lists(st.floats(0.1, 1e3), min_size=3, max_size=20)


def array(*values: float) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    return np.array(values, dtype=np.float64)


def test_rank_correlation() -> None:
    assert spearman(array(1, 2, 3), array(10, 20, 90)) == pytest.approx(1)
    assert spearman(array(3, 2, 1), array(10, 20, 90)) == pytest.approx(-1)
    # Ties get mean ranks: 0.5, 0.5, 2 against 0, 1, 2.
    assert spearman(array(1, 1, 5), array(1, 2, 3)) == pytest.approx(np.sqrt(3) / 2)
    assert spearman(array(1, 1, 1), array(1, 2, 3)) is None


@given(floats, st.randoms(use_true_random=False))
def test_only_ranks_count(values: list[float], random: object) -> None:
    other = array(*values[::-1])
    found = spearman(array(*values), other)
    squared = spearman(array(*values) ** 2, other)
    assert (found is None) == (squared is None)
    if found is not None and squared is not None and len(set(values)) == len(set(array(*values) ** 2)):
        assert squared == pytest.approx(found)
        assert -1 - 1e-9 <= found <= 1 + 1e-9


def test_regret() -> None:
    assert top_1_regret(array(1, 2, 3), array(5, 6, 7)) == 0
    assert top_1_regret(array(3, 1, 2), array(5, 6, 7)) == pytest.approx(0.2)
    assert top_1_regret(array(1, 1, 2), array(6, 5, 7)) == pytest.approx(0.2)


def ranked(folder: Path, predicted: Mapping[int, float], *cells: Mapping[str, object]) -> Ranking | None:
    results = read(folder, *(row(**c) for c in cells))
    rows = predict_rows(results, lambda run: Predicted(predicted[run.origin.line], 0.0, None, {}))
    return score_ranking([(r, r.result.run) for r in rows if isinstance(r.result.run, Run)])


def test_jobs_are_told_apart(tmp_path: Path) -> None:
    plans = [{"tp": 1, "dp": 8}, {"tp": 2, "dp": 4}, {"tp": 4, "dp": 2}]
    small = [p | {"iter_s": s} for p, s in zip(plans, (0.5, 0.6, 0.4), strict=True)]
    large = [p | {"iter_s": s, "global_batch": 128} for p, s in zip(plans, (1.0, 1.1, 1.2), strict=True)]
    lonely = [{"seq_len": 1024, "iter_s": 0.3}]
    found = ranked(tmp_path, dict(enumerate((5, 6, 7, 1, 2, 3, 9), 1)), *small, *large, *lonely)
    assert found is not None
    assert (found.jobs, found.alternatives) == (2, 6)
    assert found.worst_regret == pytest.approx(0.25)
    assert found.median_regret == pytest.approx(0.125)
    assert found.correlation == pytest.approx((-0.5 + 1) / 2)


def test_too_few_alternatives(tmp_path: Path) -> None:
    assert ranked(tmp_path, {1: 1.0, 2: 2.0}, {}, {"tp": 1, "dp": 8}) is None
