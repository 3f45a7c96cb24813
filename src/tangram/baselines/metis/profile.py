"""What Metis knows of a model: times and memory of its layers per kind of GPU, tp degree and batch size.

Embedding and head count as layers. Times are milliseconds, memory is MB (2^20 bytes), as in Metis's files.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any, NamedTuple


class Point(NamedTuple):
    """Where a profile was taken: on which kind of GPU (by number), tp degree, samples per rank."""

    kind: int
    tp: int
    batch: int


@dataclass(frozen=True, slots=True, eq=False)
class LayerProfile:
    """One point.

    Attributes:
        time_ms: Per layer, forward and backward of one micro-batch.
        memory_mb: Per layer and GPU: model states, and activations of one micro-batch.
        sync_ms: What forward and backward of the whole model take beyond the sum of the layers.
        time_before, memory_before: Sums over the layers in front of each layer, and over all.
        least_memory_mb: Of the layers between the ends.
    """

    time_ms: tuple[float, ...]
    memory_mb: tuple[float, ...]
    sync_ms: float
    time_before: tuple[float, ...] = field(init=False)
    memory_before: tuple[float, ...] = field(init=False)
    least_memory_mb: float = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "least_memory_mb", min(self.memory_mb[1:-1], default=min(self.memory_mb)))
        object.__setattr__(self, "time_before", (0.0, *accumulate(self.time_ms)))
        object.__setattr__(self, "memory_before", (0.0, *accumulate(self.memory_mb)))

    @property
    def total_ms(self) -> float:
        """All layers."""
        return self.time_before[-1]


@dataclass(frozen=True, slots=True, eq=False)
class MetisProfile:
    """All points, and what Metis takes to be the same at all of them.

    Attributes:
        points: Where profiles exist.
        parameter_bytes: Per layer, unsharded.
        optimizer_ms: Of the whole model's step on one GPU; Metis counts it twice.
        batch_ms: To make the input of one micro-batch.
        share: Per layer, of the time of all layers at tp 1 and one sample on the first kind of GPU.
        parameters_before: Sums over the layers in front of each layer, and over all.
    """

    points: Mapping[Point, LayerProfile]
    parameter_bytes: tuple[float, ...]
    optimizer_ms: float
    batch_ms: float
    share: tuple[float, ...]
    parameters_before: tuple[float, ...] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "parameters_before", (0.0, *accumulate(self.parameter_bytes)))

    @property
    def num_layers(self) -> int:
        """With embedding and head."""
        return len(self.share)


def read_profile(files: Sequence[tuple[Point, Mapping[str, Any]]]) -> MetisProfile:
    """Reads the content of Metis's profile files.

    Like Metis it takes parameters, optimizer and batch times from the first file, with the parameters of all
    layers between the ends from the first of them, and the shares of layers from the first kind of GPU.

    Args:
        files: Point and parsed JSON of every file; those of the first kind include tp 1 with one sample.
    """
    first = files[0][1]
    points = {point: _layer_profile(data) for point, data in files}
    reference = points[Point(files[0][0].kind, 1, 1)]
    sizes = [float(size) for size in first["model"]["parameters"]["parameters_per_layer_bytes"]]
    inner = len(reference.time_ms) - 2
    return MetisProfile(
        points=points,
        parameter_bytes=(sizes[0], *[sizes[1]] * inner, sizes[-1]),
        optimizer_ms=float(first["execution_time"]["optimizer_time_ms"]),
        batch_ms=float(first["execution_time"]["batch_generator_time_ms"]),
        share=shares(reference),
    )


def shares(reference: LayerProfile) -> tuple[float, ...]:
    """Returns every layer's part of the time of all layers."""
    total = sum(reference.time_ms)
    return tuple(time / total for time in reference.time_ms)


def _layer_profile(data: Mapping[str, Any]) -> LayerProfile:
    times = tuple(float(time) for time in data["execution_time"]["layer_compute_total_ms"])
    return LayerProfile(
        time_ms=times,
        memory_mb=tuple(float(size) for size in data["execution_memory"]["layer_memory_total_mb"]),
        sync_ms=float(data["execution_time"]["forward_backward_time_ms"]) - sum(times),
    )
