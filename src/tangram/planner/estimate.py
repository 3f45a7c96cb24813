"""Predicts a pipeline that the user dictates, homogeneous or mixed, through the same cost model and
simulator as a plan.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tangram.cluster.islands import build_islands
from tangram.cluster.spec import Assumption, Cluster, Island, Portion, Slot
from tangram.cluster.tolerances import Tolerances
from tangram.cost.configs import legal_configs
from tangram.cost.stage import stage_cost
from tangram.cost.types import StageConfig
from tangram.errors import InputError, UnknownNameError
from tangram.job import Job, Recompute
from tangram.model.atoms import Atom, cut_atoms
from tangram.model.spec import ModelSpec
from tangram.parallelizers.protocols import StageChoice
from tangram.plan.schema import BoundSection, IdleSection, PlanDocument, SearchSection
from tangram.planner.document import place_pipeline, plan_document, stated_tolerances
from tangram.planner.edges import boundaries, tied_bytes
from tangram.planner.idle import free_slots, used_slots
from tangram.planner.measured import transfer_notes, unmeasured_notes, with_measured
from tangram.planner.placement import Placement, place
from tangram.planner.reference import reference
from tangram.planner.traffic import EdgeBook, Traffic
from tangram.profiles.measured import MeasuredLayers
from tangram.simulate.engine import executed_ns
from tangram.simulate.pipeline import SimPipeline, SimStage
from tangram.units import NS_PER_S, count_of


@dataclass(frozen=True, slots=True)
class DictatedStage:
    """One stage as the user dictates it.

    Attributes:
        nodes: Names of the nodes it takes, or None to take any of the island.
        island: Name of the island, or None when nodes are named.
        num_gpus: GPUs, spread evenly over the nodes.
        num_layers: Transformer layers; embedding and head go with the first and the last stage.
        dp, tp, cp, ep: Degrees; ``dp * tp * cp`` is the number of GPUs.
        zero: ZeRO stage.
        recompute: Of its layers.
        num_recomputed_layers: With full recomputation, how many layers; None for all.
    """

    nodes: tuple[str, ...] | None
    island: str | None
    num_gpus: int
    num_layers: int
    dp: int = 1
    tp: int = 1
    cp: int = 1
    ep: int = 1
    zero: int = 0
    recompute: Recompute = Recompute.NONE
    num_recomputed_layers: int | None = None


@dataclass(frozen=True, slots=True)
class _Trial:
    """One micro-batch size, simulated: whether it fits comes before how long it takes."""

    micro_batch: int
    placements: tuple[Placement, ...]
    pipeline: SimPipeline
    overflow_bytes: float
    iteration_ns: int


def estimate(
    model: ModelSpec,
    cluster: Cluster,
    job: Job,
    stages: Sequence[DictatedStage],
    *,
    precision_reason: str = "",
    assumptions: Sequence[Assumption] = (),
    tolerances: Tolerances = Tolerances(),
    measured: MeasuredLayers | None = None,
) -> PlanDocument:
    """Predicts a dictated pipeline.

    The micro-batch is the pinned one, else the size that fits and is fastest. A pipeline that does not fit
    is predicted all the same; its stages then have negative headroom.

    Raises:
        InputError: Layers do not add up, GPUs are not there, or degrees are not legal.
    """
    atoms = cut_atoms(model)
    islands = build_islands(cluster, job.precision, tolerances)
    job = with_measured(job, measured, model, atoms, islands)
    _check_layers(model, stages)
    portions, named = _placed(stages, islands)
    choices = _choices(model, job, atoms, stages, portions)
    trials = [_trial(model, cluster, job, atoms, choices, named, size) for size in _sizes(job, stages)]
    best = min(trials, key=lambda t: (t.overflow_bytes > 0, t.overflow_bytes, t.iteration_ns, t.micro_batch))
    placements = best.placements
    placed = place_pipeline(model, atoms, job, best.micro_batch, choices, placements, best.pipeline)
    notes = [*unmeasured_notes(measured, job, islands), *transfer_notes(job)]
    usable = [i for i in islands if i.gpu.supports(job.precision)]
    period_s = reference(model, atoms, usable, best.micro_batch, job).least_period_s()
    ideal = min(period_s * best.pipeline.num_micro_batches, best.iteration_ns / NS_PER_S)
    return plan_document(
        placed,
        cluster=cluster,
        islands=islands,
        granularity="layer",
        tolerances=stated_tolerances(tolerances),
        precision_reason=precision_reason,
        assumptions=[*cluster.assumptions, *assumptions, *notes],
        bound=BoundSection(
            lower_bound_s=ideal,
            gap_frac=best.iteration_ns / NS_PER_S / ideal - 1,
            proven_optimal=False,
            scope="every usable GPU busy all the time at this micro-batch; nothing was searched for",
        ),
        idle=_idle(islands, placements),
        comparisons=[],
        search=SearchSection(
            parallelizers=["dictated"],
            pruning="none",
            micro_batches_considered=sorted(t.micro_batch for t in trials),
            counts={},
        ),
    )


def _check_layers(model: ModelSpec, stages: Sequence[DictatedStage]) -> None:
    if not stages:
        raise InputError("no stage is given", where="--stages")
    for idx, stage in enumerate(stages):
        if stage.num_layers < 0 or (stage.num_layers == 0 and 0 < idx < len(stages) - 1):
            raise InputError(
                f"stage {idx} has {stage.num_layers} layers",
                where="--stages",
                hint="at least 1; only the first and the last stage may have none",
            )
    total = sum(stage.num_layers for stage in stages)
    if total != model.num_layers:
        raise InputError(
            f"the stages hold {total} layers, {model.name} has {model.num_layers}",
            where="--stages",
            hint=f"layers must sum to {model.num_layers}",
        )


def _placed(
    stages: Sequence[DictatedStage], islands: Sequence[Island]
) -> tuple[list[Portion], tuple[Placement, ...] | None]:
    by_name = {island.name: island for island in islands}
    _check_places(stages, by_name)
    home = {node.name: island for island in islands for node in island.nodes}
    portions: list[Portion] = []
    for idx, stage in enumerate(stages):
        named = {home[name].name for name in stage.nodes} if stage.nodes else {stage.island or ""}
        if len(named) != 1:
            raise InputError(
                f"stage {idx} takes nodes of {len(named)} islands",
                where="--stages",
                hint="a stage stays within one",
            )
        island = by_name[named.pop()]
        portions.append(_portion(stage, island, idx))
    if all(stage.nodes is None for stage in stages):
        _check_room(portions)
        return portions, None
    return portions, _place_named(stages, portions)


def _check_places(stages: Sequence[DictatedStage], islands: Mapping[str, Island]) -> None:
    nodes = [node.name for island in islands.values() for node in island.nodes]
    for idx, stage in enumerate(stages):
        where = f"--stages, stage {idx}"
        for name in stage.nodes or ():
            if name not in nodes:
                raise UnknownNameError("node", name, nodes, where=where)
        if not stage.nodes and stage.island not in islands:
            raise UnknownNameError("island", stage.island or "", islands, where=where)
        if stage.num_gpus < 1:
            raise InputError(f"{stage.num_gpus} GPUs", where=where, hint="at least 1")


def _portion(stage: DictatedStage, island: Island, idx: int) -> Portion:
    size = island.gpus_per_node
    num_nodes = len(stage.nodes) if stage.nodes else max(1, -(-stage.num_gpus // size))
    if num_nodes > island.num_nodes or stage.num_gpus % num_nodes or stage.num_gpus > num_nodes * size:
        raise InputError(
            f"stage {idx} cannot take {stage.num_gpus} GPUs of {island.name}",
            where="--stages",
            hint=f"legal: up to {count_of(island.num_nodes, 'node')} of {size} GPUs, equally many on each",
        )
    per_node = stage.num_gpus // num_nodes
    if per_node < size and (num_nodes > 1 or size % per_node):
        raise InputError(
            f"stage {idx} takes {per_node} of {size} GPUs of {num_nodes} nodes",
            where="--stages",
            hint="legal: a divisor of one node's GPUs, or whole nodes",
        )
    return Portion(island, num_nodes, per_node)


def _check_room(portions: Sequence[Portion]) -> None:
    for island in {p.island.name: p.island for p in portions}.values():
        wanted = sum(p.num_gpus for p in portions if p.island.name == island.name)
        if wanted > island.num_gpus:
            raise InputError(
                f"the stages take {wanted} GPUs of {island.name}, which has {island.num_gpus}",
                where="--stages",
            )


def _place_named(stages: Sequence[DictatedStage], portions: Sequence[Portion]) -> tuple[Placement, ...]:
    free = {n.name: list(n.gpu_order) for p in portions for n in p.island.nodes}
    placements: dict[int, Placement] = {}
    # Stages that name their nodes choose first.
    for idx in sorted(range(len(stages)), key=lambda i: (stages[i].nodes is None, i)):
        stage, portion = stages[idx], portions[idx]
        by_name = {n.name: n for n in portion.island.nodes}
        names = stage.nodes or tuple(n for n in by_name if len(free[n]) >= portion.gpus_per_node)
        slots: list[Slot] = []
        for name in names[: portion.num_nodes]:
            if len(free[name]) < portion.gpus_per_node:
                raise InputError(
                    f"stage {idx} takes {portion.gpus_per_node} GPUs of {name}, {len(free[name])} are left",
                    where="--stages",
                )
            slots += [Slot(by_name[name], free[name].pop(0)) for _ in range(portion.gpus_per_node)]
        if len(slots) < portion.num_gpus:
            raise InputError(f"{portion.island.name} has no room for stage {idx}", where="--stages")
        placements[idx] = Placement(portion, tuple(slots))
    return tuple(placements[idx] for idx in range(len(stages)))


def _choices(
    model: ModelSpec,
    job: Job,
    atoms: tuple[Atom, ...],
    stages: Sequence[DictatedStage],
    portions: Sequence[Portion],
) -> tuple[StageChoice, ...]:
    choices, start = [], 0
    for idx, (stage, portion) in enumerate(zip(stages, portions, strict=True)):
        stop = start + stage.num_layers + (idx == 0) + (idx == len(stages) - 1)
        config = StageConfig(
            dp=stage.dp,
            tp=stage.tp,
            cp=stage.cp,
            ep=stage.ep,
            zero=stage.zero,
            selective=stage.recompute is Recompute.SELECTIVE,
        )
        _check_degrees(model, job, portion, config, idx)
        choices.append(StageChoice(start, stop, portion, config, _recomputed(stage, atoms[start:stop])))
        start = stop
    return tuple(choices)


def _recomputed(stage: DictatedStage, atoms: Sequence[Atom]) -> tuple[bool, ...]:
    if stage.recompute is not Recompute.FULL:
        return (False,) * len(atoms)
    left = stage.num_layers if stage.num_recomputed_layers is None else stage.num_recomputed_layers
    flags = []
    for atom in atoms:
        again = bool(atom.layer_idxs) and left > 0
        left -= again
        flags.append(again)
    return tuple(flags)


def _check_degrees(model: ModelSpec, job: Job, portion: Portion, config: StageConfig, idx: int) -> None:
    """Asks the search space itself what is legal, ZeRO and recomputation aside."""
    where = f"--stages, stage {idx}"
    if config.num_gpus != portion.num_gpus:
        raise InputError(
            f"dp {config.dp} x cp {config.cp} x tp {config.tp} is {config.num_gpus}, "
            f"the stage has {portion.num_gpus} GPUs",
            where=where,
        )
    if not 0 <= config.zero <= 3:
        raise InputError(f"zero {config.zero}", where=where, hint="legal: 0 to 3")
    if job.seq_len % (config.cp * config.tp):
        raise InputError(
            f"cp {config.cp} x tp {config.tp} does not divide the sequence of {job.seq_len} tokens",
            where=where,
        )
    legal = legal_configs(model, portion, portion.num_gpus, job)
    tps = sorted({c.tp for c in legal})
    if config.tp not in tps:
        raise InputError(
            f"tp {config.tp} is not legal here", where=where, hint="legal: " + ", ".join(map(str, tps))
        )
    eps = sorted({c.ep for c in legal if c.tp == config.tp})
    if config.ep not in eps and config.ep != 1:
        raise InputError(
            f"ep {config.ep} is not legal here", where=where, hint="legal: " + ", ".join(map(str, eps))
        )


def _sizes(job: Job, stages: Sequence[DictatedStage]) -> list[int]:
    """Micro-batch sizes that every dp divides.

    Raises:
        InputError: There is none.
    """
    sizes = [s for s in job.micro_batches() if all(s % stage.dp == 0 for stage in stages)]
    if not sizes:
        degrees = ", ".join(map(str, sorted({stage.dp for stage in stages})))
        raise InputError(
            f"no micro-batch divides by every dp ({degrees})",
            where="--micro-batch" if job.pins.micro_batch else "--global-batch",
            hint="the micro-batch is a divisor of the global batch, and a multiple of every dp",
        )
    return sizes


def _trial(
    model: ModelSpec,
    cluster: Cluster,
    job: Job,
    atoms: tuple[Atom, ...],
    choices: Sequence[StageChoice],
    named: tuple[Placement, ...] | None,
    micro_batch: int,
) -> _Trial:
    """Predicts one micro-batch size; stages that name no nodes are placed as the planner would."""
    m = job.global_batch // micro_batch
    cuts = boundaries(model, atoms, micro_batch, job)
    overflow, sim = 0.0, []
    for idx, choice in enumerate(choices):
        window = len(choices) - idx
        cost = stage_cost(
            model,
            atoms[choice.start : choice.stop],
            choice.portion,
            choice.config,
            micro_batch,
            m,
            window,
            choice.recomputed,
            job,
        )
        overflow = max(overflow, cost.peak_bytes - cost.capacity_bytes)
        sim.append(SimStage.of(cost, window))
    book = EdgeBook(cluster, job.basis)
    traffic = Traffic(
        book,
        tuple(choice.portion for choice in choices),
        tuple(cuts.bytes_at[choice.stop] for choice in choices[:-1]),
        tied_bytes(model, job),
        m,
        max(stage.forward_ns + stage.backward_ns for stage in sim),
    )
    placements = named or place(traffic.portions, traffic.best_homes())
    pipeline = book.pipeline(
        placements, traffic.bytes_behind, traffic.tied_bytes, sim, m, blocking_p2p=not job.overlap_p2p
    )
    return _Trial(micro_batch, placements, pipeline, overflow, executed_ns(pipeline))


def _idle(islands: Sequence[Island], placements: Sequence[Placement]) -> list[IdleSection]:
    used = used_slots(placements)
    free = {island.name: free_slots(island, used) for island in islands}
    return [
        IdleSection(island=name, count=len(slots), gpus=slots, reason="not in the dictated pipeline")
        for name, slots in free.items()
        if slots
    ]
