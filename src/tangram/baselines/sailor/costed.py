"""What Sailor's profiler would have measured, as Tangram's cost model predicts it: any model, cluster and
job.

A layer is measured on one tensor-parallel group of a node, for micro-batches and degrees that are powers
of two (the published program knows tp 1, 2 and 4 only). Memory: what forward leaves behind, and what a
process holds beside.

* Sailor knows no expert parallelism: experts are plain weights of a layer, split over tp like all others.
* It knows no recomputation either, unless told to: then every transformer layer is measured with forward
  again in backward, and with nothing but its inputs kept.
* Tied embeddings count at both ends.
* A link has the latency and rate of the cluster file, without the error of Sailor's parabola.

Published, a parameter takes 24 bytes in any precision, a process 2 or 3 GB beside its layers, and all of a
card's nominal memory may be filled. Repaired, these are the job's own states, the cost model's reserve and
workspace, and what is usable with the margin that Tangram's own plans keep.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import groupby

from tangram.baselines.sailor.grounds import ClusterNetwork, Grounds
from tangram.baselines.sailor.profile import GpuProfile, LayerSizes, LayerTimes, SailorProblem
from tangram.baselines.sailor.rules import PUBLISHED_FIXED_BYTES, PUBLISHED_TPS, STATE_BYTES_PER_PARAM
from tangram.cluster.spec import Island, Node, Portion
from tangram.cost.atoms import atom_costs
from tangram.cost.configs import tensor_parallel_degrees
from tangram.cost.constants import upper_memory_ratio
from tangram.cost.setting import state_bytes_per_param
from tangram.cost.transfer import boundary_bytes
from tangram.cost.types import AtomCosts, FloatArray, StageConfig, StageConfigs
from tangram.model.atoms import Atom
from tangram.model.spec import ModelSpec
from tangram.parallelizers.protocols import ClusterRequest

Layers = list[tuple[int, int]]
"""Atoms of each of Sailor's layers: ``atoms[start:stop]``."""


def layers_of(atoms: tuple[Atom, ...]) -> Layers:
    """Returns Sailor's layers: atoms that share a transformer layer together, all others by themselves."""
    keys = [atom.layer_idxs[0] if atom.layer_idxs else -1 - idx for idx, atom in enumerate(atoms)]
    layers: Layers = []
    for _, group in groupby(range(len(atoms)), key=lambda idx: keys[idx]):
        members = list(group)
        layers.append((members[0], members[-1] + 1))
    return layers


def costed_problem(
    request: ClusterRequest, grounds: Grounds, *, defects: bool, recompute: bool
) -> SailorProblem:
    """Returns the question with profiles made from the cost model.

    Args:
        request: The question.
        grounds: Its GPUs; at least one can run the job.
        defects: Whether memory is counted as in the published program.
        recompute: Whether transformer layers are measured with full recomputation.
    """
    layers = layers_of(request.atoms)
    profilers = [_Profiler(request, layers, node, defects, recompute) for node in grounds.types]
    gradient_bytes, _ = state_bytes_per_param(request.job)
    whole = profilers[0].sizes(1).params
    return SailorProblem(
        gpus=tuple(profiler.profile() for profiler in profilers),
        network=ClusterNetwork(grounds, request.job.basis),
        gradient_bytes=tuple(gradient_bytes * params for params in whole),
        output_bytes=tuple(
            boundary_bytes(request.model, request.atoms[stop - 1], 1, request.job) for _, stop in layers
        ),
        zones=grounds.zones(),
        global_batch=request.job.global_batch,
    )


