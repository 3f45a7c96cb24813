"""``--budget`` and Ctrl-C: the search ends early, and nothing else does."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tangram.cli.budget import EXIT_INTERRUPTED, Budget, check_budget
from tangram.errors import InputError, Stopped

LONG = (
    "plan",
    "gpt3-13b",
    "4x8xH100-80GB-SXM+4x8xA100-80GB-SXM+4x8xA100-40GB-SXM+4x8xV100-32GB-SXM2+4x8xL40S@800Gbit",
    "--global-batch",
    "1024",
    "--json",
)


def run(*arguments: str) -> subprocess.Popen[str]:
    code = f"from tangram.cli.main import main; raise SystemExit(main({list(arguments)!r}))"
    return subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def wait_s(seconds: float) -> None:
    """Waits in steps that signals interrupt."""
    ends = time.monotonic() + seconds
    while time.monotonic() < ends:
        time.sleep(0.005)


def test_the_time_is_up_while_the_search_runs() -> None:
    budget = Budget(0.02)
    with pytest.raises(Stopped), budget:
        wait_s(5)
    assert budget.is_over
    assert not budget.is_interrupted


def test_the_time_is_not_up_outside() -> None:
    budget = Budget(0.02)
    with budget:
        pass
    wait_s(0.06)
    assert not budget.is_over
    with pytest.raises(Stopped), budget:
        wait_s(5)  # entered again, it is over at once


def test_the_first_interrupt_stops_the_search_and_the_second_the_program() -> None:
    before = signal.getsignal(signal.SIGINT)
    budget = Budget(None)
    with pytest.raises(Stopped), budget:
        signal.raise_signal(signal.SIGINT)
    assert budget.is_interrupted
    with pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is before


@pytest.mark.parametrize("seconds", [0, -1.0, float("nan"), float("inf")])
def test_what_is_no_time_is_refused(seconds: float) -> None:
    with pytest.raises(InputError) as refused:
        check_budget(seconds)
    assert refused.value.where == "--budget"


def test_too_short_a_budget_is_refused_with_what_to_do() -> None:
    process = run(*LONG, "--budget", "0.001")
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out) == (2, "")
    assert err.startswith("error: --budget: no plan was found in that time")
    assert "Traceback" not in err


def test_ctrl_c_prints_the_best_plan_so_far(tmp_path: Path) -> None:
    process = run(*LONG, "--stats", str(tmp_path / "s.json"))
    time.sleep(2.0)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == EXIT_INTERRUPTED
    if "the best plan so far" in err:
        document = json.loads(out)
        assert any("stopped before its end" in said["what"] for said in document["assumptions"])
        assert document["bound"]["lower_bound_s"] > 0
    else:  # a slow machine: there was no plan yet
        assert "interrupted" in err
        assert not out
