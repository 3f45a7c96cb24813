"""Pipelines whose cuts and GPUs are given: the best configuration of every stage, and the simulated time.

The even split of the comparison is made here; what a person types (every GPU treated as equal), with the
best degrees and the least recomputation that fits on each stage, so that it is beaten for its split and
not for clumsiness elsewhere.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from tangram.cluster.spec import Island, Portion
from tangram.job import Job
from tangram.model.atoms import Atom
from tangram.parallelizers.exact import ExactStageTable
from tangram.parallelizers.protocols import OptionTable, TableRequest
from tangram.planner.edges import tied_bytes
from tangram.planner.placement import place
from tangram.planner.referee import MicroBatch
from tangram.planner.search import Search
from tangram.planner.traffic import EdgeBook
from tangram.simulate.fast import iteration_ns
from tangram.simulate.pipeline import SimPipeline, SimStage


@dataclass(frozen=True, slots=True)
class FixedStage:
    """A slice on a portion."""

    start: int
    stop: int
    portion: Portion


def even_split(atoms: Sequence[Atom], islands: Sequence[Island]) -> list[FixedStage]:
    """One stage per node, all nodes, layers as even as whole atoms allow; embedding first, head last."""
    nodes = [Portion(island, 1, island.gpus_per_node) for island in islands for _ in island.nodes]
    middle = len(atoms) - 2
    nodes = nodes[: max(1, middle)]
    share, extra = divmod(middle, len(nodes))
    stages, start = [], 0
    for place_idx, portion in enumerate(nodes):
        stop = start + share + (1 if place_idx < extra else 0)
        stop += 1 if place_idx == 0 else 0
        stop += 1 if place_idx == len(nodes) - 1 else 0
        stages.append(FixedStage(start, stop, portion))
        start = stop
    return stages


def best_fixed_ns(search: Search, stages: Sequence[FixedStage]) -> tuple[int, MicroBatch] | None:
    """Returns the simulated time of the best micro-batch size, or None when no size fits on every stage."""
    best: tuple[int, MicroBatch] | None = None
    job, pins = search.job, search.job.pins
    if (pins.pp, pins.layers_per_stage) != (None, None):
        job = replace(job, pins=replace(pins, pp=None, layers_per_stage=None))
    for size in sorted(
        search.sizes, key=lambda s: (_pace_ns(size_of=s, search=search, stages=stages), s.size)
    ):
        if best is not None and _pace_ns(size_of=size, search=search, stages=stages) >= best[0]:
            break
        pipeline = _pipeline(search, stages, size, job)
        if pipeline is None:
            continue
        time_ns = iteration_ns(pipeline)
        if best is None or time_ns < best[0]:
            best = time_ns, size
    return best


def _pace_ns(*, size_of: MicroBatch, search: Search, stages: Sequence[FixedStage]) -> int:
    """A lower bound of the iteration: the slowest stage at one-GPU efficiency."""
    islands = search.space.islands
    pace = 0.0
    for stage in stages:
        island = next(k for k, i in enumerate(islands) if i.name == stage.portion.island.name)
        seconds = size_of.reference.gpu_seconds[island, stage.start : stage.stop].sum()
        pace = max(pace, float(seconds) / stage.portion.num_gpus)
    return int(size_of.num_micro_batches * pace * 1e9)


def _pipeline(search: Search, stages: Sequence[FixedStage], size: MicroBatch, job: Job) -> SimPipeline | None:
    placements = place([s.portion for s in stages])
    sim: list[SimStage] = []
    for idx, stage in enumerate(stages):
        window = len(stages) - idx
        chosen = _fastest(search, stage, size, min(window, size.num_micro_batches), job)
        if chosen is None:
            return None
        table, row = chosen
        forward, backward, step = (
            int(column[row]) for column in (table.forward_ns, table.backward_ns, table.step_ns)
        )
        sim.append(SimStage(forward, backward, step, window))
    return EdgeBook(search.cluster, search.job.basis).pipeline(
        placements,
        [size.cuts.bytes_at[stage.stop] for stage in stages[:-1]],
        tied_bytes(search.model, search.job),
        sim,
        size.num_micro_batches,
        blocking_p2p=not search.job.overlap_p2p,
    )


def _fastest(
    search: Search, stage: FixedStage, size: MicroBatch, window: int, job: Job
) -> tuple[OptionTable, int] | None:
    request = TableRequest(
        model=search.model,
        atoms=search.atoms,
        portion=stage.portion,
        micro_batch=size.size,
        num_micro_batches=size.num_micro_batches,
        max_in_flight=window,
        max_time_s=float("inf"),
        job=job,
        slices=[(stage.start, stage.stop)],
    )
    table = ExactStageTable().options(request)
    rows = [
        (int(table.forward_ns[r] + table.backward_ns[r]), r)
        for r in range(len(table.start))
        if table.max_in_flight[r] >= window
    ]
    return (table, min(rows)[1]) if rows else None
