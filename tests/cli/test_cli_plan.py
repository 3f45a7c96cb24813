"""The commands end to end, on a small job."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tangram.cli.main import main
from tangram.plan.json_io import read_plan, to_json

Capture = pytest.CaptureFixture[str]
SMALL = ["gpt3-1.3b", "1x4xA100-40GB-SXM+1x4xV100-32GB-SXM2@100Gbit", "--global-batch", "32"]


def run(capsys: Capture, *argv: str, code: int = 0) -> tuple[str, str]:
    got = main(argv)
    out, err = capsys.readouterr()
    assert got == code, err
    return out, err


@pytest.fixture(scope="module")
def plan_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("plans") / "plan.json"
    assert main(["plan", *SMALL, "-o", str(path)]) == 0
    return path


def test_plan_prints_the_answer_and_why(capsys: Capture) -> None:
    out, err = run(capsys, "plan", *SMALL)
    for heading in (
        "Islands",
        "Pipeline",
        "Is mixing worth it?",
        "Prediction",
        "Where the time goes",
        "Assumed",
    ):
        assert f"\n{heading}" in out
    for name in ("fastest single island alone", "even layer split over everything", "Tangram's plan"):
        assert f"  {name} " in out
    assert "add -o plan.json" in out
    assert "global batch" not in out[out.index("\nAssumed") : out.index("\nSearch")]
    assert "sequence length 2048: not given" in out
    assert err.startswith("planned in ")


def test_json_is_the_only_thing_on_stdout(plan_file: Path, capsys: Capture) -> None:
    out, _ = run(capsys, "plan", *SMALL, "--json")
    assert out == plan_file.read_text(encoding="utf-8")
    assert json.loads(out)["format"] == "tangram-plan"


def test_show_prints_what_plan_printed(plan_file: Path, capsys: Capture) -> None:
    first, err = run(capsys, "plan", *SMALL, "-o", str(plan_file))
    assert f"wrote {plan_file}" in err
    assert run(capsys, "show", str(plan_file)) == (first, "")
    out, _ = run(capsys, "show", str(plan_file), "--json")
    assert out == plan_file.read_text(encoding="utf-8")


def test_stats_hold_seconds(tmp_path: Path, capsys: Capture) -> None:
    path = tmp_path / "stats.json"
    run(capsys, "plan", *SMALL, "--stats", str(path))
    seconds = json.loads(path.read_text(encoding="utf-8"))
    assert seconds["total_s"] >= seconds["search_s"] > 0


def test_options_reach_the_plan(capsys: Capture) -> None:
    out, _ = run(
        capsys, "plan", *SMALL, "--json", "--seq-len", "1024", "--precision", "fp16", "--tp", "2",
        "--zero", "1", "--micro-batch", "4", "--gradient-bytes", "2", "--no-engine-overlap", "--fixed-warmup",
        "--num-layers", "12", "--atoms", "2", "--pruning", "none", "--island-network-tolerance", "inf",
    )  # fmt: skip
    doc = json.loads(out)
    job = doc["job"]
    assert (job["seq_len"], job["precision"], job["loss_scaling"]) == (1024, "fp16", "dynamic")
    assert (job["overlap_p2p"], job["free_warmup"], job["optimizer"]["gradient_bytes"]) == (False, False, 2)
    assert {stage["tp"] for stage in doc["pipelines"][0]["stages"]} == {2}
    assert doc["pipelines"][0]["micro_batch"] == 4
    assert len(doc["model"]["layers"]) == 12
    assert (doc["granularity"], doc["search"]["pruning"]) == ("2", "none")
    assert doc["tolerances"]["network"] is None


def test_what_does_not_fit_is_refused_with_repairs(capsys: Capture) -> None:
    out, err = run(capsys, "plan", "gpt3-1.3b", "1x1xT4", code=3)
    assert out == ""
    assert err.startswith("error: ")
    assert "GiB" in err
    assert "what would help" in err


def test_check(plan_file: Path, tmp_path: Path, capsys: Capture) -> None:
    out, _ = run(capsys, "check", str(plan_file))
    assert out.startswith("ok: ")
    assert json.loads(run(capsys, "check", str(plan_file), "--json")[0])["ok"] is True
    doc = json.loads(plan_file.read_text(encoding="utf-8"))
    doc["pipelines"][0]["stages"][0]["dp"] += 1
    broken = tmp_path / "broken.json"
    broken.write_text(json.dumps(doc), encoding="utf-8")
    out, err = run(capsys, "check", str(broken), code=2)
    assert "pipelines[0].stages[0].dp" in out
    assert "[degrees-product]" in out
    assert err == ""
    report = json.loads(run(capsys, "check", str(broken), "--json", code=2)[0])
    assert report["ok"] is False
    assert {v["code"] for v in report["violations"]} >= {"degrees-product"}
    out, err = run(capsys, "simulate", str(broken), code=2)
    assert out == ""
    assert "breaks" in err


def test_simulate_agrees_with_the_plan(plan_file: Path, tmp_path: Path, capsys: Capture) -> None:
    predicted = read_plan(plan_file).prediction.iteration_time_s
    result = json.loads(run(capsys, "simulate", str(plan_file), "--json")[0])
    assert result["iteration_time_s"] == pytest.approx(predicted, rel=1e-6)
    trace = tmp_path / "trace.json"
    out, err = run(capsys, "simulate", str(plan_file), "--trace", str(trace))
    assert "busy over the step" in out
    assert f"wrote {trace}" in err
    events = json.loads(trace.read_text(encoding="utf-8"))["traceEvents"]
    assert {event["ph"] for event in events} >= {"X", "M"}


def _estimate(capsys: Capture, *argv: str) -> dict[str, Any]:
    data: dict[str, Any] = json.loads(run(capsys, "estimate", *SMALL, "--json", *argv)[0])
    return data


def test_estimate_of_a_plan_predicts_what_the_plan_does(tmp_path: Path, capsys: Capture) -> None:
    path = tmp_path / "plan.json"
    run(capsys, "plan", *SMALL, "--fixed-warmup", "-o", str(path))
    doc = read_plan(path)
    texts = []
    for stage in doc.stages:
        assert {entry.mode.value for entry in stage.recompute} == {"none"}
        degrees = f"tp{stage.tp}dp{stage.dp}cp{stage.cp}z{stage.zero}"
        layers = stage.layers[1] - stage.layers[0]
        texts.append(f"{stage.island}:{len(stage.ranks)}:{degrees}:{layers}")
    micro_batch = str(doc.pipelines[0].micro_batch)
    again = _estimate(capsys, "--stages", "+".join(texts), "--micro-batch", micro_batch)
    assert again["prediction"]["iteration_time_s"] == pytest.approx(doc.prediction.iteration_time_s, rel=1e-6)
    assert [len(s["ranks"]) for s in again["pipelines"][0]["stages"]] == [len(s.ranks) for s in doc.stages]


def test_estimate_of_uniform_degrees(capsys: Capture) -> None:
    doc = _estimate(capsys, "--pp", "4", "--tp", "2", "--dp", "1", "--micro-batch", "4")
    stages = doc["pipelines"][0]["stages"]
    assert [(s["tp"], s["dp"], s["island"]) for s in stages] == [
        (2, 1, "A100-40GB-SXM"),
        (2, 1, "A100-40GB-SXM"),
        (2, 1, "V100-32GB-SXM2"),
        (2, 1, "V100-32GB-SXM2"),
    ]
    assert [s["layers"][1] - s["layers"][0] for s in stages] == [6, 6, 6, 6]


def test_estimate_prints_a_page(capsys: Capture) -> None:
    out, _ = run(capsys, "estimate", *SMALL, "--pp", "2", "--tp", "4", "--micro-batch", "4")
    assert "Pipeline: 2 stages" in out
    assert "Prediction" in out


def test_estimate_says_what_does_not_fit(capsys: Capture) -> None:
    argv = ["estimate", "gpt3-13b", "1x4xT4", "--pp", "4", "--global-batch", "4"]
    out, _ = run(capsys, *argv, code=3)
    assert "Does not fit" in out
    assert "stage 0 lacks" in out


UNIFORM = [
    "--pp",
    "1",
    "--micro-batch",
    "7",
    "--global-batch",
    "7",
    "--seq-len",
    "1024",
    "--precision",
    "fp16",
]


def counted_and_estimated(memory: dict[str, int]) -> tuple[int, int]:
    """Model states, and all else but the margin."""
    states = sum(memory[item] for item in ("weights", "gradients", "optimizer"))
    return states, sum(memory.values()) - memory["margin"] - states


def test_the_memory_margin_decides_what_fits(capsys: Capture) -> None:
    """The peak of one GPU, just below what it has: it fits without a margin only."""
    argv = ["gpt3-1.3b", "1x1xA100-40GB-SXM", *UNIFORM]
    for options, frac, code in (
        (["--memory-margin", "0"], 0.0, 0),
        ([], 0.12, 3),
        (["--memory-margin", "0.2"], 0.2, 3),
    ):
        doc = json.loads(run(capsys, "estimate", *argv, "--json", *options, code=code)[0])
        predicted = doc["pipelines"][0]["stages"][0]["predicted"]
        states, estimated = counted_and_estimated(predicted["memory"])
        assert states + estimated < predicted["capacity_bytes"] < states + 1.12 * estimated
        assert predicted["memory"]["margin"] == pytest.approx(frac * estimated, abs=4)
        assert (predicted["headroom_bytes"] < 0) == bool(code)
        page, _ = run(capsys, "estimate", *argv, *options, code=code)
        assert ("margin" in page) == bool(frac)


def test_the_memory_margin_reaches_the_plan(plan_file: Path, capsys: Capture) -> None:
    doc = json.loads(run(capsys, "plan", *SMALL, "--json", "--memory-margin", "0.25")[0])
    assert doc["job"]["basis"]["memory_margin_frac"] == 0.25
    for stage in doc["pipelines"][0]["stages"]:
        memory = stage["predicted"]["memory"]
        assert memory["margin"] == pytest.approx(0.25 * counted_and_estimated(memory)[1], abs=4)
    assert "basis" not in json.loads(plan_file.read_text(encoding="utf-8"))["job"]


@pytest.mark.parametrize("value", ["-0.1", "1.5", "nan"])
def test_a_memory_margin_out_of_range_is_refused(value: str, capsys: Capture) -> None:
    _, err = run(capsys, "plan", *SMALL, f"--memory-margin={value}", code=2)
    assert err.startswith("error: --memory-margin: memory margin ")
    assert "legal: 0 to 1" in err


def test_documents_are_written_as_they_are_printed(plan_file: Path) -> None:
    assert to_json(read_plan(plan_file)) == plan_file.read_text(encoding="utf-8")
