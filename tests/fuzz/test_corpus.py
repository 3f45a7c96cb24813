"""Malformed inputs of every kind, each with the message that it must be refused with."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import corpus_clusters
import corpus_families
import corpus_jobs
import corpus_measured
import corpus_models
import corpus_plans
import pytest
from malformed import Malformed, commands_built_once, run

CORPUS: tuple[Malformed, ...] = (
    *corpus_models.CASES,
    *corpus_families.CASES,
    *corpus_clusters.CASES,
    *corpus_jobs.CASES,
    *corpus_plans.CASES,
    *corpus_measured.CASES,
)
LONGEST_LINE = 1100
MOST_CPU_S = 2.0


@pytest.fixture(autouse=True, scope="module")
def _commands() -> object:
    with commands_built_once():
        yield


@pytest.mark.parametrize("case", CORPUS, ids=lambda case: case.name)
def test_what_is_wrong_and_where_is_said(
    case: Malformed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    case.write(tmp_path)
    monkeypatch.chdir(tmp_path)
    outcome = run(case.argv)
    told = outcome.err + outcome.out
    assert "Traceback" not in told, told
    assert outcome.code == case.code, told
    # Lines of fields in JSON are the subject of tests/model/test_json_lines.py.
    fields = re.sub(r"(\.json):\d+: ", r"\1: ", told)
    for fragment in case.says:
        assert fragment in told or fragment in fields, told
    if outcome.err:
        assert not outcome.out
        assert outcome.err.startswith(("error: ", "  ")), outcome.err
    for line in told.splitlines():
        assert line.isprintable()
        assert len(line) <= LONGEST_LINE
    assert outcome.cpu_s < MOST_CPU_S


def test_the_corpus_is_large_and_names_each_case_once() -> None:
    assert len(CORPUS) >= 500
    assert [name for name, count in Counter(case.name for case in CORPUS).items() if count > 1] == []
    assert all(len(" ".join(case.says)) >= 12 for case in CORPUS)
