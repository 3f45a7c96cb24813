from __future__ import annotations

import json
from pathlib import Path

from row_samples import read, row

from tangram.validation.document import validation_document
from tangram.validation.scored import Predicted, predict_rows
from tangram.validation.scores import score_groups

KEYS = {
    "file",
    "line",
    "used",
    "reason",
    "gpu",
    "moe",
    "mixed",
    "predicted_iter_s",
    "measured_iter_s",
    "predicted_peak_memory_gib",
    "upper_peak_memory_gib",
    "measured_peak_memory_gib",
    "components",
}


def test_the_object(tmp_path: Path) -> None:
    results = read(tmp_path, row(), row(tp="x"), row(peak_mem_GiB="", experts=8, top_k=2))
    rows = predict_rows(results, lambda run: Predicted(0.6, 2 * 2**30, 3 * 2**30, {"matmul": 0.4}))
    data = json.loads(json.dumps(validation_document(rows, score_groups(rows))))
    first, second, third = data["rows"]
    assert set(first) >= KEYS
    assert (first["file"], first["line"], first["used"], first["reason"]) == ("rows.csv", 1, True, None)
    assert (first["predicted_iter_s"], first["measured_iter_s"]) == (0.6, 0.5)
    assert (first["predicted_peak_memory_gib"], first["upper_peak_memory_gib"]) == (2, 3)
    assert (first["measured_peak_memory_gib"], first["gpu"]) == (20, "A100-80GB-SXM")
    assert (first["moe"], first["mixed"], first["components"]) == (False, False, {"matmul": 0.4})
    assert (second["used"], second["predicted_iter_s"], second["components"]) == (False, None, None)
    assert second["reason"].startswith("not-a-number: row 2, column tp")
    assert (third["moe"], third["measured_peak_memory_gib"], third["memory_scored"]) == (True, None, False)
    (group,) = data["summary"]
    assert (group["file"], group["gpu"], group["rows"], group["used"]) == ("rows.csv", "A100-80GB-SXM", 3, 2)
    assert group["unused"] == {"not-a-number": 1}
    assert set(group["time"]) == {"count", "mape", "median", "worst", "bias"}
    assert group["ranking"] is None