@dataclass(frozen=True, slots=True)
class _Profiler:
    """Measures one type of GPU."""

    request: ClusterRequest
    layers: Layers
    node: Node
    defects: bool
    recompute: bool

    def profile(self) -> GpuProfile:
        """Returns all that is measured: every micro-batch until one layer alone no longer fits."""
        job, gpu = self.request.job, self.node.gpu
        states = sum((*state_bytes_per_param(job), job.precision.element_bytes))
        sizes = {tp: self.sizes(tp) for tp in self.tps()}
        profile = GpuProfile(
            name=gpu.name,
            capacity_bytes=float(gpu.memory_bytes if self.defects else gpu.usable_memory_bytes),
            state_bytes_per_param=STATE_BYTES_PER_PARAM if self.defects else states,
            times={},
            sizes=sizes,
        )
        times: dict[tuple[int, int], LayerTimes] = {}
        micro_batch = 1
        while micro_batch <= job.global_batch and self._fits(profile, micro_batch):
            for tp in sizes:
                times[micro_batch, tp] = self._times(tp, micro_batch)
            micro_batch *= 2
        return replace(profile, times=times)

    def tps(self) -> list[int]:
        """Powers of two that divide the node and suit the model's layers."""
        degrees = tensor_parallel_degrees(self.request.model, self.node.num_gpus)
        powers = [tp for tp in degrees if tp & (tp - 1) == 0 and _suits_experts(self.request.model, tp)]
        return [tp for tp in powers if not self.defects or tp in PUBLISHED_TPS]

    def sizes(self, tp: int) -> LayerSizes:
        """Returns what one rank holds; activations and transients are straight lines in the micro-batch.

        What it holds beside its layers is measured with another replica, which takes buffers for gradients.
        """
        one = self._costs(tp, 1)
        element_bytes = self.request.job.precision.element_bytes
        kept = one.recomputed_stored_bytes if self.recompute else one.stored_bytes
        ends = [not atom.layer_idxs for atom in self.request.atoms]
        activation = []
        for idx, is_end in enumerate(ends):
            # What the loss leaves behind in forward is the head's; it is a transient to the cost model.
            own = one.stored_bytes[idx, 0] + one.workspace_bytes[idx, 0] if is_end else kept[idx, 0]
            activation.append(float(own))
        beside = [self._beside_bytes(self._costs(tp, samples, replicas=2)) for samples in (1, 2)]
        per_sample = beside[1] - beside[0]
        # The margin of all plans here, on all but model states.
        ratio = 1.0 if self.defects else upper_memory_ratio(self.request.job.basis)
        return LayerSizes(
            params=self._summed(one.weight_bytes[:, 0] / element_bytes),
            activation_bytes=self._summed([ratio * size for size in activation]),
            fixed_bytes=PUBLISHED_FIXED_BYTES[tp] if self.defects else ratio * (beside[0] - per_sample),
            sample_bytes=0.0 if self.defects else ratio * per_sample,
        )

    def _beside_bytes(self, costs: AtomCosts) -> float:
        """Reserve, and the largest transient of any transformer layer."""
        transient = costs.recompute_workspace_bytes if self.recompute else costs.workspace_bytes
        busy = [transient[idx, 0] for idx, atom in enumerate(self.request.atoms) if atom.layer_idxs]
        return float(costs.reserve_bytes[0] + max(busy, default=0.0))

    def _times(self, tp: int, micro_batch: int) -> LayerTimes:
        costs = self._costs(tp, micro_batch)
        backward_s = costs.backward_s[:, 0].copy()
        if self.recompute:
            inner = [bool(atom.layer_idxs) for atom in self.request.atoms]
            backward_s += inner * costs.recompute_s[:, 0]
        return LayerTimes(
            self._summed(costs.forward_s[:, 0]), self._summed(backward_s), self._summed(costs.step_s[:, 0])
        )

    def _costs(self, tp: int, micro_batch: int, replicas: int = 1) -> AtomCosts:
        request = self.request
        expert_tp = tp if request.model.has_moe else 1
        configs = StageConfigs.of([StageConfig(dp=replicas, tp=tp, expert_tp=expert_tp)])
        portion = Portion(_island(self.node), replicas, tp)
        samples = micro_batch * replicas
        return atom_costs(request.model, request.atoms, portion, configs, samples, request.job)

    def _summed(self, values: Iterable[float] | FloatArray) -> tuple[float, ...]:
        """Atoms to layers."""
        listed = [float(value) for value in values]
        return tuple(sum(listed[start:stop]) for start, stop in self.layers)

    def _fits(self, profile: GpuProfile, micro_batch: int) -> bool:
        """Whether every layer alone fits some tp; a type that holds no stage with one of them is of no
        use.
        """
        return all(
            any(
                profile.memory_bytes(tp, idx, idx + 1, micro_batch, 1) <= profile.capacity_bytes
                for tp in profile.sizes
            )
            for idx in range(len(self.layers))
        )


def _suits_experts(model: ModelSpec, tp: int) -> bool:
    mixtures = [layer.moe for layer in model.distinct_layers if layer.moe is not None]
    return all(moe.expert.intermediate_size % tp == 0 for moe in mixtures)


def _island(node: Node) -> Island:
    """One node as an island, for the cost model."""
    return Island(
        name=node.gpu.name,
        nodes=(node,),
        gpu=node.gpu,
        gpus_per_node=node.num_gpus,
        intra_bandwidth_bytes_per_s=node.intra_bandwidth_bytes_per_s,
        intra_latency_s=node.intra_latency_s,
        inter_bandwidth_bytes_per_s=node.nic_bandwidth_bytes_per_s,
        inter_latency_s=node.intra_latency_s,
        nic_bandwidth_bytes_per_s=node.nic_bandwidth_bytes_per_s,
    )
