"""Scored rows and their summary as one JSON-ready object."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict

from tangram.units import GIB
from tangram.validation.scored import ScoredRow
from tangram.validation.scores import GroupScore


def validation_document(rows: Sequence[ScoredRow], groups: Sequence[GroupScore]) -> dict[str, object]:
    """Returns ``{"rows": [...], "summary": [...]}``; errors are fractions, absent figures null.

    Args:
        rows: All rows, in order.
        groups: Their summary by file and GPU.
    """
    return {"rows": [_row(row) for row in rows], "summary": [_group(group) for group in groups]}


def _row(row: ScoredRow) -> dict[str, object]:
    origin, run, predicted = row.result.origin, row.result.run, row.predicted
    measured = run.measured if run is not None else None
    upper = predicted.upper_peak_memory_bytes if predicted is not None else None
    return {
        "file": origin.file,
        "line": origin.line,
        "source": origin.source,
        "used": row.used,
        "reason": row.reason or None,
        "gpu": origin.gpu or None,
        "moe": run.is_moe if run is not None else None,
        "mixed": run.is_mixed if run is not None else None,
        "predicted_iter_s": predicted.iter_s if predicted is not None else None,
        "measured_iter_s": measured.iter_s if measured is not None else None,
        "predicted_peak_memory_gib": predicted.peak_memory_bytes / GIB if predicted is not None else None,
        "upper_peak_memory_gib": upper / GIB if upper is not None else None,
        "measured_peak_memory_gib": measured.peak_memory_gib if measured is not None else None,
        "time_scored": bool(measured and measured.iter_s is not None and measured.scores_time),
        "memory_scored": bool(measured and measured.peak_memory_gib is not None and measured.scores_memory),
        "fitted_on": row.fitted_on,
        "configuration": run.key if run is not None else None,
        "basis": predicted.basis.value if predicted is not None else None,
        "components": dict(predicted.components) if predicted is not None else None,
    }


def _group(group: GroupScore) -> dict[str, object]:
    data: dict[str, object] = asdict(group)
    return data
