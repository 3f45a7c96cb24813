"""From placed stages to the stage sections of the plan document."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any

from tangram.cost.setting import attention_kernel
from tangram.cost.stage import stage_cost
from tangram.cost.types import StageConfig, StageCost
from tangram.job import Job, Recompute
from tangram.model.atoms import Atom, has_experts
from tangram.model.spec import ModelSpec
from tangram.parallelizers.protocols import StageChoice
from tangram.plan.schema import (
    LayerConfig,
    LayerRecompute,
    MeshSection,
    RankSlot,
    StagePrediction,
    StageSection,
)
from tangram.planner.placement import Placement
from tangram.simulate.pipeline import SimEdge, SimPipeline
from tangram.units import NS_PER_S, count_of, format_bytes, format_duration


@dataclass(frozen=True, slots=True)
class PlacedPipeline:
    """A pipeline with everything that a document says about it.

    Attributes:
        model, atoms, job: What is trained.
        micro_batch: Global micro-batch, in samples.
        stages, placements: First to last.
        pipeline: What the simulator executes.
        boundary_bytes: Of the cut behind each stage; 0 for the last.
        padded_vocab_size: Rows of embedding and head.
    """

    model: ModelSpec
    atoms: tuple[Atom, ...]
    job: Job
    micro_batch: int
    stages: tuple[StageChoice, ...]
    placements: tuple[Placement, ...]
    pipeline: SimPipeline
    boundary_bytes: tuple[int, ...]
    padded_vocab_size: int

    def cost(self, idx: int) -> StageCost:
        """Returns what the cost model says of stage ``idx``."""
        choice = self.stages[idx]
        return stage_cost(
            self.model,
            self.atoms[choice.start : choice.stop],
            choice.portion,
            choice.config,
            self.micro_batch,
            self.pipeline.num_micro_batches,
            self.pipeline.stages[idx].in_flight,
            choice.recomputed,
            self.job,
            atom_configs=choice.atom_configs,
        )

    @property
    def bottleneck(self) -> int:
        """The stage with the longest time per micro-batch; the first of equals."""
        times = [s.forward_ns + s.backward_ns for s in self.pipeline.stages]
        return times.index(max(times))


def stage_sections(placed: PlacedPipeline) -> list[StageSection]:
    """Returns the sections of all stages."""
    sections = []
    rank = 0
    for idx in range(len(placed.stages)):
        sections.append(_section(placed, idx, rank))
        rank += placed.stages[idx].portion.num_gpus
    return sections


def _section(placed: PlacedPipeline, idx: int, first_rank: int) -> StageSection:
    choice, config = placed.stages[idx], placed.stages[idx].config
    atoms = placed.atoms[choice.start : choice.stop]
    layers = sorted({layer for atom in atoms for layer in atom.layer_idxs})
    ends = atoms[0].is_embedding or atoms[-1].is_head
    gpu = choice.portion.island.gpu
    cost = placed.cost(idx)
    offloaded = [
        choice.start + i
        for i, again in enumerate(choice.recomputed)
        if config.offload_activations and not again
    ]
    return StageSection(
        index=idx,
        island=choice.portion.island.name,
        atoms=(choice.start, choice.stop),
        layers=(layers[0], layers[-1] + 1) if layers else _no_layers(placed, choice.start),
        has_embedding=atoms[0].is_embedding,
        has_head=atoms[-1].is_head,
        ranks=_ranks(placed.placements[idx], first_rank),
        **_degrees(config, placed.micro_batch, has_moe=has_experts(atoms)),
        recompute=_recompute(choice, atoms),
        offload_optimizer=config.offload_optimizer,
        offload_activation_atoms=offloaded,
        attention_kernel=attention_kernel(gpu, placed.job.precision),
        padded_vocab_size=placed.padded_vocab_size if ends else None,
        predicted=_prediction(placed, idx, cost),
        reason=_reason(placed, idx, cost, len(layers)),
        layer_configs=_layer_configs(placed, choice),
    )


def _degrees(config: StageConfig, micro_batch: int, *, has_moe: bool) -> dict[str, Any]:
    """Returns the fields that a stage and a run of its atoms have in common."""
    ep, expert_tp = (config.ep, config.expert_tp) if has_moe else (1, 1)
    expert_mesh = MeshSection(axes=["expert_dp", "ep", "expert_tp"], sizes=[config.expert_dp, ep, expert_tp])
    return {
        "mesh": MeshSection(axes=["dp", "cp", "tp"], sizes=[config.dp, config.cp, config.tp]),
        "expert_mesh": expert_mesh if has_moe else None,
        "dp": config.dp,
        "tp": config.tp,
        "cp": config.cp,
        "ep": ep,
        "expert_tp": expert_tp,
        "sequence_parallel": config.tp > 1,
        "micro_batch_per_dp_rank": [micro_batch // config.dp] * config.dp,
        "zero": config.zero,
        "zero_axes": ["dp", "cp"] if config.zero else [],
        "expert_zero_axes": ["expert_dp"] if has_moe and config.zero else [],
    }


def _layer_configs(placed: PlacedPipeline, choice: StageChoice) -> list[LayerConfig]:
    """Returns the runs of atoms of equal degrees; none where all atoms of the stage have the same.

    What of attention is recomputed stands with the atoms.
    """
    has_moe = has_experts(placed.atoms[choice.start : choice.stop])
    runs: list[LayerConfig] = []
    start = choice.start
    for config, members in groupby(replace(c, selective=False) for c in choice.configs):
        stop = start + len(list(members))
        runs.append(LayerConfig(atoms=(start, stop), **_degrees(config, placed.micro_batch, has_moe=has_moe)))
        start = stop
    return runs if len(runs) > 1 else []


def _no_layers(placed: PlacedPipeline, start: int) -> tuple[int, int]:
    """An embedding or a head alone lies before the first or behind the last layer."""
    at = 0 if start == 0 else placed.model.num_layers
    return at, at


def _ranks(placement: Placement, first: int) -> list[RankSlot]:
    return [
        RankSlot(rank=first + i, node=slot.node.name, gpu_idx=slot.gpu_idx, gpu=slot.node.gpu.name)
        for i, slot in enumerate(placement.slots)
    ]


def _recompute(choice: StageChoice, atoms: Sequence[Atom]) -> list[LayerRecompute]:
    rows = []
    for i, (atom, again, config) in enumerate(zip(atoms, choice.recomputed, choice.configs, strict=True)):
        kept = Recompute.SELECTIVE if config.selective else Recompute.NONE
        mode = Recompute.FULL if again else kept
        if not atom.layer_idxs:
            mode = Recompute.NONE
        rows.append(LayerRecompute(atom=choice.start + i, layers=list(atom.layer_idxs), mode=mode))
    return rows


def _prediction(placed: PlacedPipeline, idx: int, cost: StageCost) -> StagePrediction:
    sim = placed.pipeline.stages[idx]
    edge: SimEdge | None = placed.pipeline.edges[idx] if idx < len(placed.pipeline.edges) else None
    memory = {name: round(size) for name, size in cost.memory.items()}
    peak = sum(memory.values())
    return StagePrediction(
        forward_s=sim.forward_ns / NS_PER_S,
        backward_s=sim.backward_ns / NS_PER_S,
        step_s=sim.step_ns / NS_PER_S,
        send_forward_s=edge.forward_ns / NS_PER_S if edge else None,
        send_backward_s=edge.backward_ns / NS_PER_S if edge else None,
        boundary_bytes=placed.boundary_bytes[idx],
        in_flight=min(sim.in_flight, placed.pipeline.num_micro_batches),
        activation_bytes=round(cost.activation_bytes),
        memory=memory,
        peak_bytes=peak,
        capacity_bytes=cost.capacity_bytes,
        headroom_bytes=cost.capacity_bytes - peak,
        components=dict(cost.components),
    )


def _reason(placed: PlacedPipeline, idx: int, cost: StageCost, num_layers: int) -> str:
    """Why the stage looks as it does: its pace beside the slowest, and what memory forced."""
    times = [s.forward_ns + s.backward_ns for s in placed.pipeline.stages]
    choice, slowest = placed.stages[idx], max(times)
    what = count_of(num_layers, "layer") if num_layers else "an end of the model"
    held = f"{what} in {format_duration(times[idx] / NS_PER_S)}"
    if idx == placed.bottleneck:
        pace = "this stage sets the pace"
    else:
        spare = 100 * (1 - times[idx] / slowest)
        pace = f"{spare:.0f} % quicker than the pace" if spare >= 0.5 else "at the pace"
    clauses = [f"{held} per micro-batch: {pace}"]
    again = sum(choice.recomputed)
    if again:
        clauses.append(
            f"recomputes {again} of {len(choice.recomputed)} atoms, since "
            f"{placed.pipeline.stages[idx].in_flight} micro-batches in flight would not fit otherwise"
        )
    headroom = cost.capacity_bytes - cost.peak_bytes
    clauses.append(
        f"{format_bytes(headroom)} of memory left"
        if headroom >= 0
        else f"{format_bytes(-headroom)} too much to fit"
    )
    return "; ".join(clauses)
