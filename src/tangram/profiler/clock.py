"""Clocks: what a device says about when its work was done."""

from __future__ import annotations

import time
from typing import Any, Protocol

import torch


class Clock(Protocol):
    """Marks points in the work of a device; the time between two of them is known after ``settle``."""

    def mark(self) -> Any:
        """Marks the end of all work given to the device so far."""

    def settle(self) -> None:
        """Waits until all marked work is done."""

    def seconds(self, start: Any, end: Any) -> float:
        """Returns the time from one mark to a later one."""


class HostClock:
    """For devices that work while they are called: the CPU."""

    def mark(self) -> Any:
        """Reads the clock."""
        return time.perf_counter()

    def settle(self) -> None:
        """Does nothing: what was called is done."""

    def seconds(self, start: Any, end: Any) -> float:
        """Returns the difference."""
        return float(end - start)


class CudaClock:
    """CUDA events on the current stream.

    Nothing waits between repeats, so the host runs ahead of the device as it does in training. Where it
    cannot, because the kernels are shorter than their launches, the time between two marks is that of the
    launches, as it would be in training.
    """

    def mark(self) -> Any:
        """Records an event."""
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def settle(self) -> None:
        """Waits for the device."""
        torch.cuda.synchronize()

    def seconds(self, start: Any, end: Any) -> float:
        """Returns what the device measured, to about half a microsecond."""
        return float(start.elapsed_time(end)) / 1e3


def clock_of(device: Any) -> Clock:
    """Returns the clock of a device."""
    return CudaClock() if device.type == "cuda" else HostClock()
