"""Small valid plans written by hand, and a way to change one field of them."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from tangram.cluster.spec import Cluster, GpuSpec, Island, Link, Node
from tangram.errors import InputError
from tangram.job import Job, Precision, Recompute
from tangram.model.atoms import cut_atoms, parse_granularity
from tangram.model.spec import (
    AttentionSpec,
    FeedForwardSpec,
    LayerSpec,
    ModelSpec,
    MoeSpec,
    NormKind,
    PositionKind,
)
from tangram.plan.schema import (
    BoundSection,
    BoundStep,
    ClusterSection,
    Comparison,
    GpuSlot,
    IdleSection,
    IslandSection,
    JobSection,
    LayerConfig,
    LayerRecompute,
    MeshSection,
    ModelSection,
    PipelineSection,
    PlanDocument,
    Prediction,
    RankSlot,
    ScheduleSection,
    SearchSection,
    StagePrediction,
    StageSection,
    TiedGroup,
)

GIB = 1024**3


def gpu(name: str, family: str, memory_gib: int, tflops: float, *, kernel: str, bf16: bool) -> GpuSpec:
    rates = {Precision.FP32: tflops / 16, Precision.FP16: tflops} | ({Precision.BF16: tflops} if bf16 else {})
    return GpuSpec(
        name=name,
        vendor="NVIDIA",
        family=family,
        architecture="sm80" if bf16 else "sm70",
        memory_bytes=memory_gib * GIB,
        usable_memory_bytes=memory_gib * GIB - GIB // 2,
        memory_bandwidth_bytes_per_s=1.5e12,
        peak_flop_per_s={p: r * 1e12 for p, r in rates.items()},
        achieved_flop_per_s={p: r * 0.8e12 for p, r in rates.items()},
        achieved_basis="estimated",
        link_bytes_per_s=3e11,
        pcie_bytes_per_s=1.6e10,
        attention_kernel=kernel,
        gpus_per_node=8,
        source="made up for tests",
    )


FAST = gpu("FAST-40GB", "ampere", 40, 312.0, kernel="flash", bf16=True)
SLOW = gpu("SLOW-16GB", "volta", 16, 125.0, kernel="unfused", bf16=False)


def node(name: str, part: GpuSpec, num_gpus: int) -> Node:
    return Node(name, part, num_gpus, 3e11, 3e-6, "nvlink", 1.25e10, name, name.split("-")[0])


def island(part: GpuSpec, *nodes: Node) -> Island:
    return Island(
        name=part.name,
        nodes=nodes,
        gpu=part,
        gpus_per_node=nodes[0].num_gpus,
        intra_bandwidth_bytes_per_s=3e11,
        intra_latency_s=3e-6,
        inter_bandwidth_bytes_per_s=1.25e10,
        inter_latency_s=2e-5,
        nic_bandwidth_bytes_per_s=1.25e10,
        reasons=("the other nodes have another GPU",),
    )


NODES = (node("fast-0", FAST, 4), node("slow-0", SLOW, 2))
CLUSTER = Cluster("two kinds", NODES, 1.25e10, 2e-5, links=(Link("fast", "slow", 1.0e9 / 3, 5e-5),))
ISLANDS = (island(FAST, NODES[0]), island(SLOW, NODES[1]))


def model(*, tied: bool = True, experts: bool = False, num_layers: int = 4) -> ModelSpec:
    attention = AttentionSpec(num_heads=4, num_kv_heads=2, head_dim=8)
    dense = LayerSpec(attention, FeedForwardSpec(64, gated=True), NormKind.RMSNORM)
    sparse = LayerSpec(attention, MoeSpec(4, 2, FeedForwardSpec(48, gated=True)), NormKind.RMSNORM)
    return ModelSpec(
        name="tiny-moe" if experts else "tiny",
        family="llama",
        hidden_size=32,
        vocab_size=250,
        layers=tuple(sparse if experts and i % 2 else dense for i in range(num_layers)),
        norm=NormKind.RMSNORM,
        position=PositionKind.ROTARY,
        max_positions=64,
        tied_embeddings=tied,
    )


JOB = Job(global_batch=24, seq_len=16, precision=Precision.FP16)


@dataclass(frozen=True)
class Choice:
    """What differs between the stages of the samples; the rest follows from it."""

    atoms: tuple[int, int]
    island: Island
    slots: tuple[tuple[str, int], ...]
    in_flight: int
    dp: int = 1
    cp: int = 1
    tp: int = 1
    ep: int = 1
    expert_tp: int = 1
    zero: int = 0
    split: tuple[int, ...] | None = None
    modes: tuple[Recompute, ...] | None = None
    forward_s: float = 0.01


def build(
    spec: ModelSpec, job: Job, choices: Sequence[Choice], *, micro_batch: int = 4, granularity: str = "layer"
) -> PlanDocument:
    """Writes the plan that these choices mean."""
    vocab = 256
    atoms = cut_atoms(spec, parse_granularity(granularity))
    stages: list[StageSection] = []
    rank = 0
    for idx, choice in enumerate(choices):
        stages.append(
            _stage(spec, job, atoms, choice, idx, rank, micro_batch, vocab, idx == len(choices) - 1)
        )
        rank += len(choice.slots)
    num_micro_batches = job.global_batch // micro_batch
    time_s = 1.01 * _ranking_formula(stages, num_micro_batches)
    ends = [s for s in stages if s.has_embedding or s.has_head]
    tied = TiedGroup(
        name="embedding",
        stages=[s.index for s in ends],
        ranks=[slot.rank for s in ends for slot in s.ranks],
    )
    return PlanDocument(
        tangram_version="0.1.0",
        model=ModelSection.of(
            spec, padded_vocab_size=vocab, hyperparameters={"rope_theta": 10000.0, "rms_norm_eps": 1e-6}
        ),
        cluster=ClusterSection.of(CLUSTER),
        job=JobSection.of(job, precision_reason="SLOW-16GB has no bf16"),
        granularity=granularity,
        num_atoms=len(atoms),
        islands=[IslandSection.of(item) for item in ISLANDS],
        tolerances={"compute": 0.05, "memory": 0.05, "intra": 0.1, "network": None},
        pipelines=[
            PipelineSection(
                global_batch=job.global_batch,
                micro_batch=micro_batch,
                num_micro_batches=num_micro_batches,
                schedule=ScheduleSection(
                    in_flight=[c.in_flight for c in choices],
                    overlap_p2p=job.overlap_p2p,
                    assumed_overlaps={"p2p": 1.0, "tp": 0.0},
                ),
                stages=stages,
            )
        ],
        tied_weight_groups=[tied] if spec.tied_embeddings and len(ends) > 1 else [],
        prediction=_prediction(job, time_s),
        bound=BoundSection(
            lower_bound_s=time_s / 1.25,
            gap_frac=0.25,
            proven_optimal=True,
            staircase=[
                BoundStep(name="work", time_s=time_s / 1.25, explanation="all GPUs always busy"),
                BoundStep(name="plan", time_s=time_s, explanation="fill and drain"),
            ],
            scope="one pipeline over these islands",
        ),
        idle=_idle({slot for c in choices for slot in c.slots}),
        comparisons=[
            Comparison(name="single-island", iteration_time_s=time_s * 1.5, summary="4x FAST-40GB alone"),
            Comparison(name="even-split", iteration_time_s=None, summary="2 layers each", reason="no memory"),
            Comparison(name="tangram", iteration_time_s=time_s, summary="this plan"),
        ],
        search=SearchSection(
            parallelizers=["exact"],
            pruning="safe",
            micro_batches_considered=[1, 2, 4],
            counts={"pairs": 12, "queries": 7},
        ),
    )


def _stage(
    spec: ModelSpec,
    job: Job,
    atoms: Sequence[Any],
    choice: Choice,
    idx: int,
    first_rank: int,
    micro_batch: int,
    vocab: int,
    last: bool,
) -> StageSection:
    mine = atoms[choice.atoms[0] : choice.atoms[1]]
    layers = sorted({layer for atom in mine for layer in atom.layer_idxs})
    experts = any(spec.layers[layer].moe for layer in layers)
    expert_dp = len(choice.slots) // (choice.ep * choice.expert_tp)
    modes = choice.modes or (Recompute.NONE,) * len(mine)
    ends = mine[0].is_embedding or mine[-1].is_head
    kernel = choice.island.gpu.attention_kernel if job.precision.element_bytes == 2 else "unfused"
    return StageSection(
        index=idx,
        island=choice.island.name,
        atoms=choice.atoms,
        layers=(layers[0], layers[-1] + 1) if layers else (0, 0),
        has_embedding=mine[0].is_embedding,
        has_head=mine[-1].is_head,
        ranks=[
            RankSlot(rank=first_rank + i, node=name, gpu_idx=gpu_idx, gpu=choice.island.gpu.name)
            for i, (name, gpu_idx) in enumerate(choice.slots)
        ],
        mesh=MeshSection(axes=["dp", "cp", "tp"], sizes=[choice.dp, choice.cp, choice.tp]),
        expert_mesh=MeshSection(
            axes=["expert_dp", "ep", "expert_tp"], sizes=[expert_dp, choice.ep, choice.expert_tp]
        )
        if experts
        else None,
        dp=choice.dp,
        tp=choice.tp,
        cp=choice.cp,
        ep=choice.ep,
        expert_tp=choice.expert_tp,
        sequence_parallel=choice.tp > 1,
        micro_batch_per_dp_rank=list(choice.split or (micro_batch // choice.dp,) * choice.dp),
        zero=choice.zero,
        zero_axes=["dp", "cp"] if choice.zero else [],
        expert_zero_axes=["expert_dp"] if choice.zero and experts else [],
        recompute=[
            LayerRecompute(atom=choice.atoms[0] + i, layers=list(atom.layer_idxs), mode=mode)
            for i, (atom, mode) in enumerate(zip(mine, modes, strict=True))
        ],
        offload_optimizer=False,
        attention_kernel=kernel,
        padded_vocab_size=vocab if ends else None,
        predicted=_predicted(choice, job, micro_batch, last),
        reason="made up for tests",
    )


def _predicted(choice: Choice, job: Job, micro_batch: int, last: bool) -> StagePrediction:
    in_flight = min(choice.in_flight, job.global_batch // micro_batch)
    activation_bytes = 2 * GIB // 10
    memory = {
        "weights": GIB,
        "gradients": 2 * GIB,
        "optimizer": 3 * GIB,
        "activations": in_flight * activation_bytes,
        "workspace": GIB // 3,
        "reserve": GIB,
    }
    peak, capacity = sum(memory.values()), choice.island.gpu.usable_memory_bytes
    return StagePrediction(
        forward_s=choice.forward_s,
        backward_s=2 * choice.forward_s,
        step_s=0.003,
        send_forward_s=None if last else 0.001 / 3,
        send_backward_s=None if last else 0.001 / 3,
        boundary_bytes=0 if last else micro_batch * 16 * 32 * 2,
        in_flight=in_flight,
        activation_bytes=activation_bytes,
        memory=memory,
        peak_bytes=peak,
        capacity_bytes=capacity,
        headroom_bytes=capacity - peak,
        components={"matmul": choice.forward_s * 2, "launch": choice.forward_s},
    )


def _prediction(job: Job, time_s: float) -> Prediction:
    return Prediction(
        iteration_time_s=time_s,
        tokens_per_s=job.global_batch * job.seq_len / time_s,
        samples_per_s=job.global_batch / time_s,
        model_flop_per_step=1.5e15 / 7,
        mfu=0.41,
        bubble_frac=0.12,
        bottleneck_stage=0,
        basis="formula",
        basis_note="made up for tests",
    )


def _ranking_formula(stages: Sequence[StageSection], num_micro_batches: int) -> float:
    own = [s.predicted for s in stages]
    through = sum(p.forward_s + p.backward_s + 2 * (p.send_forward_s or 0.0) for p in own)
    pace = max(p.forward_s + p.backward_s for p in own)
    return through + (num_micro_batches - 1) * pace + max(p.step_s for p in own)


def _idle(used: set[tuple[str, int]]) -> list[IdleSection]:
    found = []
    for item in ISLANDS:
        left = [(n.name, g) for n in item.nodes for g in range(n.num_gpus) if (n.name, g) not in used]
        if left:
            slots = [GpuSlot(node=name, gpu_idx=g) for name, g in left]
            reason = "they would set a slower pace"
            found.append(IdleSection(island=item.name, count=len(left), gpus=slots, reason=reason))
    return found


FAST_SLOTS = tuple(("fast-0", g) for g in range(4))


@cache
def dense_plan() -> PlanDocument:
    """Embedding and 3 layers on 4 fast GPUs (dp 2, tp 2), the rest on one slow GPU; another one is idle."""
    return build(
        model(),
        JOB,
        [
            Choice(
                (0, 4),
                ISLANDS[0],
                FAST_SLOTS,
                3,
                dp=2,
                tp=2,
                zero=1,
                split=(3, 1),
                modes=(Recompute.NONE, Recompute.FULL, Recompute.SELECTIVE, Recompute.SELECTIVE),
            ),
            Choice((4, 6), ISLANDS[1], (("slow-0", 1),), 1, forward_s=0.008),
        ],
    )


@cache
def moe_plan() -> PlanDocument:
    """Every other layer has experts; stage 0 has ep 2 with two replicas of each expert, and cp 2."""
    spec = model(tied=False, experts=True)
    return build(
        spec,
        replace(JOB, precision=Precision.FP32),
        [
            Choice((0, 4), ISLANDS[0], FAST_SLOTS, 2, dp=2, cp=2, ep=2, zero=3),
            Choice((4, 6), ISLANDS[1], (("slow-0", 0), ("slow-0", 1)), 1, tp=2, ep=1, expert_tp=2),
        ],
    )


@cache
def operator_plan() -> PlanDocument:
    """The cut goes through layer 1, between attention and feed-forward."""
    spec = model(num_layers=2)
    return build(
        spec,
        JOB,
        [
            Choice((0, 9), ISLANDS[0], FAST_SLOTS, 2, dp=4),
            Choice((9, 12), ISLANDS[1], (("slow-0", 0),), 1),
        ],
        granularity="operator",
    )


@cache
def mixed_plan() -> PlanDocument:
    """A tied model in one stage: ends with tp 2, layers with dp 4 and their weights sharded."""
    doc = build(model(), JOB, [Choice((0, 6), ISLANDS[0], FAST_SLOTS, 1, dp=2, tp=2, zero=1)])
    stage = doc.pipelines[0].stages[0]
    own = {name: getattr(stage, name) for name in LayerConfig.model_fields}
    ends = [LayerConfig(**own | {"atoms": atoms}) for atoms in ((0, 1), (5, 6))]
    inner = ends[0].model_copy(
        update={
            "atoms": (1, 5),
            "mesh": MeshSection(axes=["dp", "cp", "tp"], sizes=[4, 1, 1]),
            "dp": 4,
            "tp": 1,
            "sequence_parallel": False,
            "micro_batch_per_dp_rank": [1] * 4,
            "zero": 3,
        }
    )
    mixed = stage.model_copy(update={"layer_configs": [ends[0], inner, ends[1]]})
    pipeline = doc.pipelines[0].model_copy(update={"stages": [mixed]})
    return doc.model_copy(update={"pipelines": [pipeline]})


_STEP = re.compile(r"(\w[\w-]*)|\[(\d+)\]")


def edited(doc: PlanDocument, changes: Mapping[str, Any]) -> PlanDocument:
    """Returns the document with fields changed; a callable value gets the old one.

    What is derived from the model or the cluster is derived again, unless it is what was changed.
    """
    data = doc.model_dump(mode="json")
    for path, value in changes.items():
        steps = [name or int(idx) for name, idx in _STEP.findall(path)]
        target: Any = data
        for step in steps[:-1]:
            target = target[step]
        target[steps[-1]] = value(target[steps[-1]]) if callable(value) else value
    changed = PlanDocument.model_validate(data)
    return changed.model_copy(update=_derived(changed, changes))


_DERIVED = ("model.fingerprint", "model.num_params", "model.num_active_params", "cluster.fingerprint")


def _derived(doc: PlanDocument, changes: Mapping[str, Any]) -> dict[str, Any]:
    if any(path in changes for path in _DERIVED):
        return {}
    update: dict[str, Any] = {}
    with contextlib.suppress(InputError):
        fresh = ModelSection.of(doc.model.to_spec())
        names = ("fingerprint", "num_params", "num_active_params")
        update["model"] = doc.model.model_copy(update={name: getattr(fresh, name) for name in names})
    with contextlib.suppress(InputError):
        fresh_print = ClusterSection.of(doc.cluster.to_cluster()).fingerprint
        update["cluster"] = doc.cluster.model_copy(update={"fingerprint": fresh_print})
    return update
