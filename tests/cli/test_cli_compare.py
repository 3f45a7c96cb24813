"""``tangram compare`` end to end, on a small job."""

from __future__ import annotations

import json

import pytest

from tangram.cli.main import main
from tangram.plan.check import check_plan
from tangram.plan.json_io import parse_plan

Capture = pytest.CaptureFixture[str]
SMALL = ["gpt3-1.3b", "1x4xA100-40GB-SXM+1x4xV100-32GB-SXM2@100Gbit", "--global-batch", "32"]
TWO = ["--planners", "exact,uniform", "--planners", "uniform-alone"]


def run(capsys: Capture, *argv: str, code: int = 0) -> tuple[str, str]:
    got = main(argv)
    out, err = capsys.readouterr()
    assert got == code, err
    return out, err


def test_json_lists_the_planners_in_the_order_asked(capsys: Capture) -> None:
    out, _ = run(capsys, "compare", *SMALL, *TWO, "--json")
    doc = json.loads(out)
    entries = {entry["planner"]: entry for entry in doc["planners"]}
    assert list(entries) == ["exact", "uniform", "uniform-alone"]
    assert all(entry["executable"] and entry["reason"] == "" for entry in entries.values())
    assert all(entry["planning_time_s"] > 0 for entry in entries.values())
    times = {name: entry["iteration_time_s"] for name, entry in entries.items()}
    assert times["exact"] <= times["uniform"] <= times["uniform-alone"]
    for name in ("exact", "uniform"):
        plan = parse_plan(json.dumps(entries[name]["plan"]), where=name)
        assert check_plan(plan) == []
        assert plan.prediction.iteration_time_s == pytest.approx(times[name])
    assert entries["uniform-alone"]["plan"]["format"] == "cluster-plan"


def test_the_page_ranks_them_and_draws_a_chart(capsys: Capture) -> None:
    out, _ = run(capsys, "compare", *SMALL, *TWO)
    table, chart = out.index("planner "), out.index("\nThroughput")
    ranked = [line.split()[0] for line in out[table:chart].splitlines()[1:] if line.strip()]
    assert sorted(ranked) == ["exact", "uniform", "uniform-alone"]
    assert ranked[-1] == "uniform-alone"
    assert "1.00x as fast" in out
    assert "none is measured" in " ".join(out.split())


def test_nothing_executable_is_exit_code_3(capsys: Capture) -> None:
    out, _ = run(capsys, "compare", "gpt3-13b", "1x1xT4", "--planners", "exact,uniform-alone", code=3)
    assert out.count("no plan") >= 2
    assert "cannot be executed" in out


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("exat", "did you mean 'exact'"),
        ("exact-alone", "answers with single stages"),
        ("unifrom-alone", "did you mean 'uniform-alone'"),
    ],
)
def test_an_unknown_planner_is_refused_with_the_nearest(name: str, said: str, capsys: Capture) -> None:
    _, err = run(capsys, "compare", *SMALL, "--planners", name, code=2)
    assert said in err
    assert "--planners" in err
