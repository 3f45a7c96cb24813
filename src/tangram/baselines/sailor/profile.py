"""What Sailor knows of a model and a cluster: what its profiler measures, and nothing else.

A *layer* is Sailor's unit: the embedding, a transformer layer, the head. A *group* is one tensor-parallel
group inside a node. There are two sources: Sailor's own files (:mod:`tangram.baselines.sailor.files`) and
Tangram's cost model (:mod:`tangram.baselines.sailor.costed`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple, Protocol


@dataclass(frozen=True, slots=True)
class LayerTimes:
    """Of every layer, for one micro-batch on one group; tuples of one entry per layer.

    Attributes:
        forward_s, backward_s: Per micro-batch, tensor-parallel collectives included.
        update_s: Of the optimizer, once per step.
    """

    forward_s: tuple[float, ...]
    backward_s: tuple[float, ...]
    update_s: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class LayerSizes:
    """Of every layer on one rank of a group; tuples of one entry per layer.

    Attributes:
        params: Parameters.
        activation_bytes: Kept for the backward pass, per sample and micro-batch in flight.
        fixed_bytes: What a process holds beside its layers.
        sample_bytes: The same per sample of the micro-batch, whatever is in flight.
    """

    params: tuple[float, ...]
    activation_bytes: tuple[float, ...]
    fixed_bytes: float
    sample_bytes: float = 0.0


@dataclass(frozen=True, slots=True)
class GpuProfile:
    """One type of GPU, in nodes of one kind.

    Attributes:
        name: For print; types are listed in the order of their names.
        capacity_bytes: What a rank may hold.
        state_bytes_per_param: Weights, gradients, optimizer, and what else the engine holds per parameter.
        times: By (micro-batch per group, tp).
        sizes: By tp; its keys are the degrees that exist.
    """

    name: str
    capacity_bytes: float
    state_bytes_per_param: float
    times: Mapping[tuple[int, int], LayerTimes]
    sizes: Mapping[int, LayerSizes]

    @property
    def tps(self) -> list[int]:
        """Tensor-parallel degrees, ascending."""
        return sorted(self.sizes)

    def memory_bytes(self, tp: int, start: int, stop: int, micro_batch: int, in_flight: int) -> float:
        """Returns what a rank holds of the layers ``start`` to ``stop - 1`` (section "Memory" of the
        paper).
        """
        sizes = self.sizes[tp]
        states = self.state_bytes_per_param * sum(sizes.params[start:stop])
        kept = in_flight * micro_batch * sum(sizes.activation_bytes[start:stop])
        return states + kept + sizes.fixed_bytes + micro_batch * sizes.sample_bytes


class Endpoint(NamedTuple):
    """One side of a transfer: GPUs of one type in one zone, so many (lanes) of one node at once."""

    zone: int
    gpu: int
    lanes: int


class Link(Protocol):
    """A measured connection."""

    @property
    def peak_bytes_per_s(self) -> float:
        """The largest rate that was measured."""
        ...

    def seconds(self, num_bytes: float) -> float:
        """Returns how long a message takes."""
        ...


class Network(Protocol):
    """All connections."""

    def link(self, sender: Endpoint, receiver: Endpoint) -> Link:
        """Returns the connection between GPUs of two different nodes."""
        ...


@dataclass(frozen=True, slots=True)
class Line:
    """A connection with a latency and a rate."""

    latency_s: float
    bytes_per_s: float

    @property
    def peak_bytes_per_s(self) -> float:
        """The rate."""
        return self.bytes_per_s

    def seconds(self, num_bytes: float) -> float:
        """Returns how long a message takes."""
        return self.latency_s + num_bytes / self.bytes_per_s


@dataclass(frozen=True, slots=True)
class Curve:
    """A connection whose rate was fitted to messages of several sizes, as Sailor does it.

    Attributes:
        coefficients: Of the rate in GB/s as a polynomial of log2(megabytes), highest power first.
        peak_bytes_per_s: The largest rate that was measured.
        limits: Smallest and largest message measured, in bytes; beyond them the rate at the limit is
            taken. None follows the polynomial wherever it leads, even below zero.
    """

    coefficients: tuple[float, ...]
    peak_bytes_per_s: float
    limits: tuple[float, float] | None

    def seconds(self, num_bytes: float) -> float:
        """Returns how long a message takes."""
        if num_bytes < 1:
            return 0.0
        size = float(int(num_bytes))
        at = size if self.limits is None else min(max(size, self.limits[0]), self.limits[1])
        x, rate = math.log2(at) - math.log2(1e6), 0.0
        for coefficient in self.coefficients:
            rate = rate * x + coefficient
        if self.limits is not None and rate <= 0:
            rate = self.peak_bytes_per_s / 1e9
        return size / 1e9 / rate


@dataclass(frozen=True, slots=True)
class Zone:
    """GPUs that reach each other over one network.

    Attributes:
        name: For print.
        region: Zones of one region may share a stage's replicas; regions may not.
        gpus: How many there are, per type.
    """

    name: str
    region: str
    gpus: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class SailorProblem:
    """One question to Sailor's search.

    Attributes:
        gpus: Types of GPUs, by name.
        network: Between all of them.
        gradient_bytes: What is reduced of every layer, whole (not per rank).
        output_bytes: What the next layer gets of every layer, per sample, whole.
        zones: What is there, per type.
        global_batch: Samples per step.
    """

    gpus: tuple[GpuProfile, ...]
    network: Network
    gradient_bytes: tuple[float, ...]
    output_bytes: tuple[float, ...]
    zones: tuple[Zone, ...]
    global_batch: int

    @property
    def num_layers(self) -> int:
        """Layers of the model."""
        return len(self.output_bytes)

    @property
    def micro_batches(self) -> list[int]:
        """Sizes (samples per group) that any type was profiled with, ascending."""
        return sorted({micro_batch for gpu in self.gpus for micro_batch, _ in gpu.times})

    def regions(self) -> dict[str, tuple[int, ...]]:
        """Returns the zones (by index) of every region, those with most GPUs first."""
        found: dict[str, list[int]] = {}
        for idx, zone in enumerate(self.zones):
            if any(zone.gpus):
                found.setdefault(zone.region, []).append(idx)
        return {
            name: tuple(sorted(idxs, key=lambda idx: (-sum(self.zones[idx].gpus), idx)))
            for name, idxs in found.items()
        }


class Run(NamedTuple):
    """Replicas of a stage that are alike and stand side by side.

    Attributes:
        endpoint: Zone, type and tp.
        replicas: How many.
    """

    endpoint: Endpoint
    replicas: int


@dataclass(frozen=True, slots=True)
class SailorStage:
    """Layers ``start`` to ``stop - 1``, and the replicas that hold them, listed by type, then zone."""

    start: int
    stop: int
    runs: tuple[Run, ...]


@dataclass(frozen=True, slots=True)
class SailorPlan:
    """A plan in Sailor's words.

    Attributes:
        micro_batch: Samples per replica.
        dp: Replicas of every stage.
        stages: First to last.
        estimate_s: Iteration time as the search predicts it.
    """

    micro_batch: int
    dp: int
    stages: tuple[SailorStage, ...]
    estimate_s: float


def paired(senders: tuple[Run, ...], receivers: tuple[Run, ...]) -> list[tuple[Endpoint, Endpoint]]:
    """Returns who talks to whom: replica k of one stage to replica k of the next, each kind of pair once."""
    pairs: dict[tuple[Endpoint, Endpoint], None] = {}
    a = b = 0
    left, right = senders[0].replicas, receivers[0].replicas
    while True:
        pairs[senders[a].endpoint, receivers[b].endpoint] = None
        step = min(left, right)
        left, right = left - step, right - step
        if not left:
            a += 1
            if a == len(senders):
                return list(pairs)
            left = senders[a].replicas
        if not right:
            b += 1
            if b == len(receivers):
                return list(pairs)
            right = receivers[b].replicas
