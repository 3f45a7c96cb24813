"""Executors by name."""

from __future__ import annotations

import sys

import pytest

from tangram.errors import InputError
from tangram.executors.as_needed import AsNeededExecutor
from tangram.executors.choice import ExecutorChoice, ExecutorKind, new_executor, parse_executor
from tangram.executors.inline import InlineExecutor
from tangram.executors.processes import ProcessExecutor
from tangram.planner.options import PlanOptions


@pytest.mark.parametrize(
    ("text", "choice"),
    [
        ("auto", ExecutorChoice()),
        ("inline", ExecutorChoice(ExecutorKind.INLINE)),
        ("processes", ExecutorChoice(ExecutorKind.PROCESSES)),
        ("processes:3", ExecutorChoice(ExecutorKind.PROCESSES, 3)),
        (" ray ", ExecutorChoice(ExecutorKind.RAY)),
        ("ray://head-1.lab:10001", ExecutorChoice(ExecutorKind.RAY, address="ray://head-1.lab:10001")),
        ("ray://[fe80::1]:10001", ExecutorChoice(ExecutorKind.RAY, address="ray://[fe80::1]:10001")),
        ("ray://localhost", ExecutorChoice(ExecutorKind.RAY, address="ray://localhost")),
    ],
)
def test_names(text: str, choice: ExecutorChoice) -> None:
    assert parse_executor(text) == choice


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("rey", "--executor: unknown executor 'rey' (did you mean 'ray'?)"),
        ("proceses", "did you mean 'processes'"),
        ("", "unknown executor '' (known: auto, inline, processes, processes:8, ray, ray://head:10001)"),
        ("inline:2", "unknown executor 'inline:2'"),
        ("processes:", "'nothing' is no number of processes"),
        ("processes:0", "'0' is no number of processes (processes:N with N from 1 to 1024"),
        ("processes:1025", "'1025' is no number of processes"),
        ("processes:-1", "'-1' is no number of processes"),
        ("processes:2.5", "'2.5' is no number of processes"),
        ("ray:", "'ray:' is no address of a Ray cluster (ray://HOST:PORT"),
        ("ray:head:10001", "'ray:head:10001' is no address of a Ray cluster"),
        ("ray://", "'ray://' is no address of a Ray cluster"),
        ("ray://a b", "'ray://a b' is no address of a Ray cluster"),
        ("ray://head:port", "'ray://head:port' is no address of a Ray cluster"),
    ],
)
def test_others_are_refused(text: str, said: str) -> None:
    with pytest.raises(InputError) as caught:
        parse_executor(text)
    assert said in str(caught.value)


def test_kinds() -> None:
    assert isinstance(new_executor(ExecutorChoice()), AsNeededExecutor)
    assert isinstance(new_executor(parse_executor("inline")), InlineExecutor)
    executor = new_executor(parse_executor("processes:3"))
    assert isinstance(executor, ProcessExecutor)
    assert executor.num_workers == 3


def test_without_ray_the_hint_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "tangram.executors.ray_cluster", raising=False)
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(
        InputError, match=r"--executor: Ray is not installed \(pip install 'tangram-llm\[ray\]'"
    ):
        new_executor(parse_executor("ray"))


def test_workers_are_a_short_form() -> None:
    assert PlanOptions().chosen_executor == ExecutorChoice()
    assert PlanOptions(workers=1).chosen_executor.kind is ExecutorKind.INLINE
    assert PlanOptions(workers=5).chosen_executor == parse_executor("processes:5")
    with pytest.raises(
        InputError, match=r"--workers: workers and an executor are both given \(--executor proc"
    ):
        PlanOptions(workers=5, executor=parse_executor("ray"))
