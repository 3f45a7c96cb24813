"""Takes a plan document at its word, or not: simulates its own numbers, and costs its stages again."""

from __future__ import annotations

import math
from collections.abc import Iterable

from tangram.basis import SHIPPED_BASIS, Override
from tangram.cluster.islands import build_islands
from tangram.cluster.spec import Cluster, Island, Portion, Slot
from tangram.cluster.tolerances import Tolerances
from tangram.cost.constants import check_override
from tangram.cost.types import MARGIN, StageConfig, StageCost
from tangram.errors import InputError
from tangram.job import Recompute
from tangram.model.atoms import Atom, cut_atoms, parse_granularity
from tangram.parallelizers.protocols import StageChoice
from tangram.plan.schema import IslandSection, LayerConfig, PlanDocument, StageSection
from tangram.plan.violation import Violation
from tangram.planner.document import place_pipeline, prediction
from tangram.planner.edges import placed_edge, tied_bytes
from tangram.planner.placement import Placement
from tangram.planner.stages import PlacedPipeline
from tangram.planner.traffic import EdgeBook
from tangram.simulate.engine import simulate
from tangram.simulate.pipeline import SimEdge, SimPipeline, SimStage
from tangram.simulate.timeline import Timeline
from tangram.units import NS_PER_S, format_bytes

RELATIVE_TOLERANCE = 1e-6
"""Documents round to nine digits; anything beyond this is a different number."""


def simulate_plan(doc: PlanDocument) -> Timeline:
    """Simulates a plan with the stage times that it states; NICs are shared as its placement has it.

    Args:
        doc: A plan that passes :func:`tangram.plan.check.check_plan`.
    """
    return simulate(_stated_pipeline(doc))


def recost_plan(doc: PlanDocument) -> PlacedPipeline:
    """Returns the plan's pipeline with every stage and edge costed again by :mod:`tangram.cost`.

    Args:
        doc: A plan that passes :func:`tangram.plan.check.check_plan`.

    Raises:
        InputError: A constant of the plan's basis is unknown or out of range.
    """
    model, cluster, job = doc.model.to_spec(), doc.cluster.to_cluster(), doc.job.to_job()
    atoms = cut_atoms(model, parse_granularity(doc.granularity))
    pipeline = doc.pipelines[0]
    islands = {island.name: island for island in _islands(doc, cluster)}
    choices = tuple(_choice(stage, islands[stage.island], atoms) for stage in pipeline.stages)
    placements = tuple(
        _placement(stage, choice, cluster) for stage, choice in zip(pipeline.stages, choices, strict=True)
    )
    stated = _stated_pipeline(doc)
    placed = place_pipeline(model, atoms, job, pipeline.micro_batch, choices, placements, stated)
    costs = [placed.cost(idx) for idx in range(len(choices))]
    stages = [
        SimStage.of(cost, window) for cost, window in zip(costs, pipeline.schedule.in_flight, strict=True)
    ]
    again = EdgeBook(cluster, job.basis).pipeline(
        placements,
        placed.boundary_bytes[:-1],
        tied_bytes(model, job),
        stages,
        stated.num_micro_batches,
        blocking_p2p=stated.blocking_p2p,
    )
    return place_pipeline(model, atoms, job, pipeline.micro_batch, choices, placements, again)


