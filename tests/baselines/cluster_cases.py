"""Small clusters of several kinds of GPUs, and questions about them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from hypothesis import strategies as st

from tangram.cluster.spec import Cluster, GpuSpec
from tangram.job import Job, Precision
from tangram.model.atoms import cut_atoms
from tangram.model.spec import ModelSpec
from tangram.parallelizers.protocols import ClusterPlan, ClusterRequest
from tangram.testing.cases import llama_like, small_cluster, small_gpu
from tangram.units import GIB

JOB = Job(global_batch=32, seq_len=256, precision=Precision.BF16)


def gpu_of(name: str, speed: float = 1.0, memory_bytes: int = 40 * GIB) -> GpuSpec:
    """An invented part, so many times as fast as the usual one."""
    like = small_gpu(memory_bytes)
    return replace(
        like,
        name=name,
        memory_bandwidth_bytes_per_s=speed * like.memory_bandwidth_bytes_per_s,
        peak_flop_per_s={p: speed * rate for p, rate in like.peak_flop_per_s.items()},
        achieved_flop_per_s={p: speed * rate for p, rate in like.achieved_flop_per_s.items()},
    )


def cluster_of(*nodes: tuple[GpuSpec, int], names: Sequence[str] = ()) -> Cluster:
    """Nodes with so many GPUs of a part each."""
    like = small_cluster().nodes[0]
    made = tuple(
        replace(like, name=name, host=name, gpu=gpu, num_gpus=size)
        for (gpu, size), name in zip(nodes, names or [f"n{i}" for i in range(len(nodes))], strict=True)
    )
    return replace(small_cluster(), nodes=made)


def request_for(cluster: Cluster, model: ModelSpec | None = None, job: Job = JOB) -> ClusterRequest:
    """The question of how to train a tiny model there."""
    spec = model or llama_like()
    return ClusterRequest(spec, cut_atoms(spec), cluster, job)


def shape(plan: ClusterPlan) -> object:
    """A plan without the names of nodes."""
    stages = [
        (s.start, s.stop, s.recomputed, [_replicas_shape(r.slots, r.config, r.samples) for r in s.replicas])
        for s in plan.stages
    ]
    return plan.micro_batch, plan.predicted_s, stages


def _replicas_shape(slots: Sequence[object], *rest: object) -> object:
    return [slot.node.gpu.name for slot in slots], *rest  # type: ignore[attr-defined]


PARTS = (gpu_of("fast", 3.0), gpu_of("mid", 2.0), gpu_of("slow", 1.0, 24 * GIB))
clusters = st.lists(st.tuples(st.sampled_from(PARTS), st.sampled_from([2, 4])), min_size=1, max_size=3).map(
    lambda nodes: cluster_of(*nodes)
)
