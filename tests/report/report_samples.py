"""A plan by hand: three stages of gpt3-13b on two islands; a third island is left out."""

from __future__ import annotations

from typing import Any

from tangram.job import Job, Pins, Precision, Recompute
from tangram.plan.schema import (
    AssumptionSection,
    AttentionSection,
    BoundSection,
    BoundStep,
    ClusterSection,
    Comparison,
    FeedForwardSection,
    GpuSection,
    GpuSlot,
    IdleSection,
    IslandSection,
    JobSection,
    LayerKind,
    LayerRecompute,
    MeshSection,
    ModelSection,
    NodeSection,
    PipelineSection,
    PlanDocument,
    Prediction,
    RankSlot,
    ScheduleSection,
    SearchSection,
    StagePrediction,
    StageSection,
)
from tangram.units import GIB

PARTS = {
    "A100-80GB-SXM": (79, 312e12, True),
    "V100-32GB-SXM2": (31, 125e12, False),
    "V100-16GB-SXM2": (15, 125e12, False),
}
ISLANDS = {"A100-80GB-SXM": ("a100", 4), "V100-32GB-SXM2": ("v100", 8), "V100-16GB-SXM2": ("old", 4)}


def make_plan(**changes: Any) -> PlanDocument:
    """The plan; ``changes`` replace sections."""
    stages = [
        _stage(0, "A100-80GB-SXM", "a100", range(4), 0, (0, 24), tp=4, dp=1, in_flight=4, peak_gib=61.4),
        _stage(
            1,
            "V100-32GB-SXM2",
            "v100",
            range(4),
            4,
            (24, 32),
            tp=2,
            dp=2,
            in_flight=2,
            peak_gib=29.7,
            full=3,
        ),
        _stage(
            2,
            "V100-32GB-SXM2",
            "v100",
            range(4, 8),
            8,
            (32, 40),
            tp=4,
            dp=1,
            in_flight=1,
            peak_gib=22.0,
            offload=True,
        ),
    ]
    pipeline = PipelineSection(
        global_batch=512,
        micro_batch=2,
        num_micro_batches=256,
        schedule=ScheduleSection(in_flight=[4, 2, 1], overlap_p2p=True),
        stages=stages,
    )
    doc = PlanDocument(
        tangram_version="0.1.0",
        model=_model(),
        cluster=_cluster(),
        job=JobSection.of(
            Job(512, 2048, Precision.FP16, pins=Pins(zero=1)),
            precision_reason="V100-32GB-SXM2 and V100-16GB-SXM2 have no bf16",
        ),
        granularity="layer",
        num_atoms=42,
        islands=_islands(),
        tolerances={"compute": 0.05, "memory": 0.05, "intra": 0.1, "network": None},
        pipelines=[pipeline],
        prediction=Prediction(
            iteration_time_s=36.31,
            tokens_per_s=28878.6,
            samples_per_s=14.1,
            model_flop_per_step=8.4e16,
            mfu=0.312,
            bubble_frac=0.034,
            bottleneck_stage=1,
            basis="formula",
            basis_note="uncalibrated; expect errors of a quarter",
            breakdown={"fill": 0.6, "steady": 35.0, "drain": 0.5, "step_end": 0.21},
        ),
        bound=BoundSection(
            lower_bound_s=35.8,
            gap_frac=0.01425,
            proven_optimal=False,
            staircase=[
                BoundStep(
                    name="work shared freely",
                    time_s=30.1,
                    explanation="every GPU at its best rate, layers divisible at will",
                ),
                BoundStep(
                    name="whole layers that fit",
                    time_s=34.2,
                    explanation="stages of whole layers, within memory",
                ),
                BoundStep(
                    name="filling the pipeline",
                    time_s=35.8,
                    explanation="the first micro-batch passes every stage",
                ),
                BoundStep(name="this plan", time_s=36.31, explanation="step end, contention and the search"),
            ],
            scope="one pipeline, 1F1B, stages within islands",
        ),
        idle=[
            IdleSection(
                island="V100-16GB-SXM2",
                count=4,
                gpus=[GpuSlot(node="old", gpu_idx=idx) for idx in range(4)],
                reason="as a stage they would set a pace 2.4x the present one",
            )
        ],
        comparisons=[
            Comparison(name="single-island", iteration_time_s=51.2, summary="A100-80GB-SXM: 2 stages of tp2"),
            Comparison(
                name="even-split",
                iteration_time_s=None,
                summary="4 stages of 10 layers",
                reason="stage 3 needs 21.2 GiB of 15.0 GiB on V100-16GB-SXM2",
            ),
            Comparison(name="tangram", iteration_time_s=36.31, summary="3 stages on 2 islands"),
        ],
        assumptions=[
            AssumptionSection(what="global batch 512", why="not given; fills a pipeline (--global-batch)")
        ],
        search=SearchSection(
            parallelizers=["exact"],
            pruning="safe",
            micro_batches_considered=[1, 2, 4, 8],
            counts={
                "pairs": 12345,
                "removed_redundant": 11000,
                "removed_unbalanced": 300,
                "queries": 44,
                "odd_count": 3,
            },
        ),
    )
    return doc.model_copy(update=changes)


