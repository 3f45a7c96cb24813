"""From a search's answer to the plan document."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import lcm

from tangram._version import VERSION
from tangram.basis import PLAIN_FORMULA, CostBasis
from tangram.cluster.spec import Assumption, Cluster, GpuSpec, Island
from tangram.cluster.tolerances import Tolerances
from tangram.cost.bands import time_band
from tangram.cost.constants import basis_note, own_basis_note, stack_constants
from tangram.job import Job
from tangram.model.atoms import Atom
from tangram.model.flops import model_flop_per_token
from tangram.model.spec import ModelSpec
from tangram.model.vocabulary import padded_vocab_size
from tangram.parallelizers.protocols import StageChoice
from tangram.plan.schema import (
    AssumptionSection,
    BoundSection,
    ClusterSection,
    Comparison,
    IdleSection,
    IslandSection,
    JobSection,
    ModelSection,
    PipelineSection,
    PlanDocument,
    Prediction,
    ScheduleSection,
    SearchSection,
    StageSection,
    TiedGroup,
)
from tangram.planner.edges import boundaries
from tangram.planner.measured import KINDS, atom_bases, used_factors
from tangram.planner.placement import Placement
from tangram.planner.stages import PlacedPipeline, stage_sections
from tangram.profiles.lookup import Basis
from tangram.simulate.engine import simulate
from tangram.simulate.pipeline import SimPipeline
from tangram.simulate.timeline import Timeline
from tangram.units import NS_PER_S, count_of


def place_pipeline(
    model: ModelSpec,
    atoms: tuple[Atom, ...],
    job: Job,
    micro_batch: int,
    stages: tuple[StageChoice, ...],
    placements: tuple[Placement, ...],
    pipeline: SimPipeline,
) -> PlacedPipeline:
    """Gathers what a document says about a pipeline; the vocabulary is padded for every tp that holds a
    part of it.
    """
    cuts = boundaries(model, atoms, micro_batch, job)
    first, last = stages[0].configs[0], stages[-1].configs[-1]
    return PlacedPipeline(
        model=model,
        atoms=atoms,
        job=job,
        micro_batch=micro_batch,
        stages=stages,
        placements=placements,
        pipeline=pipeline,
        boundary_bytes=tuple(cuts.bytes_at[s.stop] for s in stages),
        padded_vocab_size=padded_vocab_size(model.vocab_size, lcm(first.tp, last.tp)),
    )


def plan_document(
    placed: PlacedPipeline,
    *,
    cluster: Cluster,
    islands: Sequence[Island],
    granularity: str,
    tolerances: dict[str, float | None],
    precision_reason: str,
    assumptions: Sequence[Assumption],
    bound: BoundSection,
    idle: Sequence[IdleSection],
    comparisons: Sequence[Comparison],
    search: SearchSection,
) -> PlanDocument:
    """Writes the document."""
    timeline = simulate(placed.pipeline)
    stages = stage_sections(placed)
    m = placed.pipeline.num_micro_batches
    pipeline = PipelineSection(
        global_batch=placed.job.global_batch,
        micro_batch=placed.micro_batch,
        num_micro_batches=m,
        schedule=ScheduleSection(
            in_flight=[s.in_flight for s in placed.pipeline.stages],
            overlap_p2p=placed.job.overlap_p2p,
            assumed_overlaps=assumed_overlaps(placed.job),
        ),
        stages=stages,
    )
    return PlanDocument(
        tangram_version=VERSION,
        model=ModelSection.of(placed.model, padded_vocab_size=placed.padded_vocab_size),
        cluster=ClusterSection.of(cluster),
        job=JobSection.of(_job_of(placed), precision_reason=precision_reason),
        granularity=granularity,
        num_atoms=len(placed.atoms),
        islands=[IslandSection.of(island) for island in islands],
        tolerances=tolerances,
        pipelines=[pipeline],
        tied_weight_groups=tied_groups(placed.model, stages),
        prediction=prediction(placed, timeline),
        bound=bound,
        idle=list(idle),
        comparisons=list(comparisons),
        assumptions=[AssumptionSection(what=a.what, why=a.why) for a in assumptions],
        search=search,
    )


def prediction(placed: PlacedPipeline, timeline: Timeline) -> Prediction:
    """Returns what the simulator says of a pipeline."""
    job, model = placed.job, placed.model
    seconds = timeline.iteration_ns / NS_PER_S
    tokens = job.global_batch * job.seq_len
    flop = float(model_flop_per_token(model, job.seq_len)) * tokens
    gpus = [s.portion.island.gpu for s in placed.stages for _ in range(s.portion.num_gpus)]
    peak = sum(gpu.peak_flop_per_s[job.precision] for gpu in gpus)
    bases = atom_bases(job, placed.atoms, placed.stages, placed.micro_batch)
    idle = timeline.idle_frac([s.portion.num_gpus for s in placed.stages])
    band = None if job.basis.overrides else time_band(gpus, job.basis.stack, moe=model.has_moe)
    return Prediction(
        iteration_time_s=seconds,
        tokens_per_s=tokens / seconds,
        samples_per_s=job.global_batch / seconds,
        model_flop_per_step=flop,
        mfu=flop / seconds / peak,
        bubble_frac=idle,
        bottleneck_stage=placed.bottleneck,
        basis="mixed" if _rests_on_measured(bases) else "formula",
        basis_note=_basis_note(gpus, job.basis, bases),
        time_band_frac=None if band is None else round(band.half_width_frac, 4),
        time_band_note="of your own calibration; its file says how far off it was"
        if band is None
        else band.basis,
        breakdown=_breakdown(timeline),
    )


def tied_groups(model: ModelSpec, stages: Sequence[StageSection]) -> list[TiedGroup]:
    """Returns the groups of stages that hold copies of the embedding."""
    holders = [s for s in stages if s.has_embedding or s.has_head]
    if not model.shares_embedding or len(holders) < 2:
        return []
    ranks = sorted(slot.rank for stage in holders for slot in stage.ranks)
    return [TiedGroup(name="embedding", stages=[s.index for s in holders], ranks=ranks)]


def _job_of(placed: PlacedPipeline) -> Job:
    """The job with those measured factors that the pipeline rests on."""
    job = placed.job
    used = used_factors(job, placed.atoms, placed.stages, placed.micro_batch)
    return replace(job, basis=replace(job.basis, measured=used))


def _rests_on_measured(bases: Mapping[str, int]) -> bool:
    return any(number for kind, number in bases.items() if kind != PLAIN_FORMULA)


def _basis_note(gpus: Sequence[GpuSpec], basis: CostBasis, bases: Mapping[str, int]) -> str:
    by_name = {gpu.name: gpu for gpu in gpus}
    notes = [own_basis_note(gpus, basis)]
    if basis.has_shipped_constants:
        notes = list(dict.fromkeys(basis_note(by_name[name]) for name in sorted(by_name)))
    if not _rests_on_measured(bases):
        return "; ".join(notes)
    words = {PLAIN_FORMULA: "by plain formula", Basis.SCALED.value: "by a formula scaled to measurements"}
    parts = [f"{bases[kind]} {words.get(kind, kind)}" for kind in KINDS if bases[kind]]
    counted = f"compute of {count_of(sum(bases.values()), 'atom')}: {', '.join(parts)}"
    return "; ".join([counted, *notes])


def _breakdown(timeline: Timeline) -> dict[str, float]:
    """Splits the iteration at the last stage: fill until it starts, its steady work, the drain after it,
    and the step end.

    The step end counts from the moment at which the last stage of all has ended its last backward.
    """
    last = len(timeline.pipeline.stages) - 1
    backward_ends = [
        starts[-1] + stage.backward_ns
        for starts, stage in zip(timeline.backward_starts_ns, timeline.pipeline.stages, strict=True)
    ]
    fill = timeline.first_ns[last]
    steady = backward_ends[last] - fill
    drain = max(backward_ends) - backward_ends[last]
    step_end = timeline.iteration_ns - max(backward_ends)
    parts = {"fill": fill, "steady": steady, "drain": drain, "step_end": step_end}
    return {name: ns / NS_PER_S for name, ns in parts.items()}


def assumed_overlaps(job: Job) -> dict[str, float]:
    """Returns the largest share of each kind of communication that the prediction takes as hidden behind
    compute.
    """
    stack = stack_constants(job.basis.stack, job.basis.overrides)
    return {
        "data_parallel": 1.0 - stack.exposed_floor_frac,
        "tensor_parallel": 1.0 - stack.tp_exposed_frac,
        "context_parallel": 1.0 - stack.cp_exposed_frac,
        "expert_parallel": 1.0 - stack.ep_exposed_frac,
        "point_to_point": 1.0 if job.overlap_p2p else 0.0,
    }


def stated_tolerances(tolerances: Tolerances) -> dict[str, float | None]:
    """Returns the tolerances as a document states them: null is infinite."""
    values = {name: getattr(tolerances, name) for name in ("compute", "memory", "intra", "network")}
    return {name: None if math.isinf(value) else value for name, value in values.items()}
