"""What a profiling run found: records, their spread, and what was left out and why. No torch."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tangram.profiles.records import CollectiveTime, LayerTime, Record
from tangram.profiles.shapes import LayerShape


@dataclass(frozen=True, slots=True)
class Spread:
    """Repeated timings of one thing, in seconds.

    Attributes:
        median_s: What goes into the record.
        low_s, high_s: Fastest and slowest repeat.
        count: Repeats.
    """

    median_s: float
    low_s: float
    high_s: float
    count: int

    @classmethod
    def of(cls, seconds: Sequence[float]) -> Spread:
        """Sums up one or more repeats."""
        return cls(statistics.median(seconds), min(seconds), max(seconds), len(seconds))

    @property
    def relative(self) -> float:
        """(Slowest - fastest) / median."""
        return (self.high_s - self.low_s) / self.median_s


@dataclass(frozen=True, slots=True)
class TimedLayer:
    """A layer that was timed.

    Attributes:
        record: For the store.
        spreads: By field of the record (``forward_s`` ...).
        notes: What was not measured of it, and why.
    """

    record: LayerTime
    spreads: Mapping[str, Spread]
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class TimedCollective:
    """A collective that was timed."""

    record: CollectiveTime
    spread: Spread


@dataclass(frozen=True, slots=True)
class Skipped:
    """A layer that was not timed, and why."""

    shape: LayerShape
    tp: int
    micro_batch: int
    reason: str

    def __str__(self) -> str:
        return f"{self.shape}, tp {self.tp}, micro-batch {self.micro_batch}: {self.reason}"


@dataclass(frozen=True, slots=True)
class Profile:
    """All that a run found.

    Attributes:
        device: What it ran on, in words.
        layers, collectives: What was timed.
        skipped: Layers that were not.
        notes: What holds for all of it.
    """

    device: str
    layers: tuple[TimedLayer, ...] = ()
    collectives: tuple[TimedCollective, ...] = ()
    skipped: tuple[Skipped, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def records(self) -> tuple[Record, ...]:
        """What goes into the store."""
        return (*(timed.record for timed in self.layers), *(timed.record for timed in self.collectives))
