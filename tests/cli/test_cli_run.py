"""``tangram run``: what is refused before anything starts, and whole runs on CPUs."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from run_cases import two_ranks, uneven, write_data, write_plan

from tangram.cli.main import main
from tangram.job import Precision

Capture = pytest.CaptureFixture[str]
COMMAND = "from tangram.cli.main import main; import sys; sys.exit(main())"


def needs_torch() -> None:
    pytest.importorskip("torch", reason="PyTorch is not installed (pip install 'tangram-llm[train]')")


@pytest.fixture
def plan(tmp_path: Path) -> str:
    return write_plan(tmp_path, two_ranks())


def test_without_torch(plan: str, monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    assert main(["run", plan, "--data", "x"]) == 2
    err = capsys.readouterr().err
    assert "tangram run: PyTorch is not installed" in err
    assert "pip install 'tangram-llm[train]'" in err


def test_commands_for_every_host_need_no_torch(
    plan: str, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    options = ["--data", "/data/text", "--steps", "9", "--learning-rate", "0.001", "--print"]
    assert main(["run", plan, *options, "--master", "10.0.0.1:7"]) == 0
    first, second = capsys.readouterr().out.splitlines()
    arguments = f"-m tangram.runtime {plan} --data /data/text --steps 9 --learning-rate 0.001"
    assert first == (
        "torchrun --nnodes 2 --node-rank 0 --nproc-per-node 1 --master-addr 10.0.0.1 --master-port 7 "
        + arguments
    )
    assert second == first.replace("--node-rank 0", "--node-rank 1")


def one_host() -> Any:
    """The plan, all of it on one host."""
    doc = two_ranks()
    nodes = [node.model_copy(update={"host": "box"}) for node in doc.cluster.nodes]
    from tangram.cluster.serial import fingerprint

    section = doc.cluster.model_copy(update={"nodes": nodes})
    section = section.model_copy(update={"fingerprint": fingerprint(section.to_cluster())})
    return doc.model_copy(update={"cluster": section})


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ([], r"the plan spans 2 hosts (fast-0, slow-0), and this command runs on one"),
        (["--cpu"], "--data: there is nothing to train on"),
        (["--cpu", "--data", "nowhere"], "--data nowhere: there is no such file or folder"),
        (
            ["--cpu", "--log-file", "no/log.jsonl", "--data", "x"],
            "--log-file no/log.jsonl: there is no folder 'no'",
        ),
        (["--cpu", "--trace", ".", "--data", "x"], "--trace .: this is a folder"),
        (["--cpu", "--any-gpu"], "--any-gpu: --cpu takes no GPU"),
        (["--steps", "0"], "--steps: 0 is out of range"),
    ],
)
def test_refusals_before_anything_starts(
    plan: str, options: list[str], message: str, capsys: Capture
) -> None:
    needs_torch()
    assert main(["run", plan, *options]) == 2
    assert message in capsys.readouterr().err


def test_no_gpu_here(tmp_path: Path, capsys: Capture) -> None:
    needs_torch()
    import torch

    if torch.cuda.is_available():
        pytest.skip("there is a GPU here")
    assert main(["run", write_plan(tmp_path, one_host()), "--data", "x"]) == 2
    err = capsys.readouterr().err
    assert "this host: the plan wants 2 GPUs here (1x FAST-40GB, 1x SLOW-16GB), and PyTorch finds 0" in err
    assert "--cpu" in err


def test_arithmetic_that_a_cpu_has_not(tmp_path: Path, capsys: Capture) -> None:
    needs_torch()
    doc = two_ranks()
    job = doc.job.model_copy(update={"precision": Precision.TF32})
    gpus = [
        gpu.model_copy(update={"peak_flop_per_s": gpu.peak_flop_per_s | {Precision.TF32: 1e12}})
        for gpu in doc.cluster.gpus
    ]
    from tangram.cluster.serial import fingerprint

    cluster = doc.cluster.model_copy(update={"gpus": gpus})
    cluster = cluster.model_copy(update={"fingerprint": fingerprint(cluster.to_cluster())})
    plan = write_plan(tmp_path, doc.model_copy(update={"job": job, "cluster": cluster}))
    assert main(["run", plan, "--cpu", "--data", "x"]) == 2
    assert "--cpu: a CPU has no tf32" in capsys.readouterr().err


def test_a_broken_plan(tmp_path: Path, capsys: Capture) -> None:
    needs_torch()
    plan = write_plan(tmp_path, two_ranks().model_copy(update={"num_atoms": 9}))
    assert main(["run", plan, "--cpu", "--data", "x"]) == 2
    assert "the plan breaks" in capsys.readouterr().err


def test_a_whole_run(plan: str, tmp_path: Path) -> None:
    needs_torch()
    log = tmp_path / "log.jsonl"
    options = ["--data", write_data(tmp_path), "--steps", "3", "--cpu", "--log-file", str(log)]
    done = tangram("run", plan, *options)
    assert done.returncode == 0, done.stderr
    assert "ON CPUS: 2 CPU ranks of this machine stand for FAST-40GB, SLOW-16GB" in done.stderr
    assert "3 steps of 12 samples" in done.stderr
    assert "step 3/3  loss" in done.stdout
    losses = [json.loads(line)["loss"] for line in log.read_text().splitlines()[1:]]
    assert len(losses) == 3


def tangram(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", COMMAND, *arguments], capture_output=True, text=True, timeout=240, check=False
    )


@pytest.mark.slow
def test_ctrl_c_ends_a_run_between_two_steps(plan: str, tmp_path: Path) -> None:
    needs_torch()
    process, log = endless_run(plan, tmp_path)
    wait_for_lines(log, 3)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    assert "the ranks stop after this step" in err
    assert "stopped after step" in err
    assert "Traceback" not in err


@pytest.mark.slow
def test_a_killed_rank_ends_the_run(plan: str, tmp_path: Path) -> None:
    needs_torch()
    process, log = endless_run(plan, tmp_path)
    wait_for_lines(log, 2)
    os.kill(child_of_rank(process.pid, 1), signal.SIGKILL)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 1
    assert "error: rank 1 (stage 1, slow-0, a CPU): rank 1 was ended by SIGKILL; the others were ended" in err


def endless_run(plan: str, folder: Path) -> tuple[subprocess.Popen[str], Path]:
    """Starts a run that somebody has to end, in a session of its own; returns it and its file of lines."""
    log = folder / "log.jsonl"
    data = write_data(folder)
    arguments = ["run", plan, "--data", data, "--steps", "100000", "--cpu", "--log-file", str(log)]
    process = subprocess.Popen(
        [sys.executable, "-c", COMMAND, *arguments],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    return process, log


def wait_for_lines(path: Path, count: int) -> None:
    until = time.monotonic() + 120
    while time.monotonic() < until:
        if path.exists() and len(path.read_text().splitlines()) >= count:
            return
        time.sleep(0.05)
    raise AssertionError(f"{path} has no {count} lines")


def child_of_rank(parent: int, rank: int) -> int:
    for folder in Path("/proc").iterdir():
        if not folder.name.isdigit():
            continue
        try:
            stat = (folder / "stat").read_text().rpartition(")")[2].split()
            environ = (folder / "environ").read_bytes().split(b"\0")
        except OSError:
            continue
        if int(stat[1]) == parent and f"RANK={rank}".encode() in environ:
            return int(folder.name)
    raise AssertionError(f"no process of rank {rank}")


@pytest.mark.slow
def test_torchrun_starts_it_too(tmp_path: Path) -> None:
    needs_torch()
    plan, log = write_plan(tmp_path, uneven()), tmp_path / "log.jsonl"
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node"]
    options = ["-m", "tangram.runtime", plan, "--data", write_data(tmp_path), "--steps", "2", "--cpu"]
    done = subprocess.run(
        [*launcher, "3", *options, "--log-file", str(log)],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert len(log.read_text().splitlines()) == 3
    done = subprocess.run(
        [*launcher, "2", *options], capture_output=True, text=True, timeout=240, check=False
    )
    assert done.returncode != 0
    assert done.stderr.count("error: torchrun: the plan has 3 ranks; processes that were started: 2") == 1
