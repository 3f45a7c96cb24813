"""All ranks end together: when they are done, when one dies, on Ctrl-C, and when the launcher is gone."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from tangram.errors import InputError
from tangram.plan.schema import RankSlot
from tangram.runtime.launch import EXIT_INTERRUPTED, Launcher, RankDiedError
from tangram.runtime.place import HostShare

FAKE = str(Path(__file__).with_name("fake_rank.py"))


def launcher(folder: Path, *words: str, grace_s: float = 5.0) -> Launcher:
    slots = tuple(RankSlot(rank=i, node="n", gpu_idx=i, gpu="T4") for i in range(len(words)))
    return Launcher(
        share=HostShare("n", slots),
        command=[FAKE, str(folder), *words],
        environ={},
        port=1,
        words=lambda rank: f"rank {rank} (stage 0, n, GPU {rank})",
        grace_s=grace_s,
        kill_s=0.5,
    )


def is_running(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


def all_gone(folder: Path, count: int) -> bool:
    """Whether no rank runs any more; one that was ended before it could say its number does not."""
    said = [folder / f"started-{rank}" for rank in range(count)]
    pids = [int(text) for file in said if file.exists() and (text := file.read_text())]
    until = time.monotonic() + 5
    while any(map(is_running, pids)) and time.monotonic() < until:
        time.sleep(0.02)
    return not any(map(is_running, pids))


def test_all_done(tmp_path: Path) -> None:
    assert launcher(tmp_path, "done", "done").run() == 0
    assert all_gone(tmp_path, 2)


def test_a_killed_rank_ends_the_others(tmp_path: Path) -> None:
    with pytest.raises(RankDiedError, match="rank 1 was ended by SIGKILL; the others were ended") as caught:
        launcher(tmp_path, "deaf", "kill", "echo").run()
    assert caught.value.where == "rank 1 (stage 0, n, GPU 1)"
    assert "memory" in str(caught.value.hint)
    assert all_gone(tmp_path, 3)


def test_the_first_failure_counts_and_is_shown(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(RankDiedError, match="rank 2 failed: ValueError: spoiled"):
        launcher(tmp_path, "echo", "echo", "raise").run()
    err = capfd.readouterr().err
    assert 'raise ValueError("spoiled")' in err
    assert "closed by peer" not in err
    assert all_gone(tmp_path, 3)


def test_an_echo_may_be_heard_first(tmp_path: Path) -> None:
    with pytest.raises(RankDiedError, match="rank 1 failed: ValueError: spoiled"):
        launcher(tmp_path, "echo", "late").run()


def test_a_rank_that_only_ends(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(RankDiedError, match="rank 1 ended with exit code 7"):
        launcher(tmp_path, "wait", "exit").run()
    assert "last words" in capfd.readouterr().err


def test_a_refusal_keeps_its_words_and_its_code(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no such thing") as caught:
        launcher(tmp_path, "wait", "refuse").run()
    assert (caught.value.where, caught.value.hint, caught.value.exit_code) == ("a place", "another thing", 2)


def interrupt_when_started(folder: Path, count: int, times: int) -> threading.Thread:
    def wait() -> None:
        while not all((folder / f"started-{rank}").exists() for rank in range(count)):
            time.sleep(0.02)
        for _ in range(times):
            time.sleep(0.2)
            os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=wait)
    thread.start()
    return thread


def test_ctrl_c_lets_ranks_stop(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    thread = interrupt_when_started(tmp_path, 2, 1)
    assert launcher(tmp_path, "wait", "wait").run() == EXIT_INTERRUPTED
    thread.join()
    assert (tmp_path / "stopped-0").exists()
    assert (tmp_path / "stopped-1").exists()
    assert "stop after this step" in capfd.readouterr().err


@pytest.mark.parametrize(("times", "grace_s"), [(2, 20.0), (1, 0.2)])
def test_ranks_that_do_not_stop_are_ended(tmp_path: Path, times: int, grace_s: float) -> None:
    """At the second Ctrl-C, or when their time is over."""
    thread = interrupt_when_started(tmp_path, 2, times)
    with pytest.raises(KeyboardInterrupt):
        launcher(tmp_path, "deaf", "deaf", grace_s=grace_s).run()
    thread.join()
    assert all_gone(tmp_path, 2)


@pytest.mark.skipif(not Path("/proc").is_dir(), reason="processes are looked up in /proc")
def test_ranks_end_when_the_launcher_is_killed(tmp_path: Path) -> None:
    code = f"import sys; sys.path.insert(0, {str(Path(__file__).parent)!r})\n"
    code += "from pathlib import Path\nfrom test_runtime_launch import launcher\n"
    code += f"launcher(Path({str(tmp_path)!r}), 'deaf', 'deaf').run()"
    process = subprocess.Popen([sys.executable, "-c", code])
    while not all((tmp_path / f"started-{rank}").exists() for rank in range(2)):
        time.sleep(0.05)
    process.kill()
    process.wait()
    assert all_gone(tmp_path, 2)
