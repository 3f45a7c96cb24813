"""Small questions with known properties: models, portions and slices that a conformance test asks about.

The models are far too small to fill a GPU, so that every question has an answer; the tight ones get a GPU
whose memory is chosen so that a single stage fits only when layers are recomputed.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from tangram.cluster.spec import Cluster, GpuSpec, Island, Node, Portion
from tangram.cost.configs import legal_configs
from tangram.cost.types import StageConfig
from tangram.job import Job, Precision
from tangram.model.atoms import Atom, cut_atoms
from tangram.model.spec import (
    AttentionSpec,
    FeedForwardSpec,
    LayerSpec,
    ModelSpec,
    MoeSpec,
    NormKind,
    PositionKind,
)
from tangram.parallelizers.invariants import recost
from tangram.parallelizers.protocols import Capabilities, SliceRequest, StageChoice, TableRequest
from tangram.units import GB, GIB

MICRO_BATCH = 8
"""Global micro-batch of every question: any number of GPUs asked about divides it."""

NUM_MICRO_BATCHES = 8

IN_FLIGHT = (1, 5)
"""Numbers in flight that slices in front of the last stage are asked about."""

_JOB = Job(global_batch=MICRO_BATCH * NUM_MICRO_BATCHES, seq_len=256, precision=Precision.BF16)
_PORTIONS = ((1, 1), (1, 2), (1, 4), (2, 4))  # Nodes, GPUs per node; nodes have four.


@dataclass(frozen=True, slots=True)
class Case:
    """One question.

    Attributes:
        request: What is asked.
        answerable: Whether a plan surely exists (a table of single stages has one).
    """

    request: SliceRequest
    answerable: bool


def llama_like(num_layers: int = 4) -> ModelSpec:
    """Returns a tiny dense model with grouped-query attention and an untied head."""
    return _model("tiny-llama", FeedForwardSpec(intermediate_size=512, gated=True), num_layers, tied=False)


def moe_like(num_layers: int = 4) -> ModelSpec:
    """Returns a tiny mixture of experts with a tied head."""
    expert = FeedForwardSpec(intermediate_size=128, gated=True)
    return _model("tiny-moe", MoeSpec(num_experts=8, top_k=2, expert=expert), num_layers, tied=True)


def small_gpu(usable_memory_bytes: int = 40 * GIB) -> GpuSpec:
    """Returns a GPU of an invented part, shaped like an A100."""
    return GpuSpec(
        name="test-gpu",
        vendor="NVIDIA",
        family="ampere",
        architecture="sm80",
        memory_bytes=usable_memory_bytes,
        usable_memory_bytes=usable_memory_bytes,
        memory_bandwidth_bytes_per_s=1500.0 * GB,
        peak_flop_per_s={Precision.BF16: 312e12, Precision.FP16: 312e12, Precision.FP32: 19.5e12},
        achieved_flop_per_s={Precision.BF16: 240e12, Precision.FP16: 240e12, Precision.FP32: 17e12},
        achieved_basis="estimated",
        link_bytes_per_s=300.0 * GB,
        pcie_bytes_per_s=25.0 * GB,
        attention_kernel="flash",
        gpus_per_node=4,
        source="invented for tests",
    )


def small_cluster(gpu: GpuSpec | None = None, num_nodes: int = 2) -> Cluster:
    """Returns equal nodes of four GPUs."""
    part = gpu or small_gpu()
    nodes = tuple(
        Node(f"node-{i}", part, 4, 300.0 * GB, 5e-6, "nvlink", 12.5 * GB, f"node-{i}", "node")
        for i in range(num_nodes)
    )
    return Cluster("test-cluster", nodes, 12.5 * GB, 10e-6)


def small_island(gpu: GpuSpec | None = None, num_nodes: int = 2) -> Island:
    """Returns the nodes of :func:`small_cluster` as one island."""
    cluster = small_cluster(gpu, num_nodes)
    node = cluster.nodes[0]
    return Island(
        name=node.gpu.name,
        nodes=cluster.nodes,
        gpu=node.gpu,
        gpus_per_node=node.num_gpus,
        intra_bandwidth_bytes_per_s=node.intra_bandwidth_bytes_per_s,
        intra_latency_s=node.intra_latency_s,
        inter_bandwidth_bytes_per_s=cluster.default_bandwidth_bytes_per_s,
        inter_latency_s=cluster.default_latency_s,
        nic_bandwidth_bytes_per_s=node.nic_bandwidth_bytes_per_s,
    )


def slice_cases(capabilities: Capabilities) -> Iterator[Case]:
    """Yields the questions that a slice planner of these capabilities has to answer."""
    models = [llama_like()] + ([moe_like()] if capabilities.moe else [])
    for model in models:
        atoms = cut_atoms(model)
        for portion in _portions(capabilities, small_island()):
            for start, stop in _slices(capabilities, len(atoms)):
                for in_flight in _in_flight(capabilities, stop == len(atoms)):
                    request = _request(model, atoms, start, stop, portion, in_flight)
                    yield Case(request, answerable=True)
                    yield Case(_tight(request), answerable=False)


@dataclass(frozen=True, slots=True)
class TableCase:
    """One question to a stage table.

    Attributes:
        request: What is asked.
        answerable: Whether every slice surely has an option.
    """

    request: TableRequest
    answerable: bool


def table_cases(capabilities: Capabilities) -> Iterator[TableCase]:
    """Yields the questions that a stage table of these capabilities has to answer."""
    models = [llama_like()] + ([moe_like()] if capabilities.moe else [])
    for model in models:
        atoms = cut_atoms(model)
        for portion in _portions(capabilities, small_island()):
            whole = _request(model, atoms, 0, len(atoms), portion, 1)
            yield TableCase(_table_request(whole), answerable=True)
            tight = _tight(replace(whole, in_flight=max(IN_FLIGHT)))
            yield TableCase(_table_request(tight), answerable=False)


def with_memory(request: SliceRequest, memory_bytes: int) -> SliceRequest:
    """Returns the question on GPUs of another size."""
    island = small_island(small_gpu(memory_bytes), request.portion.island.num_nodes)
    return replace(request, portion=replace(request.portion, island=island))


def least_memory_bytes(request: SliceRequest, *, full: bool) -> float:
    """Returns the smallest GPU that holds the slice as one stage, with all or none of its layers recomputed.

    A part of the reserve is a share of the GPU's memory, so the peak is a straight line in it: two points say
    where it meets the memory.
    """
    sizes = (8 * GIB, 16 * GIB)
    asked = [with_memory(request, size) for size in sizes]
    least = []
    for config in legal_configs(request.model, request.portion, request.micro_batch, request.job):
        at, beyond = (_peak_bytes(sized, config, full=full) for sized in asked)
        slope = (beyond - at) / (sizes[1] - sizes[0])
        least.append((at - slope * sizes[0]) / (1 - slope))
    return min(least)


def _model(name: str, feed_forward: FeedForwardSpec | MoeSpec, num_layers: int, *, tied: bool) -> ModelSpec:
    attention = AttentionSpec(num_heads=8, num_kv_heads=4, head_dim=32)
    layer = LayerSpec(attention, feed_forward, NormKind.RMSNORM)
    return ModelSpec(
        name=name,
        family="mixtral" if layer.moe else "llama",
        hidden_size=256,
        vocab_size=1024,
        layers=(layer,) * num_layers,
        norm=NormKind.RMSNORM,
        position=PositionKind.ROTARY,
        max_positions=256,
        tied_embeddings=tied,
        source="invented for tests",
    )


def _portions(capabilities: Capabilities, island: Island) -> list[Portion]:
    accepted = capabilities.gpu_counts
    all_ = [Portion(island, nodes, gpus) for nodes, gpus in _PORTIONS]
    return [p for p in all_ if accepted is None or p.num_gpus in accepted]


def _slices(capabilities: Capabilities, num_atoms: int) -> list[tuple[int, int]]:
    """The whole model; a front, a middle and a rear where partial slices are planned."""
    whole = (0, num_atoms)
    if not capabilities.partial_slices:
        return [whole]
    return [whole, (0, num_atoms // 2), (1, num_atoms - 1), (num_atoms // 2, num_atoms)]


def _in_flight(capabilities: Capabilities, ends_model: bool) -> tuple[int, ...]:
    return (1,) if ends_model or not capabilities.later_positions else IN_FLIGHT


def _request(
    model: ModelSpec, atoms: tuple[Atom, ...], start: int, stop: int, portion: Portion, in_flight: int
) -> SliceRequest:
    link = portion.island.inter_bandwidth_bytes_per_s
    return SliceRequest(
        model=model,
        atoms=atoms,
        start=start,
        stop=stop,
        portion=portion,
        micro_batch=MICRO_BATCH,
        num_micro_batches=NUM_MICRO_BATCHES,
        in_flight=in_flight,
        link_in_bytes_per_s=link if start else None,
        link_out_bytes_per_s=link if stop < len(atoms) else None,
        job=_JOB,
    )


def _table_request(request: SliceRequest) -> TableRequest:
    """Returns the same question about all slices at once."""
    return TableRequest(
        model=request.model,
        atoms=request.atoms,
        portion=request.portion,
        micro_batch=request.micro_batch,
        num_micro_batches=request.num_micro_batches,
        max_in_flight=max(IN_FLIGHT),
        max_time_s=float("inf"),
        job=request.job,
    )


def _tight(request: SliceRequest) -> SliceRequest:
    """Returns the question on GPUs that hold the slice only when some of its layers are recomputed."""
    least = [least_memory_bytes(request, full=full) for full in (True, False)]
    return with_memory(request, round(sum(least) / 2))


def _peak_bytes(request: SliceRequest, config: StageConfig, *, full: bool) -> float:
    recomputed = tuple(full and bool(atom.layer_idxs) for atom in request.slice)
    stage = StageChoice(request.start, request.stop, request.portion, config, recomputed)
    return recost(request, stage, request.in_flight).peak_bytes
