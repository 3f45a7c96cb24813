"""What a stage costs whose replicas may be on several kinds of GPUs: the slowest replica sets its pace.

Replicas of one kind are costed by :func:`tangram.cost.stage.stage_cost`, as a stage of Tangram's own is.
Where a stage has several kinds, each kind is asked twice: by itself for forward and backward, and as if all
replicas were of its kind, on the links of all of them, for what the replicas do together (gradients, shards
of ZeRO) and for memory. The stage takes the slowest answer of either.

Simplifications: GPUs that lie on their nodes in unequal numbers are costed as if the greatest common divisor
of these numbers were on each, with its part of the NICs; and several kinds of replicas with ZeRO 2 or 3,
whose micro-batches wait for each other's weights, are costed as waiting for links only.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import reduce
from itertools import combinations
from math import gcd

from tangram.cluster.spec import Cluster, GpuSpec, Island, Node, Portion, Slot
from tangram.cost.stage import stage_cost
from tangram.cost.types import StageCost
from tangram.job import Precision
from tangram.parallelizers.protocols import ClusterRequest, ClusterStage, Replicas

_SHARED_WEIGHTS = 2
"""From this stage of ZeRO on, micro-batches wait for other replicas."""


@dataclass(frozen=True, slots=True)
class ReplicaCost:
    """What one kind of replicas of a stage costs.

    Attributes:
        replicas: The replicas.
        time: Forward and backward are its own.
        together: The step end, and memory.
    """

    replicas: Replicas
    time: StageCost
    together: StageCost

    @property
    def overflow_bytes(self) -> float:
        """By how much the upper estimate of the peak exceeds the GPU; not above 0 where it fits."""
        return self.together.peak_bytes - self.together.capacity_bytes


@dataclass(frozen=True, slots=True)
class MixedStageCost:
    """What a stage costs; its slowest replicas decide.

    Attributes:
        kinds: One entry per kind of replicas.
    """

    kinds: tuple[ReplicaCost, ...]

    @property
    def forward_s(self) -> float:
        """Of one micro-batch."""
        return max(kind.time.forward_s for kind in self.kinds)

    @property
    def backward_s(self) -> float:
        """Of one micro-batch, with recomputation."""
        return max(kind.time.backward_s for kind in self.kinds)

    @property
    def step_s(self) -> float:
        """Gradient synchronisation and optimizer."""
        return max(kind.together.step_s for kind in self.kinds)


def mixed_stage_cost(
    request: ClusterRequest, stage: ClusterStage, num_micro_batches: int, in_flight: int
) -> MixedStageCost:
    """Costs a stage of a cluster plan without structural faults.

    Args:
        request: The question.
        stage: Of the answer.
        num_micro_batches: Per step.
        in_flight: Micro-batches in flight at this stage.
    """

    def cost(portion: Portion, replicas: Replicas) -> StageCost:
        return stage_cost(
            request.model,
            request.atoms[stage.start : stage.stop],
            portion,
            replicas.config,
            replicas.samples,
            num_micro_batches,
            in_flight,
            stage.recomputed,
            request.job,
            atom_configs=replicas.atom_configs,
        )

    kinds = []
    for replicas in stage.replicas:
        own = cost(portion_of(request, replicas.slots), replicas)
        together = own
        if len(stage.replicas) > 1:
            everybody = _as_if_all(stage, replicas)
            together = cost(_joint_portion(request, stage, everybody), everybody)
            if replicas.config.zero >= _SHARED_WEIGHTS:
                own = together
        kinds.append(ReplicaCost(replicas, own, together))
    return MixedStageCost(tuple(kinds))


def portion_of(
    request: ClusterRequest, slots: Sequence[Slot], everywhere: Sequence[Slot] = (), num_gpus: int = 0
) -> Portion:
    """Returns GPUs of one cluster as a portion of an island made for them.

    Args:
        request: Their cluster, and the precision that says which of them is the slowest.
        slots: At least one; the slowest and the smallest of them count for all.
        everywhere: Where the portion's GPUs are; by default there too.
        num_gpus: How many it has; by default as many as there are.
    """
    places = everywhere or slots
    counts = Counter(slot.node.name for slot in places)
    total = num_gpus or len(places)
    per_node = gcd(total, reduce(gcd, counts.values()))
    nodes = list({slot.node.name: slot.node for slot in places}.values())
    gpu = slowest_gpu([slot.node.gpu for slot in slots], request.job.precision)
    return Portion(_island(request.cluster, gpu, nodes, counts, per_node), total // per_node, per_node)


def slowest_gpu(gpus: Sequence[GpuSpec], precision: Precision) -> GpuSpec:
    """Returns the part that a plan for all of these GPUs may count on: the slowest, with the least memory."""
    slowest = min(gpus, key=lambda gpu: (gpu.achieved_flop_per_s.get(precision, 0.0), gpu.name))
    return replace(slowest, usable_memory_bytes=min(gpu.usable_memory_bytes for gpu in gpus))


def _island(
    cluster: Cluster, gpu: GpuSpec, nodes: Sequence[Node], counts: Counter[str], per_node: int
) -> Island:
    """All figures are those of the worst node and link; NICs are divided where a node counts as several."""
    pairs = [(a, b) for a, b in combinations(nodes, 2)]
    nic = min(node.nic_bandwidth_bytes_per_s * per_node / counts[node.name] for node in nodes)
    return Island(
        name=gpu.name,
        nodes=tuple(sorted(nodes, key=lambda node: node.name)),
        gpu=gpu,
        gpus_per_node=max(node.num_gpus for node in nodes),
        intra_bandwidth_bytes_per_s=min(node.intra_bandwidth_bytes_per_s for node in nodes),
        intra_latency_s=max(node.intra_latency_s for node in nodes),
        inter_bandwidth_bytes_per_s=min((cluster.bandwidth_bytes_per_s(a, b) for a, b in pairs), default=nic),
        inter_latency_s=max((cluster.latency_s(a, b) for a, b in pairs), default=cluster.default_latency_s),
        nic_bandwidth_bytes_per_s=nic,
    )


def _as_if_all(stage: ClusterStage, replicas: Replicas) -> Replicas:
    """All replicas of a stage, as if they were of one kind."""
    num_replicas = sum(kind.config.dp for kind in stage.replicas)
    config = replace(replicas.config, dp=num_replicas)
    return Replicas(replicas.slots, config, replicas.samples // replicas.config.dp * num_replicas)


def _joint_portion(request: ClusterRequest, stage: ClusterStage, everybody: Replicas) -> Portion:
    """The links of all replicas, with the GPUs of one kind."""
    everywhere = [slot for kind in stage.replicas for slot in kind.slots]
    return portion_of(request, everybody.slots, everywhere, everybody.config.num_gpus)
