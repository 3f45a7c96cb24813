"""What goes wrong becomes one message and an exit code."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tangram.cli import main as main_module
from tangram.cli.main import main, message_of
from tangram.errors import InfeasibleError, InputError, InternalError, UnknownNameError

Capture = pytest.CaptureFixture[str]


def raising(error: BaseException) -> Callable[[list[str]], int]:
    def run(argv: list[str]) -> int:
        raise error

    return run


@pytest.mark.parametrize(
    ("error", "code", "text"),
    [
        (
            InputError("is wrong", where="f.yaml:3", hint="do right"),
            2,
            "error: f.yaml:3: is wrong\n  do right\n",
        ),
        (
            UnknownNameError("GPU", "A10O", ["A100", "T4"]),
            2,
            "error: unknown GPU 'A10O'\n  did you mean 'A100'?\n",
        ),
        (
            InfeasibleError("nothing fits", details=["stage 1: 3 GiB short"], repairs=["recompute", "fewer"]),
            3,
            """error: nothing fits
  stage 1: 3 GiB short
what would help, the best first:
  1. recompute
  2. fewer
""",
        ),
        (KeyboardInterrupt(), 130, "\ninterrupted\n"),
    ],
)
def test_expected_errors(
    error: BaseException, code: int, text: str, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    monkeypatch.setattr(main_module, "_run", raising(error))
    assert main([]) == code
    out, err = capsys.readouterr()
    assert (out, err) == ("", text)


@pytest.mark.parametrize("error", [ValueError("surprise"), InternalError("broken promise")])
def test_bugs_say_that_they_are_bugs(
    error: Exception, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    monkeypatch.setattr(main_module, "_run", raising(error))
    assert main([]) == 1
    err = capsys.readouterr().err
    assert "Traceback" in err
    assert f"internal error: {type(error).__name__}: {error}" in err
    assert "report it" in err


def test_message_without_place_or_hint() -> None:
    assert message_of(InputError("no")) == "error: no"


def _broken(tmp_path: Path) -> dict[str, str]:
    """Files that are wrong in one way each."""
    texts = {
        "tabs.yaml": "nodes:\n\t- gpu: T4\n",
        "key.yaml": "nodes:\n  - {name: a, gpu: T4, gpus: 4, colour: red}\n",
        "bomb.yaml": "a: &a [x, x]\nb: &b [*a, *a]\nnodes: [*b, *b]\n",
        "gpu.yaml": "nodes:\n  - {name: a, gpu: T5, gpus: 4}\n",
        "config.json": '{"model_type": "llama",',
        "type.json": '{"model_type": "bert"}',
        "plan.json": '{"format": "tangram-plan", "version": 2}',
        "job.yaml": "model: gpt3-13b\nglobal_batch: many\nseq_len: 2048\n",
    }
    for name, text in texts.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    return {name: str(tmp_path / name) for name in texts} | {"folder": str(tmp_path)}


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        ("plan gpt3-13c 1x4xT4", "did you mean 'gpt3-13b'"),
        ("plan gpt3-13b 1x4xA1000-80GB-SXM", "unknown GPU 'A1000-80GB-SXM'"),
        ("plan gpt3-13b {gpu.yaml}", "gpu.yaml:2: nodes[0].gpu: unknown GPU 'T5'"),
        ("plan gpt3-13b {key.yaml}", "key.yaml:2: nodes[0].colour: unknown key 'colour'"),
        ("plan gpt3-13b {tabs.yaml}", "tabs.yaml:2:1: not valid YAML"),
        ("plan gpt3-13b {bomb.yaml}", "bomb.yaml:1: anchors"),
        ("plan gpt3-13b {folder}", "directory"),
        ("plan {config.json} 1x4xT4", "config.json"),
        ("plan {type.json} 1x4xT4", "bert"),
        ("plan gpt3-13b 1x8xV100-32GB-SXM2 --precision bf16", "no bf16"),
        ("plan gpt3-13b 1x4xT4 --global-batch 0", "--global-batch: global batch 0 is out of range"),
        ("plan gpt3-13b 1x4xT4 --seq-len 0", "--seq-len: sequence length 0 is out of range"),
        ("plan gpt3-13b 1x4xT4 --tp 0", "--tp: tp 0 is out of range"),
        ("plan gpt3-13b 1x4xT4 --zero 4", "--zero: zero 4 is out of range"),
        ("plan gpt3-13b 1x4xT4 --global-batch 8 --micro-batch 3", "legal: 1, 2, 4, 8"),
        ("plan gpt3-13b 1x4xT4 --offload disk", "unknown offload 'disk'"),
        ("plan gpt3-13b 1x4xT4 --pruning bold", "unknown pruning 'bold'"),
        ("plan gpt3-13b 1x4xT4 --atoms thirds", "operator, block, layer, or a number of layers"),
        ("plan gpt3-13b 1x4xT4 --workers -1", "--workers: -1 workers"),
        ("plan gpt3-13b 1x4xT4 --gradient-bytes 3", "--gradient-bytes: 3 bytes"),
        ("plan gpt3-13b 1x4xT4 --layers-per-stage 20,x", "'x' is no number of layers"),
        ("plan gpt3-13b 1x4xT4 --num-layers 41", "--num-layers: 41 layers"),
        (
            "plan gpt3-13b 1x4xT4 --island-compute-tolerance=-1",
            "--island-compute-tolerance: -1.0 is no tolerance",
        ),
        ("plan gpt3-13b 1x4xT4 --island-compute-tolerance=nan", "nan is no tolerance"),
        ("plan gpt3-13b 1x4xT4 --job {job.yaml}", "job.yaml:2: global_batch: expected a whole number"),
        ("plan gpt3-13b 1x4xT4 --job nowhere.yaml", "nowhere.yaml: no such job file"),
        ("plan gpt3-13b 1x4xT4 -o {folder}", "this is a folder, not a file"),
        ("plan gpt3-13b 1x4xT4 -o no/such/plan.json", "there is no folder 'no/such'"),
        ("plan gpt3-13b 1x4xT4 --stats {folder}", "this is a folder, not a file"),
        ("plan gpt3-13b", "CLUSTER is missing"),
        ("plan", "missing argument 'MODEL'"),
        ("plan gpt3-13b 1x4xT4 --tp two", "invalid value for '--tp'"),
        ("plan gpt3-13b 1x4xT4 --precision fp4", "invalid value for '--precision'"),
        ("plan gpt3-13b 1x4xT4 --precision fp8", "legal on this cluster: fp32, fp16"),
        ("plan gpt3-13b 1x4xT4 --seq-length 5", "no such option: --seq-length"),
        ("plna gpt3-13b 1x4xT4", "no such command 'plna'"),
        ("islands 2x8xH100", "H100"),
        ("models gpt4", "unknown model 'gpt4'"),
        ("gpus T44", "did you mean 'T4'?"),
        ("show {plan.json}", "version"),
        ("show nowhere.json", "nowhere.json"),
        ("check {config.json}", "config.json"),
        ("simulate {folder}", "folder"),
        ("estimate gpt3-13b 1x4xT4 --stages x --tp 2", "--tp and --stages exclude each other"),
    ],
)
def test_refusals(command: str, expected: str, tmp_path: Path, capsys: Capture) -> None:
    files = _broken(tmp_path)
    argv = [files.get(word[1:-1], word) if word.startswith("{") else word for word in command.split()]
    assert main(argv) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert expected in err
    assert "Traceback" not in err
    assert err.count("error: ") == 1
    assert err.startswith("error: ")


def test_a_pipe_as_input_is_refused_and_not_waited_for(tmp_path: Path, capsys: Capture) -> None:
    fifo = tmp_path / "cluster.yaml"
    os.mkfifo(fifo)
    assert main(["islands", str(fifo)]) == 2
    assert "not a regular file" in capsys.readouterr().err


def test_no_arguments_print_the_help(capsys: Capture) -> None:
    assert main([]) == 0
    out, err = capsys.readouterr()
    assert "Usage: tangram" in out
    assert err == ""


def test_version(capsys: Capture) -> None:
    from tangram import __version__

    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"tangram {__version__}\n"


RUN = "import sys; from tangram.cli.main import main; sys.exit(main())"


def _process(*argv: str, stdout: int = subprocess.PIPE, **environ: str) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        [sys.executable, "-c", RUN, *argv],
        env={**os.environ, **environ},
        stdout=stdout,
        stderr=subprocess.PIPE,
        check=False,
        timeout=60,
    )


def test_ascii_terminals_get_ascii(tmp_path: Path) -> None:
    cluster = tmp_path / "größe.yaml"
    cluster.write_text("name: Größe\nnodes:\n  - {name: a, gpu: T4, gpus: 4}\n", encoding="utf-8")
    done = _process("islands", str(cluster), PYTHONIOENCODING="ascii")
    assert done.returncode == 0
    assert done.stdout.isascii()
    assert rb"Gr\xf6\xdfe" in done.stdout
    assert done.stderr == b""


def test_a_reader_that_goes_away_is_no_error() -> None:
    read, write = os.pipe()
    os.close(read)
    try:
        done = _process("gpus", stdout=write)
    finally:
        os.close(write)
    assert done.stderr == b""
    assert done.returncode == 141


def test_a_closed_stdout_is_no_error() -> None:
    shell = ["sh", "-c", 'exec "$0" -c "$1" gpus >&-', sys.executable, RUN]
    done = subprocess.run(shell, capture_output=True, check=False, timeout=60)
    assert done.stderr == b""
    assert done.returncode == 0


@pytest.mark.parametrize("columns", ["80", "100", "140"])
def test_columns_are_honoured(columns: str) -> None:
    done = _process("islands", "1x8xA100-80GB-SXM+2x8xV100-32GB-SXM2", COLUMNS=columns)
    widths = [len(line) for line in done.stdout.decode().splitlines()]
    assert max(widths) <= int(columns)