def cost_violations(doc: PlanDocument) -> list[Violation]:
    """Returns where a plan's predictions differ from what the cost model and the simulator say today.

    Args:
        doc: A plan that passes :func:`tangram.plan.check.check_plan`. A plan that rests on measurements which
            it does not hold is not compared.
    """
    basis = doc.job.to_job().basis
    broken = _broken_constants(basis.overrides)
    if broken or (doc.prediction.basis != "formula" and not basis.measured):
        return broken
    rebuilt = {i.name: IslandSection.of(i) for i in _islands(doc, doc.cluster.to_cluster())}
    found = [
        Violation(
            "island-differs", f"islands[{idx}]", f"{stated.name} is not what these nodes and tolerances give"
        )
        for idx, stated in enumerate(doc.islands)
        if not _same_island(stated, rebuilt.get(stated.name))
    ]
    if found:
        return found
    placed = recost_plan(doc)
    for idx, stage in enumerate(doc.pipelines[0].stages):
        where = f"pipelines[0].stages[{idx}].predicted"
        sim, cost = placed.pipeline.stages[idx], placed.cost(idx)
        pairs = {
            "forward_s": (stage.predicted.forward_s, sim.forward_ns / NS_PER_S),
            "backward_s": (stage.predicted.backward_s, sim.backward_ns / NS_PER_S),
            "step_s": (stage.predicted.step_s, sim.step_ns / NS_PER_S),
            **_memory_pairs(stage, cost),
        }
        if idx < len(placed.pipeline.edges):
            edge = placed.pipeline.edges[idx]
            pairs["send_forward_s"] = (stage.predicted.send_forward_s or 0.0, edge.forward_ns / NS_PER_S)
        found += _differences(pairs, where, "stage-cost-differs")
        found += _without_margin(stage, cost, where)
    again = prediction(placed, simulate(placed.pipeline))
    pairs = {"iteration_time_s": (doc.prediction.iteration_time_s, again.iteration_time_s)}
    return found + _differences(pairs, "prediction", "iteration-time-differs")


def _broken_constants(overrides: Iterable[Override]) -> list[Violation]:
    """Constants of the plan's basis with which nothing can be costed."""
    found = []
    for override in overrides:
        place = f"{override.shelf}.{override.owner}.{override.constant}"
        try:
            check_override(override, place)
        except InputError as error:
            found.append(Violation("basis-invalid", f"job.basis ({place})", f"{error.message}; {error.hint}"))
    return found


def _memory_pairs(stage: StageSection, cost: StageCost) -> dict[str, tuple[float, float]]:
    """A plan that states no margin is taken to state best estimates."""
    stated = stage.predicted
    if MARGIN not in stated.memory:
        return {"peak_bytes": (float(stated.peak_bytes), cost.best_peak_bytes)}
    margins = float(stated.memory[MARGIN]), cost.memory[MARGIN]
    return {"peak_bytes": (float(stated.peak_bytes), cost.peak_bytes), f"memory.{MARGIN}": margins}


def _without_margin(stage: StageSection, cost: StageCost, where: str) -> list[Violation]:
    """What a plan without margins is not checked for by its own figures: whether upper estimates fit."""
    if MARGIN in stage.predicted.memory or cost.peak_bytes <= cost.capacity_bytes:
        return []
    return [
        Violation(
            "memory-over-capacity",
            f"{where}.peak_bytes",
            f"{format_bytes(cost.peak_bytes)}, with a margin of {100 * (cost.upper_ratio - 1):.3g} % on all "
            f"but model states, do not fit into the GPU's {format_bytes(cost.capacity_bytes)}",
        )
    ]


def _islands(doc: PlanDocument, cluster: Cluster) -> tuple[Island, ...]:
    """Builds the islands again from the nodes and the tolerances of the document."""
    stated = {name: math.inf if value is None else value for name, value in doc.tolerances.items()}
    usual = Tolerances()
    tolerances = Tolerances(
        compute=stated.get("compute", usual.compute),
        memory=stated.get("memory", usual.memory),
        intra=stated.get("intra", usual.intra),
        network=stated.get("network", usual.network),
    )
    return build_islands(cluster, doc.job.precision, tolerances)


def _same_island(stated: IslandSection, rebuilt: IslandSection | None) -> bool:
    if rebuilt is None or stated.nodes != rebuilt.nodes or stated.gpu != rebuilt.gpu:
        return False
    numbers = [name for name in IslandSection.model_fields if name not in ("name", "nodes", "gpu", "reasons")]
    return all(
        math.isclose(getattr(stated, name), getattr(rebuilt, name), rel_tol=RELATIVE_TOLERANCE)
        for name in numbers
    )


def _differences(pairs: dict[str, tuple[float, float]], where: str, code: str) -> list[Violation]:
    return [
        Violation(code, f"{where}.{name}", f"the plan says {stated:.9g}, the cost model {costed:.9g}")
        for name, (stated, costed) in pairs.items()
        if not math.isclose(stated, costed, rel_tol=RELATIVE_TOLERANCE, abs_tol=2e-9)
    ]


