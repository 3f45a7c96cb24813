"""Runs errands in this process until one is large enough for others to pay."""

from __future__ import annotations

import os

from tangram.executors.inline import InlineExecutor
from tangram.executors.processes import ProcessExecutor
from tangram.executors.protocol import Errand, Executor, Item, Lost, Result

THRESHOLD_S = 2.0
"""Of guessed work, from which on starting processes is no longer most of it."""


class AsNeededExecutor:
    """Starts processes, one per core, with the first large errand; from then on they get everything."""

    def __init__(self) -> None:
        self._here = InlineExecutor()
        self._there: ProcessExecutor | None = None

    def run(self, errand: Errand[Item, Result]) -> list[Result | Lost]:
        """Runs the errand here or there; see :class:`ProcessExecutor` for what it raises."""
        return self._chosen(len(errand.items), errand.seconds_each).run(errand)

    def close(self) -> None:
        """Ends the processes, if any."""
        if self._there is not None:
            self._there.close()
            self._there = None

    def _chosen(self, num_items: int, seconds_each: float) -> Executor:
        if num_items < 2 or (os.cpu_count() or 1) == 1:
            return self._here
        if self._there is None and seconds_each * num_items > THRESHOLD_S:
            self._there = ProcessExecutor()
        return self._there or self._here
