"""Hardware that does not exist: how fast its kinds of GPU run a layer, and how they are joined.

A kind takes a fixed time per pass and so much per sample. Everything else that a plan's prediction rests on
(arithmetic rates, memory) is only there because a cluster has to state it; plans rest on layers as timed.
Kinds and links were chosen so that plans differ by more than timing can blur: predicted from the true times,
the second best of a world takes 8 to 12 % longer than the preferred one.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from tangram.cluster import catalog
from tangram.cluster.spec import Cluster, GpuSpec, Link, Node
from tangram.job import Job, Pins, Precision
from tangram.model.spec import (
    AttentionSpec,
    FeedForwardSpec,
    LayerSpec,
    ModelSpec,
    NormKind,
    PositionKind,
)
from tangram.units import GIB


@dataclass(frozen=True)
class Kind:
    """An emulated kind of GPU.

    Attributes:
        name: In the cluster.
        fixed_s, sample_s: Forward of one layer: per pass, and per sample. Backward takes twice that.
    """

    name: str
    fixed_s: float
    sample_s: float

    def seconds(self, share: float, samples: int, *, backward: bool) -> float:
        """Time of a pass of something that has this share of a layer's work."""
        return share * (self.fixed_s + self.sample_s * samples) * (2 if backward else 1)


@dataclass(frozen=True)
class Host:
    """Equal emulated GPUs on one host."""

    name: str
    kind: Kind
    num_gpus: int


@dataclass(frozen=True)
class World:
    """An emulated cluster and what is trained on it.

    Attributes:
        name: In the report.
        hosts: All of them.
        bytes_per_s, latency_s: Between any two hosts.
        far: Hosts whose link to all others is slower: name, bytes per second and latency.
        global_batch: Samples of a step.
        num_layers, hidden, seq_len: Of the model and its samples; small, so that real work takes a part of
            the emulated time only.
    """

    name: str
    hosts: tuple[Host, ...]
    bytes_per_s: float
    latency_s: float
    far: tuple[tuple[str, float, float], ...] = ()
    global_batch: int = 24
    num_layers: int = 8
    hidden: int = 32
    seq_len: int = 16

    @property
    def kinds(self) -> dict[str, Kind]:
        return {host.kind.name: host.kind for host in self.hosts}

    def cluster(self) -> Cluster:
        nodes = tuple(
            Node(
                name=host.name,
                gpu=_part(host.kind),
                num_gpus=host.num_gpus,
                intra_bandwidth_bytes_per_s=1e9,
                intra_latency_s=1e-5,
                intra_kind="shared memory",
                nic_bandwidth_bytes_per_s=self.bytes_per_s,
                host=host.name,
                group=host.name,
            )
            for host in self.hosts
        )
        links = tuple(
            Link(name, other.name, bytes_per_s, latency_s)
            for name, bytes_per_s, latency_s in self.far
            for other in self.hosts
            if other.name != name
        )
        return Cluster(self.name, nodes, self.bytes_per_s, self.latency_s, links=links)

    def without(self, names: set[str]) -> World:
        """The same without some hosts."""
        hosts = tuple(host for host in self.hosts if host.name not in names)
        return replace(self, hosts=hosts, far=tuple(one for one in self.far if one[0] not in names))

    def model(self) -> ModelSpec:
        attention = AttentionSpec(num_heads=4, num_kv_heads=4, head_dim=self.hidden // 4)
        block = FeedForwardSpec(2 * self.hidden, gated=True)
        layer = LayerSpec(attention, block, NormKind.RMSNORM)
        return ModelSpec(
            name="emulated",
            family="llama",
            hidden_size=self.hidden,
            vocab_size=257,
            layers=(layer,) * self.num_layers,
            norm=NormKind.RMSNORM,
            position=PositionKind.ROTARY,
            max_positions=self.seq_len,
            tied_embeddings=False,
        )

    def job(self, micro_batch: int | None = None, *, free_warmup: bool = True) -> Job:
        # The emulation has no collectives inside of passes, so neither tp nor ZeRO 3.
        pins = Pins(micro_batch=micro_batch, tp=1, cp=1, zero=0)
        return Job(self.global_batch, self.seq_len, Precision.FP32, pins=pins, free_warmup=free_warmup)


def share_of_layer(atom: int, num_atoms: int) -> float:
    """Work of an atom in layers: the ends of the model have less."""
    return {0: 0.1, num_atoms - 1: 0.5}.get(atom, 1.0)


def _part(kind: Kind) -> GpuSpec:
    """What a cluster states of a part; its arithmetic is as fast as its layers say."""
    rate = 1e9 / kind.sample_s
    return replace(
        catalog.gpu("T4"),
        name=kind.name,
        vendor="none",
        family="generic",
        architecture="emulated",
        memory_bytes=16 * GIB,
        usable_memory_bytes=15 * GIB,
        memory_bandwidth_bytes_per_s=1e11,
        peak_flop_per_s={Precision.FP32: rate},
        achieved_flop_per_s={Precision.FP32: rate},
    )


FAST, MIDDLE, SLOW = Kind("FAST", 2e-3, 5e-3), Kind("MIDDLE", 2e-3, 7.5e-3), Kind("SLOW", 3e-3, 10e-3)

WORLDS = (
    World("two islands", (Host("fast", FAST, 2), Host("slow", SLOW, 2)), 2e6, 5e-4),
    World(
        "three islands",
        (Host("fast", FAST, 2), Host("middle", MIDDLE, 2), Host("slow", SLOW, 2)),
        2e6,
        5e-4,
        num_layers=9,
    ),
    World(
        "far island",
        (Host("fast", FAST, 1), Host("near", FAST, 1), Host("far", MIDDLE, 2)),
        2e6,
        5e-4,
        far=(("far", 4e5, 1.5e-2),),
    ),
)
