"""``tangram plan`` and ``estimate`` on a calibration and on measured profiles, end to end."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from measured_layers import records

from tangram.cli.main import main
from tangram.model.atoms import cut_atoms
from tangram.model.load import load_model
from tangram.profiles.records import CollectiveTime, LayerTime, Op, Scope
from tangram.profiles.store import save

Capture = pytest.CaptureFixture[str]
SMALL = ["gpt3-1.3b", "1x4xA100-40GB-SXM+1x4xV100-32GB-SXM2@10Gbit", "--global-batch", "16"]
V100 = "V100-32GB-SXM2"


def run(capsys: Capture, *argv: str, code: int = 0) -> tuple[str, str]:
    got = main(argv)
    out, err = capsys.readouterr()
    assert got == code, err
    return out, err


def calibration(path: Path, **shelves: Any) -> str:
    path.write_text(json.dumps({"format": "tangram-calibration", "version": 1, **shelves}), encoding="utf-8")
    return str(path)


def values(**constants: float) -> dict[str, Any]:
    return {name: {"value": value} for name, value in constants.items()}


def planned(capsys: Capture, *options: str) -> dict[str, Any]:
    doc: dict[str, Any] = json.loads(run(capsys, "plan", *SMALL, *options, "--json")[0])
    return doc


def seconds(doc: dict[str, Any]) -> float:
    value: float = doc["prediction"]["iteration_time_s"]
    return value


def test_slower_networks_slow_plans_that_cross_nodes(tmp_path: Path, capsys: Capture) -> None:
    file = calibration(tmp_path / "cal.json", cluster={"rack": values(nic_efficiency=0.4)})
    out = tmp_path / "plan.json"
    apart = (
        "gpt3-1.3b", "1x1xA100-40GB-SXM+1x1xV100-32GB-SXM2@10Gbit", "--global-batch", "16", "--pp", "2",
        "--micro-batch", "2",
    )  # fmt: skip
    plain = json.loads(run(capsys, "plan", *apart, "--json")[0])
    found = json.loads(run(capsys, "plan", *apart, "--calibration", file, "--json")[0])
    sent = [doc["pipelines"][0]["stages"][0]["predicted"]["send_forward_s"] for doc in (plain, found)]
    assert sent[1] == pytest.approx(2 * sent[0], rel=0.01)
    assert seconds(found) > seconds(plain)
    assert found["job"]["basis"]["cluster"] == "rack"
    assert "basis" not in plain["job"]
    text, _ = run(capsys, "plan", *apart, "--calibration", file, "-o", str(out))
    assert "constants of cluster rack: the only one in" in text
    assert "recalibrated: 1 of cluster rack" in " ".join(text.split())
    assert run(capsys, "check", str(out))[0].startswith("ok: ")
    assert "not what the cost model says" not in run(capsys, "simulate", str(out))[1]
    shown, _ = run(capsys, "show", str(out))
    assert "cluster rack" in shown
    shipped = run(capsys, "plan", *apart, "--calibration", file, "--cluster-constants", "default", "--json")
    assert json.loads(shipped[0]) == plain


def test_a_stack_is_chosen_by_name_or_by_being_the_only_one(tmp_path: Path, capsys: Capture) -> None:
    slow = values(launch_s=8e-4)
    file = calibration(tmp_path / "cal.json", stack={"eager": slow, "other": values(launch_s=1e-5)})
    _, err = run(capsys, "plan", *SMALL, "--calibration", file, code=2)
    assert "2 stacks" in err
    assert "--stack: eager, other, tangram-runtime" in err
    eager = planned(capsys, "--calibration", file, "--stack", "eager")
    only = planned(capsys, "--calibration", calibration(tmp_path / "one.json", stack={"eager": slow}))
    assert only["job"]["basis"]["overrides"] == eager["job"]["basis"]["overrides"]
    assert seconds(only) == seconds(eager) > seconds(planned(capsys))
    own = planned(capsys, "--calibration", file, "--stack", "tangram-runtime")
    assert own == planned(capsys)


def test_estimate_takes_the_same_options(tmp_path: Path, capsys: Capture) -> None:
    file = calibration(tmp_path / "cal.json", gpu_family={"volta": values(gemm_efficiency=0.45)})
    argv = ("estimate", "gpt3-1.3b", "1x4xV100-32GB-SXM2", "--tp", "4", "--global-batch", "8", "--json")
    plain = json.loads(run(capsys, *argv)[0])
    found = json.loads(run(capsys, *argv, "--calibration", file)[0])
    assert seconds(found) > 1.2 * seconds(plain)


@pytest.mark.parametrize(
    ("shelves", "words"),
    [
        ({"cluster": {"rack": values(nic_eficiency=0.5)}}, "did you mean 'nic_efficiency'"),
        ({"cluster": {"rack": values(nic_efficiency=5)}}, "legal: 0.1 to 1"),
        ({"cluster": {"rack": {"nic_efficiency": {"value": "x"}}}}, "value is the text 'x'"),
        ({"version": 7}, "this release reads version 1"),
        ({"format": "other"}, "this is no calibration"),
    ],
)
def test_broken_calibrations_are_refused(
    shelves: dict[str, Any], words: str, tmp_path: Path, capsys: Capture
) -> None:
    file = calibration(tmp_path / "cal.json", **shelves)
    out, err = run(capsys, "plan", *SMALL, "--calibration", file, code=2)
    assert out == ""
    assert err.startswith(f"error: {file}")
    assert words in err


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--stack", "megatron"], "unknown software stack 'megatron'"),
        (["--cluster-constants", "rack"], "unknown cluster 'rack'"),
        (["--calibration", "{folder}/none.json"], "cannot be read"),
        (["--calibration", "{folder}"], "is a folder"),
        (["--profiles", "{folder}/none.sqlite"], "there is no such profile store"),
        (["--profiles", "{folder}/empty.sqlite"], "holds no measured layers"),
    ],
)
def test_what_is_not_there_is_refused(
    options: list[str], words: str, tmp_path: Path, capsys: Capture
) -> None:
    link = CollectiveTime(V100, "nccl", "", Scope.INTRA_NODE, Op.SEND, 2, 2, 8, 1.0, "a test")
    save(tmp_path / "empty.sqlite", [link])
    given = [option.format(folder=tmp_path) for option in options]
    _, err = run(capsys, "plan", *SMALL, *given, code=2)
    assert words in err
    assert "Traceback" not in err


def v100_layers(factor: float, stack: str = "tangram-runtime") -> list[LayerTime]:
    """Layers of the small model: so many milliseconds per layer, sample and 1 / tp."""
    model = load_model("gpt3-1.3b")

    def measured(shape: object, tp: int, samples: int) -> tuple[float, float]:
        return factor * samples / tp, 2 * factor * samples / tp

    return records(
        model, cut_atoms(model), V100, measured, seq_len=2048, samples=(1, 2, 4, 8, 16), stack=stack
    )


def test_profile_then_plan(tmp_path: Path, capsys: Capture) -> None:
    store, out = tmp_path / "store.sqlite", tmp_path / "plan.json"
    save(store, v100_layers(0.003))
    plain, found = planned(capsys), planned(capsys, "--profiles", str(store))
    assert found["prediction"]["basis"] == "mixed"
    layers = {
        doc["prediction"]["basis"]: sum(
            s["layers"][1] - s["layers"][0] for s in doc["pipelines"][0]["stages"] if s["island"] == V100
        )
        for doc in (plain, found)
    }
    assert layers["mixed"] > layers["formula"]  # these V100s turned out quick
    text, _ = run(capsys, "plan", *SMALL, "--profiles", str(store), "-o", str(out))
    assert "formulas for A100-40GB-SXM: no layer was measured on it" in " ".join(text.split())
    assert run(capsys, "check", str(out))[0].startswith("ok: ")
    assert "not what the cost model says" not in run(capsys, "simulate", str(out))[1]


def test_an_estimate_is_what_was_measured(tmp_path: Path, capsys: Capture) -> None:
    store = tmp_path / "store.sqlite"
    save(store, v100_layers(0.010))
    out, _ = run(
        capsys, "estimate", "gpt3-1.3b", "1x4xV100-32GB-SXM2", "--tp", "4", "--global-batch", "8",
        "--micro-batch", "4", "--profiles", str(store), "--json",
    )  # fmt: skip
    stage = json.loads(out)["pipelines"][0]["stages"][0]
    assert stage["predicted"]["forward_s"] == pytest.approx(26 * 0.010)  # 4 samples on 4 ranks
    assert stage["predicted"]["backward_s"] == pytest.approx(26 * 0.020)


def test_of_several_measured_stacks_one_is_chosen(tmp_path: Path, capsys: Capture) -> None:
    store = tmp_path / "store.sqlite"
    save(store, [*v100_layers(0.002, "a"), *v100_layers(0.02, "b")])
    _, err = run(capsys, "plan", *SMALL, "--profiles", str(store), code=2)
    assert "profiles of 2 stacks, and none is chosen" in err
    assert "choose one: a, b (--stack)" in err
    fast, slow = (planned(capsys, "--profiles", str(store), "--stack", name) for name in "ab")
    assert seconds(fast) < seconds(slow)
    file = calibration(tmp_path / "cal.json", stack={"b": values(kernel_ratio=1.0)})
    both = planned(capsys, "--profiles", str(store), "--calibration", file)
    assert seconds(both) == seconds(slow)


TINY = {
    "model_type": "llama",
    "num_hidden_layers": 4,
    "hidden_size": 64,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 96,
    "vocab_size": 300,
    "max_position_embeddings": 64,
}


def test_profile_on_a_cpu_then_plan_with_it(tmp_path: Path, capsys: Capture) -> None:
    """Real timings of this machine's CPU, passed off as those of a part that the planner knows."""
    torch = pytest.importorskip("torch", reason="PyTorch is not installed (pip install 'tangram-llm[train]')")
    torch.set_num_threads(1)
    model, cpu, renamed = (tmp_path / name for name in ("config.json", "cpu.sqlite", "t4.profiles.json"))
    store, out = tmp_path / "t4.sqlite", tmp_path / "plan.json"
    model.write_text(json.dumps(TINY), encoding="utf-8")
    run(
        capsys, "profile", str(model), "--gpu", "CPU", "--device", "cpu", "--precision", "fp32",
        "--seq-len", "16", "--tp", "1,2", "--micro-batch", "1,2,4", "--repeats", "3", "--store", str(cpu),
    )  # fmt: skip
    exported = run(capsys, "profiles", "export", "--store", str(cpu))[0]
    renamed.write_text(exported.replace('"CPU"', '"T4"'), encoding="utf-8")
    run(capsys, "profiles", "import", "tangram", str(renamed), "--store", str(store))
    argv = (
        str(model), "1x2xT4", "--precision", "fp32", "--seq-len", "16", "--global-batch", "4",
        "--profiles", str(store),
    )  # fmt: skip
    run(capsys, "plan", *argv, "-o", str(out))
    doc = json.loads(out.read_text(encoding="utf-8"))
    assert doc["prediction"]["basis"] == "mixed"
    assert "measured" in doc["prediction"]["basis_note"]
    assert run(capsys, "check", str(out))[0].startswith("ok: ")
