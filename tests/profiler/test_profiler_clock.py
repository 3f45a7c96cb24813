"""Clocks: real for the CPU, made up for GPUs."""

from __future__ import annotations

import time

import pytest
from torch_or_skip import torch

from tangram.profiler.clock import CudaClock, HostClock, clock_of


def test_the_host_reads_its_own_clock() -> None:
    clock = clock_of(torch.device("cpu"))
    assert isinstance(clock, HostClock)
    start = clock.mark()
    time.sleep(0.01)
    end = clock.mark()
    clock.settle()
    assert 0.01 <= clock.seconds(start, end) < 5


class Event:
    """Counts milliseconds: one for every event before it."""

    recorded = 0

    def __init__(self, enable_timing: bool) -> None:
        assert enable_timing
        self.at = -1

    def record(self) -> None:
        Event.recorded += 1
        self.at = Event.recorded

    def elapsed_time(self, other: Event) -> float:
        return float(other.at - self.at)


def test_events_are_seconds_between_recorded_marks(monkeypatch: pytest.MonkeyPatch) -> None:
    waited: list[bool] = []
    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: waited.append(True))
    clock = clock_of(torch.device("cuda", 0))
    assert isinstance(clock, CudaClock)
    first, second, third = clock.mark(), clock.mark(), clock.mark()
    assert waited == []  # nothing waits before the end
    clock.settle()
    assert waited == [True]
    assert clock.seconds(first, third) == pytest.approx(2e-3)
    assert clock.seconds(second, third) == pytest.approx(1e-3)