def _stated_pipeline(doc: PlanDocument) -> SimPipeline:
    pipeline, cluster = doc.pipelines[0], doc.cluster.to_cluster()
    stages = tuple(
        SimStage.of(s.predicted, window)
        for s, window in zip(pipeline.stages, pipeline.schedule.in_flight, strict=True)
    )
    edges = tuple(
        _stated_edge(front, behind, cluster)
        for front, behind in zip(pipeline.stages, pipeline.stages[1:], strict=False)
    )
    return SimPipeline(stages, edges, pipeline.num_micro_batches, not pipeline.schedule.overlap_p2p)


def _stated_edge(front: StageSection, behind: StageSection, cluster: Cluster) -> SimEdge:
    """The edge as stated: its latency and resources are the placement's, the rest of its time is
    occupancy.
    """
    a, b = (_bare_placement(stage, cluster) for stage in (front, behind))
    placed = placed_edge(cluster, a, b, front.predicted.boundary_bytes, SHIPPED_BASIS)
    forward = round((front.predicted.send_forward_s or 0.0) * NS_PER_S)
    backward = round((front.predicted.send_backward_s or 0.0) * NS_PER_S)
    latency = min(placed.latency_ns, forward, backward)
    return SimEdge(
        latency, forward - latency, backward - latency, placed.forward_resources, placed.backward_resources
    )


def _bare_placement(stage: StageSection, cluster: Cluster) -> Placement:
    """The GPUs of a stage with a portion that knows only how many there are per node."""
    slots = tuple(Slot(cluster.node(slot.node), slot.gpu_idx) for slot in stage.ranks)
    nodes = dict.fromkeys(slot.node.name for slot in slots)
    first = slots[0].node
    island = Island(
        name=stage.island,
        nodes=tuple(cluster.node(name) for name in nodes),
        gpu=first.gpu,
        gpus_per_node=first.num_gpus,
        intra_bandwidth_bytes_per_s=first.intra_bandwidth_bytes_per_s,
        intra_latency_s=first.intra_latency_s,
        inter_bandwidth_bytes_per_s=first.nic_bandwidth_bytes_per_s,
        inter_latency_s=cluster.default_latency_s,
        nic_bandwidth_bytes_per_s=first.nic_bandwidth_bytes_per_s,
    )
    return Placement(Portion(island, len(nodes), len(slots) // len(nodes)), slots)


def _choice(stage: StageSection, island: Island, atoms: tuple[Atom, ...]) -> StageChoice:
    start, stop = stage.atoms
    num_nodes = len({slot.node for slot in stage.ranks})
    configs = _configs(stage, atoms[start:stop])
    return StageChoice(
        start=start,
        stop=stop,
        portion=Portion(island, num_nodes, len(stage.ranks) // num_nodes),
        config=configs[0],
        recomputed=tuple(row.mode is Recompute.FULL for row in stage.recompute),
        atom_configs=configs if len(set(configs)) > 1 else (),
    )


def _configs(stage: StageSection, atoms: tuple[Atom, ...]) -> tuple[StageConfig, ...]:
    """Returns the configuration of each atom of a stage.

    Atoms say for themselves whether their attention core is recomputed only where some say no; else what one
    says counts for all, since it means nothing for the others: ends of the model, and atoms recomputed in
    full.
    """
    modes = {row.mode for row, atom in zip(stage.recompute, atoms, strict=True) if atom.layer_idxs}
    selective = [Recompute.SELECTIVE in modes] * len(atoms)
    if {Recompute.SELECTIVE, Recompute.NONE} <= modes:
        selective = [row.mode is Recompute.SELECTIVE for row in stage.recompute]
    parts: list[StageSection | LayerConfig] = list(stage.layer_configs) or [stage]
    runs = [part for part in parts for _ in range(*part.atoms)]
    return tuple(
        StageConfig(
            dp=run.dp,
            tp=run.tp,
            cp=run.cp,
            ep=run.ep,
            expert_tp=run.expert_tp,
            zero=run.zero,
            selective=own,
            offload_optimizer=stage.offload_optimizer,
            offload_activations=bool(stage.offload_activation_atoms),
        )
        for run, own in zip(runs, selective, strict=True)
    )


def _placement(stage: StageSection, choice: StageChoice, cluster: Cluster) -> Placement:
    slots = tuple(Slot(cluster.node(slot.node), slot.gpu_idx) for slot in stage.ranks)
    return Placement(choice.portion, slots)
