"""Ends a rank when its launcher is gone, and lets it stop between two steps when it is asked to."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Mapping
from types import FrameType


def hold_on(environ: Mapping[str, str] = os.environ) -> None:
    """Ends this process as soon as the launcher's pipe closes; does nothing where there is none."""
    number = environ.get("TANGRAM_LIFELINE")
    if number is None:
        return
    threading.Thread(target=_watch, args=(int(number),), daemon=True, name="lifeline").start()


def _watch(descriptor: int) -> None:
    try:
        gone = not os.read(descriptor, 1)
    except OSError:
        return
    if gone:
        os._exit(1)  # nobody is left to be told anything


class StopSignal:
    """Remembers that somebody pressed Ctrl-C, so that a rank can stop where all others stop too."""

    def __init__(self) -> None:
        self.is_set = False

    def listen(self) -> None:
        """From now on SIGINT ends nothing by itself; only in the main thread of a process."""
        signal.signal(signal.SIGINT, self._note)

    def _note(self, number: int, frame: FrameType | None) -> None:
        self.is_set = True
