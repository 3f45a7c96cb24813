"""Errands in real processes: in order, kept when a worker is killed, ended when nobody wants them."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import errands
import pytest
from errands import Deadly, Mortal, marks
from executor_plans import plan_with

from tangram.errors import InternalError, Stopped
from tangram.executors import as_needed, processes
from tangram.executors.as_needed import AsNeededExecutor
from tangram.executors.choice import ExecutorChoice, ExecutorKind
from tangram.executors.processes import ProcessExecutor
from tangram.executors.protocol import Errand, Lost
from tangram.plan.json_io import to_json

INLINE = ExecutorChoice(ExecutorKind.INLINE)
TWO = ExecutorChoice(ExecutorKind.PROCESSES, 2)


@pytest.fixture(scope="module")
def pool() -> Iterator[ProcessExecutor]:
    executor = ProcessExecutor(2)
    yield executor
    executor.close()


def test_results_come_in_the_order_of_the_items(pool: ProcessExecutor, tmp_path: Path) -> None:
    items = list(range(30, 0, -1))
    for seconds_each in (0.001, 5.0):
        errand = Errand(errands.squares, (str(tmp_path),), items, seconds_each)
        assert pool.run(errand) == [item * item for item in items]
    assert pool.run(Errand(errands.squares, (str(tmp_path),), [], 1.0)) == []


def test_a_killed_worker_costs_what_it_had_in_hand_only(pool: ProcessExecutor, tmp_path: Path) -> None:
    errand = Errand(errands.squares_after_a_death, (str(tmp_path), 4), list(range(9)), 5.0)
    assert pool.run(errand) == [item * item for item in range(9)]
    assert [len(marks(tmp_path, str(item))) for item in range(9)] == [1, 1, 1, 1, 2, 1, 1, 1, 1]


@pytest.mark.parametrize("seconds_each", [0.001, 5.0])
def test_an_item_that_kills_its_workers_is_lost_alone(pool: ProcessExecutor, seconds_each: float) -> None:
    found = pool.run(Errand(errands.squares_but_one, (9,), list(range(17)), seconds_each))
    assert found[9] == Lost("3 workers died of it, the last one: ended by SIGKILL")
    assert found[:9] + found[10:] == [item * item for item in range(17) if item != 9]


def test_exit_codes_are_told(pool: ProcessExecutor) -> None:
    found = pool.run(Errand(errands.leaves, (7,), [1], 5.0))
    assert found == [Lost("3 workers died of it, the last one: ended with exit code 7")]


def test_what_is_raised_is_told_and_the_workers_go_on(pool: ProcessExecutor, tmp_path: Path) -> None:
    with pytest.raises(InternalError, match="LookupError: no luck with 1"):
        pool.run(Errand(errands.raises, (), [1], 5.0))
    assert pool.run(Errand(errands.squares, (str(tmp_path),), [3], 5.0)) == [9]


def test_stopping_ends_the_workers_and_the_next_errand_gets_others(tmp_path: Path) -> None:
    executor = ProcessExecutor(2)
    real = processes.wait

    def stopped_once_asleep(*pipes: object) -> object:
        if len(marks(tmp_path, "asleep")) == 2:
            raise Stopped
        return real(*pipes, timeout=0.05)  # type: ignore[arg-type]

    began = time.monotonic()
    long = Errand(errands.sleeps, (str(tmp_path),), [60.0] * 4, 5.0)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(processes, "wait", stopped_once_asleep)
        with pytest.raises(Stopped):
            executor.run(long)
    assert executor.run(Errand(errands.squares, (str(tmp_path),), [2, 3], 5.0)) == [4, 9]
    executor.close()
    executor.close()
    assert time.monotonic() - began < 30


def run_script(script: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(script)]
    return subprocess.run(command, check=False, capture_output=True, text=True, timeout=60)


def test_a_script_without_a_guard_is_told_so(tmp_path: Path) -> None:
    script = tmp_path / "careless.py"
    script.write_text(
        "from tangram.executors.processes import ProcessExecutor\n"
        "from tangram.executors.protocol import Errand\n"
        "print(ProcessExecutor(1).run(Errand(list, (), [1], 1.0)))\n"
    )
    done = run_script(script)
    assert done.returncode == 1
    assert done.stdout == ""
    assert "InputError: --executor: worker processes cannot be started: ended with exit code 1" in done.stderr
    assert "if __name__ == '__main__'" in done.stderr


def test_no_process_is_left_behind_without_close(tmp_path: Path) -> None:
    script = tmp_path / "forgetful.py"
    script.write_text(
        "from tangram.executors.processes import ProcessExecutor\n"
        "from tangram.executors.protocol import Errand\n"
        "if __name__ == '__main__':\n"
        "    executor = ProcessExecutor(1)\n"
        "    print(executor.run(Errand(list, (), [5], 1.0)))\n"
    )
    done = run_script(script)
    assert (done.returncode, done.stdout, done.stderr) == (0, "[5]\n", "")


def test_processes_start_with_the_first_large_errand(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(as_needed, "ProcessExecutor", lambda: ProcessExecutor(2))
    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    executor = AsNeededExecutor()
    folder = str(tmp_path)
    here = os.getpid()
    executor.run(Errand(errands.squares, (folder,), [1, 2], 0.9))  # 1.8 s of guessed work
    executor.run(Errand(errands.squares, (folder,), [3], 100.0))  # one item has nobody to share with
    executor.run(Errand(errands.squares, (folder,), [4, 5], 1.1))
    executor.run(Errand(errands.squares, (folder,), [6, 7], 0.1))  # they run already
    executor.close()
    assert {item for item in range(1, 8) if marks(tmp_path, str(item)) == [here]} == {1, 2, 3}


def test_a_plan_survives_the_death_of_a_worker(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    alone = plan_with(monkeypatch, Mortal(str(tmp_path), 20), INLINE)
    assert not list(tmp_path.iterdir())
    shared = plan_with(monkeypatch, Mortal(str(tmp_path), 20), TWO)
    assert to_json(shared) == to_json(alone)
    workers = set(marks(tmp_path, "asked"))
    assert int((tmp_path / "killed").read_text()) in workers
    assert len(workers) == 3  # two, and the one that took the place of the dead one


def test_a_parallelizer_that_kills_its_process_is_named_and_skipped(monkeypatch: pytest.MonkeyPatch) -> None:
    doc = plan_with(monkeypatch, Deadly(), TWO)
    (said,) = [a.what for a in doc.assumptions if "'deadly'" in a.what]
    assert "atoms 0 to 1, 2 in flight" in said
    assert "3 workers died of it, the last one: ended by SIGKILL" in said
    alone = plan_with(monkeypatch, Deadly(), INLINE)
    assert not [a.what for a in alone.assumptions if "skipped" in a.what]
