from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from row_samples import read, row

from tangram.errors import InputError
from tangram.validation.run import Run
from tangram.validation.scored import Predicted, Predictor, predict_refitted, predict_rows
from tangram.validation.scores import score_groups


def half_a_second(run: Run) -> Predicted:
    return Predicted(0.5, 1.0, None, {})


def refit(runs: Sequence[Run]) -> Predictor:
    """Predicts the mean of what it was fitted on."""
    mean = sum(run.measured.iter_s or 0.0 for run in runs) / len(runs)
    return lambda run: Predicted(mean, 1.0, None, {})


def test_every_row_is_kept(tmp_path: Path) -> None:
    rows = predict_rows(read(tmp_path, row(), row(tp="x")), half_a_second)
    assert [r.used for r in rows] == [True, False]
    assert (rows[1].code, rows[1].reason[:12]) == ("not-a-number", "not-a-number")


def test_what_the_predictor_refuses_is_not_used(tmp_path: Path) -> None:
    def picky(run: Run) -> Predicted:
        if run.micro_batch == 4:
            raise InputError("no terms for micro-batch 4")
        return half_a_second(run)

    rows = predict_rows(read(tmp_path, row(micro_batch=4), row()), picky)
    assert (rows[0].code, rows[0].reason) == (
        "not-predicted",
        "not-predicted: row 1: no terms for micro-batch 4",
    )
    assert rows[1].used


def test_a_mixed_row_is_of_the_mixed_group(tmp_path: Path) -> None:
    cells = {"gpu": "mixed: 8xV100-16GB-SXM2 + 8xT4", "precision": "fp16", "peak_mem_GiB": ""}
    rows = predict_rows(read(tmp_path, row(**cells), row(**cells, tp="x"), row(gpu="")), half_a_second)
    assert [r.gpu for r in rows] == ["mixed", "mixed", "unknown"]


def test_refitting_scores_the_rest(tmp_path: Path) -> None:
    cells = [{"micro_batch": m, "iter_s": 0.4 + m / 100} for m in (1, 2, 4, 8)]
    results = read(tmp_path, *(row(**c) for c in cells), row(tp="x"))
    rows = predict_refitted(results, refit, 2)
    assert [r.fitted_on for r in rows].count(True) == 2
    assert not rows[4].used
    (group,) = score_groups(rows)
    assert (group.used, group.fitted_on) == (4, 2)
    assert group.time is not None
    assert group.time.count == 2


def test_a_source_without_a_row_left_is_not_used(tmp_path: Path) -> None:
    ours = [row(micro_batch=m, iter_s=0.4) for m in (1, 2, 4)]
    theirs = [row(source="MosaicML llm-foundry", note="mode=PURE")]
    rows = predict_refitted(read(tmp_path, *ours, *theirs), refit, 2)
    assert [r.used for r in rows] == [True, True, True, False]
    assert rows[3].code == "too-few-rows"
    with pytest.raises(InputError, match="no source has more than 3 rows") as caught:
        predict_refitted(read(tmp_path, *ours, *theirs), refit, 3)
    assert caught.value.hint == "legal here: 1 to 2"


def test_nothing_to_refit_on(tmp_path: Path) -> None:
    (only,) = predict_refitted(read(tmp_path, row(tp="x")), refit, 2)
    assert (only.code, only.fitted_on) == ("not-a-number", False)
