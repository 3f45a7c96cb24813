"""The baseline ``metis``: Metis's search on Tangram's clusters, models and jobs.

With its defects off, plans that cannot be executed do not compete: of the plans in the order of Metis's own
cost the first one that covers the model and fits into memory is the answer, as in the harness of Sailor's
authors. What fits is said by the upper estimate that judges all planners. With its defects on, the answer is
the plan that the published program puts first, right or wrong.

Metis knows nodes of one size, one pipeline, dp and tp, and none of ZeRO, recomputation, context and expert
parallelism. Nodes of other sizes are divided (:mod:`tangram.baselines.nodes`); GPUs without the job's
precision are left out. What a user pins in the job means nothing to it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate, groupby, pairwise

from tangram.baselines.fit import FitTest
from tangram.baselines.metis.defects import Defects
from tangram.baselines.metis.made import made_profile, replica_config
from tangram.baselines.metis.question import Kind, Limits, Question
from tangram.baselines.metis.search import Candidate, Found, search
from tangram.baselines.metis.stages import StageForm
from tangram.baselines.nodes import NodePart, equal_parts
from tangram.cluster.spec import Cluster, Slot
from tangram.model.spec import ModelSpec
from tangram.parallelizers.cluster_plans import cluster_plan_faults
from tangram.parallelizers.protocols import (
    Capabilities,
    ClusterPlan,
    ClusterRequest,
    ClusterStage,
    Replicas,
)
from tangram.units import MIB

VARIANCE = 0.5
"""Least size of a group of GPUs, as a share of the average: what the paper and its users set."""

MAX_BLOCKS = 4
"""Blocks of groups that are permuted: the published default."""

MAX_BATCH = 8
"""Largest number of samples per GPU that is profiled."""

MAX_PLANS = 30_000
"""Inter-stage plans looked at, which bounds the time of planning."""


class MetisPlanner:
    """Plans a whole cluster as Metis does.

    Args:
        defects: Whether to plan as the published program does, with what is wrong in it.
        recompute: Whether plans with all layers recomputed in full compete too; Metis knows none.
        variance, max_blocks, max_batch, max_plans: Limits of the search.
    """

    capabilities = Capabilities(seconds_per_query=3.0)

    def __init__(
        self,
        *,
        defects: bool = False,
        recompute: bool = False,
        variance: float = VARIANCE,
        max_blocks: int = MAX_BLOCKS,
        max_batch: int = MAX_BATCH,
        max_plans: int = MAX_PLANS,
    ) -> None:
        self.name = "metis" + "-published" * defects + "-recompute" * recompute
        self._defects = Defects.all() if defects else Defects()
        self._recompute = recompute
        self._limits = (variance, max_blocks, max_batch, max_plans)

    def plan_cluster(self, request: ClusterRequest) -> ClusterPlan | None:
        """Returns the first plan of Metis's ranking that can be executed; with defects on, its first plan."""
        parts = _parts_by_kind(request)
        if not parts:
            return None
        modes = (False, True) if self._recompute else (False,)
        found = [search(self._question(request, parts, recompute=mode)) for mode in modes]
        pairs = [(c, mode) for f, mode in zip(found, modes, strict=True) for c in f.candidates]
        pairs.sort(key=lambda pair: pair[0].cost.total)
        slots = [[slot for part in kind for slot in part.slots] for kind in parts]
        fits = FitTest(request)
        for rank, (candidate, mode) in enumerate(pairs):
            plan = _cluster_plan(request, candidate, slots, recompute=mode)
            if self._competes(request, plan, fits):
                return replace(plan, notes=_notes(found, rank))
        return None

    def _competes(self, request: ClusterRequest, plan: ClusterPlan, fits: FitTest) -> bool:
        """Whether a plan can be executed, or need not be able to."""
        if not self._defects.split_tensor_groups and has_split_tensor_groups(plan):
            return False
        return self._defects.invalid_plans or (not cluster_plan_faults(request, plan) and fits.fits(plan))

    def _question(
        self, request: ClusterRequest, parts: Sequence[Sequence[NodePart]], *, recompute: bool
    ) -> Question:
        variance, max_blocks, max_batch, max_plans = self._limits
        # Of a kind's nodes the one with the slowest links is profiled.
        groups = [min(kind, key=lambda part: part.part.intra_bandwidth_bytes_per_s).slots for kind in parts]
        profile = made_profile(request, groups, max_batch, recompute=recompute)
        tokens = request.job.seq_len
        return Question(
            kinds=tuple(_kind(request.cluster, kind) for kind in parts),
            gpus_per_node=len(groups[0]),
            profile=profile,
            global_batch=request.job.global_batch,
            sample_elements=tokens * request.model.hidden_size,
            sample_logits=tokens * request.model.vocab_size,
            limits=Limits(max(p.tp for p in profile.points), max_batch, variance, max_blocks, max_plans),
            defects=self._defects,
        )


