"""Spoiled documents of every kind: read, or refused with one message; never anything else.

A few hundred cases run with every change, ten thousand with the slow tests. Both are the same in every run.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from malformed import Outcome, commands_built_once, run
from mutations import EXTREMES, Pairs, leaves, put
from targets import TARGETS, Target

FEW = 25
MANY = -(-10_000 // len(TARGETS))
MOST_CPU_S = 4.0  # a cluster of 65,536 nodes takes 1.4 s
LONGEST_LINE = 1100

same_every_time = settings(
    derandomize=True,
    database=None,
    deadline=None,
    suppress_health_check=[
        HealthCheck.function_scoped_fixture,
        HealthCheck.too_slow,
        HealthCheck.data_too_large,
    ],
)
each_target = pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.name)


@pytest.fixture(autouse=True, scope="module")
def _commands() -> Iterator[None]:
    with commands_built_once():
        yield


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder to work in."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@each_target
@settings(same_every_time, max_examples=FEW)
@given(data=st.data())
def test_few_spoiled_documents(target: Target, data: st.DataObject, folder: Path) -> None:
    check(target, data, folder)


@pytest.mark.slow
@each_target
@settings(same_every_time, max_examples=MANY)
@given(data=st.data())
def test_many_spoiled_documents(target: Target, data: st.DataObject, folder: Path) -> None:
    check(target, data, folder)


@pytest.mark.slow
@each_target
def test_every_value_by_extreme_ones(target: Target, folder: Path) -> None:
    sweep(target, folder)


@pytest.mark.parametrize(
    ("name", "place", "fault"),
    [
        # Whole numbers of hundreds of digits; characters that a terminal obeys; errors of the YAML library.
        ("calibration", "tangram.cost.calibration._as_float", float),
        ("plan", "tangram.report.page.printable", str),
        ("cluster in blocks", "tangram.yaml_reader._syntax_error", lambda error, *_: error),
    ],
)
def test_planted_faults_are_found(
    name: str, place: str, fault: object, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(place, fault)
    with pytest.raises(AssertionError):
        sweep(next(target for target in TARGETS if target.name == name), folder)


def sweep(target: Target, folder: Path) -> None:
    """Puts extreme values in the place of each value of the first document, one after the other."""
    tree = (target.documents() or [""])[0]
    if isinstance(tree, str | bytes):
        pytest.skip("no tree")
    for name, text in target.beside.items():
        (folder / name).write_text(text, encoding="utf-8")
    for path in leaves(tree):
        for value in (*EXTREMES, "", "\x1b[2J", None, True, [], Pairs()):
            (folder / target.file).write_text(target.write(put(tree, path, value)), encoding="utf-8")
            for command in target.commands:
                (folder / "store.sqlite").unlink(missing_ok=True)
                judge(run(command.split()), as_json="--json" in command)


def check(target: Target, data: st.DataObject, folder: Path) -> None:
    """Spoils a document, has a command read it, and judges what came of it."""
    argv = target.command(data.draw, folder)
    (folder / "store.sqlite").unlink(missing_ok=True)
    judge(run(argv), as_json="--json" in argv)


def judge(outcome: Outcome, *, as_json: bool) -> None:
    """Refuses everything but a result, or one message for people."""
    assert outcome.code in (0, 2, 3), outcome.err
    assert "Traceback" not in outcome.err
    if outcome.code and not outcome.out:
        message = [line for line in outcome.err.splitlines() if line.startswith("error: ")]
        assert len(message) == 1, outcome.err
        assert len(message[0]) > len("error: ") + 10
    if as_json and outcome.out:
        json.loads(outcome.out)
    else:
        assert all(line.isprintable() for line in outcome.out.split("\n")), outcome.out
    for line in outcome.err.split("\n"):
        assert line.isprintable()
        assert len(line) <= LONGEST_LINE
    assert outcome.cpu_s < MOST_CPU_S
