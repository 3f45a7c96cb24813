"""Stands for a rank in tests of the launcher: does what its arguments say for its number."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

from tangram.errors import InputError
from tangram.runtime.failures import failure_of, write_failure
from tangram.runtime.lifeline import StopSignal, hold_on


def act(word: str, folder: Path, rank: int) -> int:
    stop = StopSignal()
    stop.listen()
    (folder / f"started-{rank}").write_text(str(os.getpid()))
    if word == "kill":
        time.sleep(0.2)
        os.kill(os.getpid(), signal.SIGKILL)
    if word == "exit":
        print("last words", file=sys.stderr, flush=True)
        return 7
    if word == "refuse":
        raise InputError("no such thing", where="a place", hint="another thing")
    if word == "late":
        time.sleep(1.0)
        raise ValueError("spoiled")
    if word == "raise":
        raise ValueError("spoiled")
    if word == "echo":  # what a rank says that lost its partner
        time.sleep(0.6)
        raise RuntimeError("Connection closed by peer")
    if word == "wait":
        for _ in range(600):
            time.sleep(0.05)
            if stop.is_set:
                (folder / f"stopped-{rank}").touch()
                return 0
    if word == "deaf":
        for _ in range(600):
            time.sleep(0.05)
    return 0


def main() -> int:
    hold_on()
    folder, words = Path(sys.argv[1]), sys.argv[2:]
    rank = int(os.environ["RANK"])
    try:
        return act(words[rank], folder, rank)
    except Exception as error:
        failure = failure_of(error)
        write_failure(Path(os.environ["TANGRAM_FAILURE"]), failure)
        return failure.exit_code


if __name__ == "__main__":
    sys.exit(main())