def _stage(
    index: int, island: str, node: str, gpus: range, first_rank: int, layers: tuple[int, int], *,
    tp: int, dp: int, in_flight: int, peak_gib: float, full: int = 0, offload: bool = False,
) -> StageSection:  # fmt: skip
    start, stop = layers
    first, last = index == 0, index == 2
    atoms = (start if first else start + 1, stop + 2 if last else stop + 1)
    recompute = []
    for atom in range(*atoms):
        held = [atom - 1] if 1 <= atom <= 40 else []
        mode = Recompute.FULL if held and held[0] < start + full else Recompute.NONE
        recompute.append(LayerRecompute(atom=atom, layers=held, mode=mode))
    peak = int(peak_gib * GIB)
    capacity = PARTS[island][0] * GIB
    return StageSection(
        index=index,
        island=island,
        atoms=atoms,
        layers=layers,
        has_embedding=first,
        has_head=last,
        ranks=[
            RankSlot(rank=first_rank + i, node=node, gpu_idx=gpu, gpu=island) for i, gpu in enumerate(gpus)
        ],
        mesh=MeshSection(axes=["dp", "cp", "tp"], sizes=[dp, 1, tp]),
        expert_mesh=None,
        dp=dp,
        tp=tp,
        cp=1,
        ep=1,
        expert_tp=1,
        sequence_parallel=tp > 1,
        micro_batch_per_dp_rank=[2 // dp] * dp,
        zero=1,
        zero_axes=["dp", "cp"],
        recompute=recompute,
        offload_optimizer=offload,
        attention_kernel="flash" if PARTS[island][2] else "unfused",
        padded_vocab_size=50304 if first or last else None,
        predicted=StagePrediction(
            forward_s=0.0452,
            backward_s=0.0911,
            step_s=0.21,
            send_forward_s=None if last else 0.004,
            send_backward_s=None if last else 0.004,
            boundary_bytes=0 if last else 41943040,
            in_flight=in_flight,
            activation_bytes=GIB,
            memory={"weights": peak - 2 * GIB, "activations": GIB, "reserve": GIB},
            peak_bytes=peak,
            capacity_bytes=capacity,
            headroom_bytes=capacity - peak,
        ),
        reason="takes as many layers as its rate allows",
    )


def _model() -> ModelSection:
    kind = LayerKind(
        attention=AttentionSection(
            num_heads=40, num_kv_heads=40, head_dim=128, qkv_bias=True, out_bias=True, qk_norm=False
        ),
        feed_forward=FeedForwardSection(intermediate_size=20480, gated=False, bias=True),
        norm="layernorm",
    )
    return ModelSection(
        name="gpt3-13b",
        family="gpt2",
        fingerprint="0" * 16,
        num_params=12_853_473_280,
        num_active_params=12_853_473_280,
        hidden_size=5120,
        vocab_size=50257,
        padded_vocab_size=50304,
        norm="layernorm",
        position="learned",
        max_positions=2048,
        tied_embeddings=True,
        layer_kinds=[kind],
        layers=[0] * 40,
        source="by hand",
    )


def _cluster() -> ClusterSection:
    gpus = [
        GpuSection(
            name=name,
            vendor="NVIDIA",
            family="any",
            architecture="sm80",
            memory_bytes=(gib + 1) * GIB,
            usable_memory_bytes=gib * GIB,
            memory_bandwidth_bytes_per_s=1e12,
            peak_flop_per_s={Precision.FP16: peak},
            achieved_flop_per_s={Precision.FP16: 0.8 * peak},
            achieved_basis="estimated",
            link_bytes_per_s=150e9,
            pcie_bytes_per_s=16e9,
            attention_kernel="flash" if flash else "unfused",
            gpus_per_node=8,
            source="by hand",
        )
        for name, (gib, peak, flash) in sorted(PARTS.items())
    ]
    nodes = [
        NodeSection(
            name=node,
            gpu=name,
            num_gpus=count,
            intra_bandwidth_bytes_per_s=150e9,
            intra_latency_s=3e-6,
            intra_kind="nvlink",
            nic_bandwidth_bytes_per_s=12.5e9,
            host=node,
            group=node,
        )
        for name, (node, count) in sorted(ISLANDS.items(), key=lambda item: item[1])
    ]
    return ClusterSection(
        name="by-hand",
        fingerprint="0" * 16,
        gpus=gpus,
        nodes=nodes,
        default_bandwidth_bytes_per_s=12.5e9,
        default_latency_s=1e-5,
        assumptions=[AssumptionSection(what="network 100 Gbit/s", why="the paper does not say")],
    )


def _islands() -> list[IslandSection]:
    return [
        IslandSection(
            name=name,
            nodes=[node],
            gpu=name,
            gpus_per_node=count,
            intra_bandwidth_bytes_per_s=150e9,
            intra_latency_s=3e-6,
            inter_bandwidth_bytes_per_s=12.5e9,
            inter_latency_s=1e-5,
            nic_bandwidth_bytes_per_s=12.5e9,
            reasons=["no other node has this part"],
        )
        for name, (node, count) in ISLANDS.items()
    ]
