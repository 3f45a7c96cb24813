"""The baseline ``megatron``: what an expert would type into Megatron-LM, all GPUs taken to be equal.

A rule of thumb, not a search. The first layout that fits is the answer; layouts come so that the size of
model parallelism grows, tensor parallelism first, inside of a node only, then pipeline stages of whole nodes
(Narayanan et al., SC'21, takeaways 1 and 2; "Tuning Guide of Parallel Mappings" of Megatron-Core's MoE guide,
rules 1 to 3). Where the model's heads allow no tensor parallelism over a whole node, stages may be smaller.
What is left is data parallelism with the distributed optimizer (ZeRO 1). At each layout:

* *recomputation*: none, then selective; only when no layout fits without it are all layers recomputed in full
  (Korthikanti et al., MLSys 2023: selective costs little, full some 30 %);
* *micro-batch per GPU*: the largest of 8, 4, 2, 1 that divides the batch, fits, and leaves four micro-batches
  per stage to fill the pipeline (Huang et al., GPipe: then the bubble is negligible), or else 1;
* *experts*: as many degrees of expert parallelism as the node and the experts allow, none of tensor
  parallelism (rules 2 and 4 of the same guide).

Layers are split evenly; where they do not divide, the first and the last stage get fewer. "Equal" means that
every stage has to fit on a GPU with the least memory of all. All GPUs with the job's precision are used;
where nodes differ in size, they are parts of the largest common one (:mod:`tangram.baselines.nodes`).

Interleaved schedules, context parallelism and offload are left out.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from itertools import pairwise, product
from math import gcd

from tangram.baselines.nodes import NodePart, equal_parts
from tangram.baselines.replica_cost import portion_of
from tangram.cluster.spec import Slot
from tangram.cost.configs import tensor_parallel_degrees
from tangram.cost.stage import stage_cost
from tangram.cost.types import StageConfig
from tangram.job import Recompute, divisors
from tangram.model.spec import ModelSpec
from tangram.parallelizers.protocols import (
    Capabilities,
    ClusterPlan,
    ClusterRequest,
    ClusterStage,
    Replicas,
)

_SAMPLES = (8, 4, 2, 1)
_FILL = 4  # Micro-batches per stage.
_RECOMPUTE = ((Recompute.NONE, Recompute.SELECTIVE), (Recompute.FULL,))


class NodeOrder(StrEnum):
    """Which nodes hold the first layers."""

    FASTEST_FIRST = "fastest-first"
    SLOWEST_FIRST = "slowest-first"


class MegatronPlanner:
    """Plans a whole cluster by rule of thumb.

    Args:
        order: Whether the nodes with the fastest GPUs, by the rate that large matrix products reach in the
            job's precision, hold the first layers or the last ones. Among equal rates nodes with more memory
            come first, then the order of their names counts.
    """

    capabilities = Capabilities(seconds_per_query=0.1)

    def __init__(self, order: NodeOrder = NodeOrder.FASTEST_FIRST) -> None:
        self.name = "megatron" if order is NodeOrder.FASTEST_FIRST else f"megatron-{order}"
        self._order = order

    def plan_cluster(self, request: ClusterRequest) -> ClusterPlan | None:
        """Returns the first layout of the rule that fits; None when none does."""
        parts = _ordered(request, self._order)
        if not parts:
            return None
        slots = tuple(slot for part in parts for slot in part.slots)
        for modes in _RECOMPUTE:
            for (tp, pp), mode in product(_degrees(request, parts), modes):
                for samples in _SAMPLES:
                    layout = _Layout(request, slots, parts[0].part.num_gpus, tp, pp, mode, samples)
                    if layout.is_legal and layout.fits():
                        return layout.plan()
        return None


def slow_nodes_first() -> MegatronPlanner:
    """Returns the rule of thumb with the slow nodes in front."""
    return MegatronPlanner(NodeOrder.SLOWEST_FIRST)


def split_layers(num_layers: int, num_stages: int) -> tuple[int, ...] | None:
    """Splits layers evenly; where they do not divide, the first and the last stage get what is left.

    Returns:
        Layers per stage; None where the ends would get none.
    """
    inner = -(-num_layers // num_stages)
    rest = num_layers - max(num_stages - 2, 0) * inner
    if num_stages == 1:
        return (num_layers,)
    first, last = rest - rest // 2, rest // 2
    return (first, *[inner] * (num_stages - 2), last) if last >= 1 else None


def _ordered(request: ClusterRequest, order: NodeOrder) -> tuple[NodePart, ...]:
    """Returns the nodes in pipeline order, in parts of one size."""
    precision = request.job.precision
    able = tuple(node for node in request.cluster.nodes if node.gpu.supports(precision))
    if not able:
        return ()
    sign = -1 if order is NodeOrder.FASTEST_FIRST else 1

    def place(part: NodePart) -> tuple[float, int, str, int]:
        gpu = part.whole.gpu
        rate = sign * gpu.achieved_flop_per_s[precision]
        return (rate, -gpu.usable_memory_bytes, part.whole.name, part.first_gpu)

    return tuple(sorted(equal_parts(replace(request.cluster, nodes=able)), key=place))


def _degrees(request: ClusterRequest, parts: Sequence[NodePart]) -> Iterator[tuple[int, int]]:
    """Yields tp and pp: the smallest model parallelism first, inside of nodes before across nodes."""
    node_size = parts[0].part.num_gpus
    tensor = tensor_parallel_degrees(request.model, node_size)
    yield from ((tp, 1) for tp in tensor)
    yield from ((tensor[-1], pp) for pp in divisors(len(parts) * node_size // tensor[-1]) if pp > 1)


@dataclass(frozen=True, slots=True)
class _Layout:
    """One layout of the rule.

    Attributes:
        request: What is planned.
        slots: All GPUs, in pipeline order.
        node_size: Of every node.
        tp, pp: Degrees of model parallelism.
        mode: Recomputation of all layers.
        samples: Of a micro-batch on one GPU.
    """

    request: ClusterRequest
    slots: tuple[Slot, ...]
    node_size: int
    tp: int
    pp: int
    mode: Recompute
    samples: int

    @property
    def micro_batch(self) -> int:
        """Global, in samples."""
        return self.samples * self._dp

    @property
    def is_legal(self) -> bool:
        """Whether batch and layers can be split so, and the pipeline is filled."""
        num_micro_batches, rest = divmod(self.request.job.global_batch, self.micro_batch)
        filled = self.pp == 1 or self.samples == 1 or num_micro_batches >= _FILL * self.pp
        return rest == 0 and filled and self._bounds() is not None

    def fits(self) -> bool:
        """Whether every stage fits on the smallest GPU."""
        num_micro_batches = self.request.job.global_batch // self.micro_batch
        for idx, stage in enumerate(self._stages()):
            (replicas,) = stage.replicas
            cost = stage_cost(
                self.request.model,
                self.request.atoms[stage.start : stage.stop],
                portion_of(self.request, self.slots, replicas.slots, len(replicas.slots)),
                replicas.config,
                self.micro_batch,
                num_micro_batches,
                min(self.pp - idx, num_micro_batches),
                stage.recomputed,
                self.request.job,
            )
            if cost.peak_bytes > cost.capacity_bytes:
                return False
        return True

    def plan(self) -> ClusterPlan:
        """Returns the layout as a plan."""
        ep = f", ep {self._config.ep}" if self._config.ep > 1 else ""
        note = f"tp {self.tp}, pp {self.pp}, dp {self._dp}{ep}, {self.samples} per GPU, recompute {self.mode}"
        return ClusterPlan(self.micro_batch, self._stages(), notes=(note,))

    @property
    def _dp(self) -> int:
        return len(self.slots) // (self.tp * self.pp)

    @property
    def _config(self) -> StageConfig:
        return StageConfig(
            dp=self._dp,
            tp=self.tp,
            ep=_expert_degree(self.request.model, gcd(self.node_size, self._dp * self.tp)),
            zero=1 if self._dp > 1 else 0,
            selective=self.mode is Recompute.SELECTIVE,
        )

    def _bounds(self) -> tuple[int, ...] | None:
        """Returns where stages begin and end, in atoms; ends of the model go with the layers beside them."""
        atoms = self.request.atoms
        begins = [
            idx
            for idx, atom in enumerate(atoms)
            if atom.layer_idxs and (not idx or atoms[idx - 1].layer_idxs[:1] != atom.layer_idxs[:1])
        ]
        split = split_layers(len(begins), self.pp)
        if split is None:
            return None
        cuts = [begins[sum(split[:stage])] for stage in range(1, self.pp)]
        return (0, *cuts, len(atoms))

    def _stages(self) -> tuple[ClusterStage, ...]:
        bounds, full = self._bounds() or (), self.mode is Recompute.FULL
        size = len(self.slots) // self.pp
        return tuple(
            ClusterStage(
                start,
                stop,
                (Replicas(self.slots[idx * size : (idx + 1) * size], self._config, self.micro_batch),),
                tuple(full and bool(atom.layer_idxs) for atom in self.request.atoms[start:stop]),
            )
            for idx, (start, stop) in enumerate(pairwise(bounds))
        )


def _expert_degree(model: ModelSpec, gpus: int) -> int:
    """Returns the largest expert parallelism that the experts of all layers and so many GPUs allow."""
    for layer in model.distinct_layers:
        if layer.moe is not None:
            gpus = gcd(gpus, layer.moe.num_experts)
    return gpus if model.has_moe else 1
