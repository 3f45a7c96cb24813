"""A program under a time limit: how it ends, what it said, and that nothing of it is left."""

import sys
import time
from pathlib import Path

import pytest

from tangram.parallelizers.external.process import Finished, ProgramError, run_limited


def run(code: str, folder: Path, limit_s: float = 20.0) -> Finished:
    return run_limited([sys.executable, "-c", code], folder, limit_s)


def is_running(pid: int) -> bool:
    """Whether a process is there and no zombie that waits for its parent."""
    stat = Path(f"/proc/{pid}/stat")
    return stat.exists() and stat.read_text().rpartition(")")[2].split()[0] != "Z"


def ends_soon(pid: int) -> bool:
    deadline = time.monotonic() + 5
    while is_running(pid) and time.monotonic() < deadline:
        time.sleep(0.01)
    return not is_running(pid)


def test_a_program_that_ends_well(tmp_path: Path) -> None:
    ended = run("import sys; print('out'); print('first\\nlast ', file=sys.stderr)", tmp_path)
    assert ended.code == 0
    assert ended.last_line == "last"
    assert (tmp_path / "stdout.txt").read_text() == "out\n"


def test_a_program_that_fails(tmp_path: Path) -> None:
    ended = run("raise KeyError('no such thing')", tmp_path)
    assert ended.code == 1
    assert ended.last_line == "KeyError: 'no such thing'"
    assert run("import os; os._exit(3)", tmp_path) == Finished(3, "")
    assert Finished(3, "").last_line == "it said nothing"


def test_a_program_that_cannot_be_started(tmp_path: Path) -> None:
    with pytest.raises(ProgramError, match=r"^/no/such/python cannot be started: No such file or directory$"):
        run_limited(["/no/such/python"], tmp_path, 1.0)


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="looks at processes through /proc")
@pytest.mark.parametrize("hangs", [True, False])
def test_nothing_outlives_the_call(tmp_path: Path, hangs: bool) -> None:
    """Neither when it is late nor when it leaves a child behind, which holds its output open."""
    child = "import time; time.sleep(60)"
    code = (
        f"import subprocess, sys, time; p = subprocess.Popen([sys.executable, '-c', {child!r}]);"
        f"open('pid', 'w').write(str(p.pid)); time.sleep({60 if hangs else 0})"
    )
    began = time.monotonic()
    ended = run(code, tmp_path, 1.5 if hangs else 20.0)
    assert time.monotonic() - began < 15
    assert ended.code == (None if hangs else 0)
    assert ends_soon(int((tmp_path / "pid").read_text()))


def test_bytes_that_are_no_text_do_not_matter(tmp_path: Path) -> None:
    ended = run("import sys; sys.stderr.buffer.write(b'x' * 100_000 + b'\\n\\xff end')", tmp_path)
    assert ended.last_line == "� end"
    assert len(ended.said) < 100_000
