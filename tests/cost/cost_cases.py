"""Small models, islands and configurations for the tests of the cost model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from hypothesis import strategies as st

from tangram.cluster.catalog import gpu
from tangram.cluster.spec import Cluster, GpuSpec, Island, Link, Node, Portion, portions
from tangram.cost.configs import legal_configs
from tangram.cost.types import StageConfig
from tangram.job import Job, Pins, Precision
from tangram.model.spec import (
    AttentionSpec,
    FeedForwardSpec,
    LayerSpec,
    ModelSpec,
    MoeSpec,
    NormKind,
    PositionKind,
)

A100 = gpu("A100-80GB-SXM")
V100 = gpu("V100-16GB-SXM2")
T4 = gpu("T4")
H100 = gpu("H100-80GB-SXM")


def dense_layer(
    hidden: int = 1024, heads: int = 8, kv_heads: int = 8, ffn: int = 4096, *, gated: bool = False
) -> LayerSpec:
    norm = NormKind.RMSNORM if gated else NormKind.LAYERNORM
    attention = AttentionSpec(heads, kv_heads, hidden // heads, qkv_bias=not gated, out_bias=not gated)
    return LayerSpec(attention, FeedForwardSpec(ffn, gated, bias=not gated), norm)


def moe_layer(
    hidden: int = 1024, heads: int = 8, num_experts: int = 8, top_k: int = 2, width: int = 512
) -> LayerSpec:
    expert = FeedForwardSpec(width, gated=True)
    attention = AttentionSpec(heads, heads, hidden // heads)
    return LayerSpec(attention, MoeSpec(num_experts, top_k, expert), NormKind.RMSNORM)


def model_of(*layers: LayerSpec, hidden: int = 1024, vocab: int = 5000, tied: bool = False) -> ModelSpec:
    return ModelSpec(
        name="small",
        family="gpt2",
        hidden_size=hidden,
        vocab_size=vocab,
        layers=layers,
        norm=layers[0].norm,
        position=PositionKind.LEARNED,
        max_positions=2048,
        tied_embeddings=tied,
    )


def island_of(
    part: GpuSpec = A100, num_nodes: int = 2, per_node: int = 8, nic: float = 100e9, **changes: object
) -> Island:
    nodes = tuple(
        Node(f"n{i}", part, per_node, 300e9, 5e-6, "nvlink", nic, f"n{i}", "n") for i in range(num_nodes)
    )
    island = Island("island", nodes, part, per_node, 300e9, 5e-6, nic, 10e-6, nic)
    return replace(island, **changes)  # type: ignore[arg-type]


def whole(island: Island) -> Portion:
    return Portion(island, island.num_nodes, island.gpus_per_node)


def job_of(precision: Precision = Precision.BF16, *, seq_len: int = 512, **pins: object) -> Job:
    return Job(64, seq_len, precision, pins=Pins(**pins))  # type: ignore[arg-type]


def two_sides(bandwidth: float = 12.5e9, nodes: tuple[int, int] = (1, 2), **nics: float) -> Cluster:
    """Nodes a0, a1 ... of A100 and b0, b1 ... of V100."""
    left = [
        Node(f"a{i}", A100, 8, 300e9, 5e-6, "nvlink", nics.get("a", 25e9), f"a{i}", "a")
        for i in range(nodes[0])
    ]
    right = [
        Node(f"b{i}", V100, 4, 150e9, 6e-6, "nvlink", nics.get("b", 12.5e9), f"b{i}", "b")
        for i in range(nodes[1])
    ]
    return Cluster("two", (*left, *right), bandwidth, 20e-6, (Link("b", "b", 1e9, 50e-6),))


def change_gpu(island: Island, **changes: object) -> Island:
    part = replace(island.gpu, **changes)  # type: ignore[arg-type]
    nodes = tuple(replace(node, gpu=part) for node in island.nodes)
    return replace(island, gpu=part, nodes=nodes)


def scaled(rates: Mapping[Precision, float], factor: float) -> dict[Precision, float]:
    return {precision: rate * factor for precision, rate in rates.items()}


MODELS = (
    model_of(dense_layer(), dense_layer()),
    model_of(dense_layer(gated=True, kv_heads=4, ffn=2816), tied=True),
    model_of(moe_layer(), dense_layer(gated=True)),
    model_of(moe_layer(num_experts=16, width=256), tied=True),
)


@st.composite
def stages(draw: st.DrawFn) -> tuple[ModelSpec, Portion, StageConfig, int, Job]:
    """A model, a portion, a legal configuration of it, a global micro-batch and a job."""
    model = draw(st.sampled_from(MODELS))
    part, precisions = draw(
        st.sampled_from(
            [
                (A100, (Precision.BF16, Precision.TF32, Precision.FP32)),
                (V100, (Precision.FP16, Precision.FP32)),
                (T4, (Precision.FP16,)),
                (H100, (Precision.BF16,)),
            ]
        )
    )
    island = island_of(part, nic=draw(st.sampled_from([1.25e9, 12.5e9, 100e9, 400e9])))
    portion = draw(st.sampled_from(portions(island)))
    offload = draw(st.sampled_from(["none", "none", "auto"]))
    zero = draw(st.sampled_from([None, None, 0]))
    job = Job(
        64,
        draw(st.sampled_from([128, 2048])),
        draw(st.sampled_from(precisions)),
        pins=Pins(offload=offload, zero=zero, cp=draw(st.sampled_from([None, None, 2]))),
    )
    micro_batch = draw(st.sampled_from([1, 2, 4, 8, 16, 64]))
    configs = legal_configs(model, portion, micro_batch, job)
    if not configs:
        micro_batch, portion = 1, Portion(island, 1, 1)
        job = replace(job, pins=Pins(offload=offload, zero=zero))
        configs = legal_configs(model, portion, micro_batch, job)
    return model, portion, draw(st.sampled_from(configs)), micro_batch, job