def published_metis() -> MetisPlanner:
    """Returns Metis as its program was published."""
    return MetisPlanner(defects=True)


def metis_with_recompute() -> MetisPlanner:
    """Returns Metis with recomputation to choose, to see how much of its distance comes from memory."""
    return MetisPlanner(recompute=True)


def _parts_by_kind(request: ClusterRequest) -> list[list[NodePart]]:
    """Returns the nodes that can take part, in parts of one size, per kind of GPU.

    Kinds are sorted by name, nodes of a kind by their links, so that their names decide last.
    """
    able = tuple(node for node in request.cluster.nodes if node.gpu.supports(request.job.precision))
    if not able:
        return []
    kinds: dict[tuple[str, int], list[NodePart]] = {}
    for part in equal_parts(replace(request.cluster, nodes=able)):
        gpu = part.part.gpu
        kinds.setdefault((gpu.name, gpu.usable_memory_bytes), []).append(part)

    def links_first(part: NodePart) -> tuple[float, float, int, str, int]:
        node = part.whole
        rates = -node.intra_bandwidth_bytes_per_s, -node.nic_bandwidth_bytes_per_s
        return (*rates, node.num_gpus, node.name, part.first_gpu)

    return [sorted(kinds[key], key=links_first) for key in sorted(kinds)]


def _kind(cluster: Cluster, parts: Sequence[NodePart]) -> Kind:
    """All figures are those of the slowest node and link of the kind."""
    nodes = list({part.whole.name: part.whole for part in parts}.values())
    between = [
        cluster.bandwidth_bytes_per_s(node, other)
        for node in nodes
        for other in cluster.nodes
        if other.host != node.host
    ]
    inter = min(between, default=min(node.nic_bandwidth_bytes_per_s for node in nodes))
    gpu = nodes[0].gpu
    return Kind(
        name=gpu.name,
        num_gpus=sum(part.part.num_gpus for part in parts),
        memory_mb=gpu.usable_memory_bytes / MIB,
        intra_bytes_per_ms=min(node.intra_bandwidth_bytes_per_s for node in nodes) / 1e3,
        inter_bytes_per_ms=inter / 1e3,
    )


def _cluster_plan(
    request: ClusterRequest, candidate: Candidate, slots: Sequence[Sequence[Slot]], *, recompute: bool
) -> ClusterPlan:
    ranks = [slot for kind in candidate.order for slot in slots[kind]]
    spans = pairwise((0, *accumulate(candidate.groups)))
    stages = tuple(
        ClusterStage(
            start,
            stop,
            _replicas(request.model, form, ranks[first:last]),
            tuple(recompute and bool(atom.layer_idxs) for atom in request.atoms[start:stop]),
        )
        for (start, stop), (first, last), form in zip(
            pairwise(candidate.bounds), spans, candidate.forms, strict=True
        )
    )
    micro_batch = request.job.global_batch // candidate.num_micro_batches
    return ClusterPlan(micro_batch, stages, predicted_s=candidate.cost.total / 1e3)


def _replicas(model: ModelSpec, form: StageForm, slots: Sequence[Slot]) -> tuple[Replicas, ...]:
    """Joins replicas on the same kinds of GPUs that take as many samples."""
    tp = form.tp
    if len(form.replicas) == 1:
        config = replica_config(model, form.dp, tp)
        return (Replicas(tuple(slots), config, form.replicas[0].samples * form.dp),)

    def alike(replica: int) -> tuple[object, ...]:
        kinds = tuple(slot.node.gpu for slot in slots[replica * tp : (replica + 1) * tp])
        return (kinds, form.replicas[replica].samples)

    joined = []
    for _, members in groupby(range(form.dp), key=alike):
        some = list(members)
        held = tuple(slots[some[0] * tp : (some[-1] + 1) * tp])
        samples = form.replicas[some[0]].samples * len(some)
        joined.append(Replicas(held, replica_config(model, len(some), tp), samples))
    return tuple(joined)


def has_split_tensor_groups(plan: ClusterPlan) -> bool:
    """Whether a tensor-parallel group lies on several nodes."""
    for stage in plan.stages:
        for replicas in stage.replicas:
            tp, nodes = replicas.config.tp, [slot.node.name for slot in replicas.slots]
            if any(len(set(nodes[at : at + tp])) > 1 for at in range(0, len(nodes), tp)):
                return True
    return False


def _notes(found: Sequence[Found], rank: int) -> tuple[str, ...]:
    place = f"number {rank + 1} of the {sum(len(f.candidates) for f in found)} plans that Metis costed"
    if all(f.is_whole for f in found):
        return (place,)
    looked_at = sum(f.num_inter for f in found)
    return (place, f"searched {looked_at} of its inter-stage plans, those with the fewest stages")
