from __future__ import annotations

import csv
from pathlib import Path

from tangram.report.page import Page
from tangram.report.validation import MAX_REASONS, add_validation
from tangram.validation.reading import read_runs
from tangram.validation.run import Run
from tangram.validation.scored import Predicted, predict_rows
from tangram.validation.scores import score_groups

HEADER = (
    "gpu n_gpus n_layers hidden heads vocab seq_len global_batch micro_batch tp pp dp precision iter_s "
    "peak_mem_GiB"
)
ROW = "A100-80GB-SXM 8 8 1024 16 50257 2048 64 2 1 1 8 bf16 0.5 20"


def page(folder: Path, *rows: str, source: str = "mine", upper: float | None = None) -> str:
    path = folder / "mine.csv"
    with path.open("w", encoding="utf-8", newline="") as stream:
        writer = csv.writer(stream)
        writer.writerow(["source", *HEADER.split()])
        writer.writerows([source, *row.split()] for row in rows)

    def predict(run: Run) -> Predicted:
        return Predicted(0.55, 22 * 2**30, None if upper is None else upper * 2**30, {})

    scored = predict_rows(read_runs([str(path)]), predict)
    found = Page(100, unicode=False)
    add_validation(found, scored, score_groups(scored))
    return "\n".join(line.plain for line in found.lines)


def test_errors_and_reasons(tmp_path: Path) -> None:
    text = page(tmp_path, ROW, ROW.replace("0.5", "0.6"), ROW.replace("8 8", "9 8"), upper=25)
    assert "Rows: 3 rows read, 2 used" in text
    assert "1 impossible" in text
    assert "mine.csv A100-80GB-SXM 2 9.2% 9.2% 10% +0.8% 9.1%" in " ".join(text.split())
    assert "0 of 2" in text
    assert "+25%" in text
    assert "impossible: row 3, column n_gpus" in text
    assert "Ranking" not in text


def test_a_baseline_that_is_not_beaten_is_marked(tmp_path: Path) -> None:
    assert "0.0% *" in page(tmp_path, ROW)


def test_no_upper_estimate(tmp_path: Path) -> None:
    lines = [line for line in page(tmp_path, ROW).splitlines() if line.rstrip().endswith("-")]
    assert len(lines) == 2  # nothing unused, no upper estimate


def test_nothing_used(tmp_path: Path) -> None:
    text = page(tmp_path, ROW.replace("bf16", "x"))
    assert "Time" not in text
    assert "1 unknown-word" in text


def test_rankings(tmp_path: Path) -> None:
    rows = [ROW.replace("64 2", f"64 {m}").replace("0.5", f"0.{5 + m}") for m in (1, 2, 4)]
    text = page(tmp_path, *rows, source="AMP (NeurIPS 2022) artifact")
    assert "Ranking: regret" in text
    assert "1      3" in text


def test_frequent_reasons_do_not_hide_others(tmp_path: Path) -> None:
    bad = [ROW.replace("8 8", "9 8")] * (MAX_REASONS + 5)
    text = page(tmp_path, *bad, ROW.replace("bf16", "x"))
    assert "unknown-word: row 26" in text
    assert "... and 24 more; --json lists all." in text
