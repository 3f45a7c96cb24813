"""Ends a search early: when its time is up, or at the first Ctrl-C.

Both raise :class:`~tangram.errors.Stopped` in the main thread, wherever it is, but only while the search
runs; so nothing else has to look at a clock, and a search that ends by itself is the same with and without a
budget. The second Ctrl-C interrupts the program, as always.
"""

from __future__ import annotations

import _thread
import signal
import threading
import time
from types import FrameType, TracebackType
from typing import Any

from tangram.errors import InputError, Stopped

EXIT_INTERRUPTED = 130
LONGEST_S = threading.TIMEOUT_MAX


def check_budget(seconds: float | None) -> None:
    """Refuses a budget that is no time.

    Raises:
        InputError: It is not above zero.
    """
    if seconds is not None and not 0 < seconds < LONGEST_S:
        raise InputError(f"{seconds:g} seconds", where="--budget", hint="a number above 0, such as 30")


class Budget:
    """A context that a search runs in; it may be entered several times, and its time goes on.

    Attributes:
        is_over: Whether the time was up while it was entered.
        is_interrupted: Whether the user pressed Ctrl-C while it was entered.
    """

    def __init__(self, seconds: float | None) -> None:
        self._ends_s = None if seconds is None else time.monotonic() + seconds
        self._timer: threading.Timer | None = None
        self._before: Any = None
        self._entered = False
        self._rings = False
        self.is_over = False
        self.is_interrupted = False

    def __enter__(self) -> None:
        if threading.current_thread() is not threading.main_thread():
            return  # signals reach the main thread only
        self._before = signal.signal(signal.SIGINT, self._stop)
        self._entered = True
        if self._ends_s is not None:
            self._timer = threading.Timer(max(0.0, self._ends_s - time.monotonic()), self._ring)
            self._timer.daemon = True
            self._timer.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        entered, self._entered = self._entered, False
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if entered:
            signal.signal(signal.SIGINT, self._before)

    def _ring(self) -> None:
        """In the timer's thread: the time is up."""
        if self._entered:
            self._rings = True
            _thread.interrupt_main()

    def _stop(self, number: int, frame: FrameType | None) -> None:
        """In the main thread: handles Ctrl-C, and the timer."""
        rings, self._rings = self._rings, False
        if not self._entered:
            if not rings:
                raise KeyboardInterrupt
            return
        self._entered = False  # once is enough; what comes now is for the program
        signal.signal(signal.SIGINT, self._before)
        if rings:
            self.is_over = True
        else:
            self.is_interrupted = True
        raise Stopped
