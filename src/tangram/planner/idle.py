"""GPUs that the plan leaves out, and why: the plan that would use them is looked for and costed."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tangram.cluster.spec import Island
from tangram.plan.schema import GpuSlot, IdleSection
from tangram.planner.candidates import Candidate
from tangram.planner.placement import Placement
from tangram.planner.referee import Found
from tangram.planner.search import Search
from tangram.units import NS_PER_S, format_duration


def idle_sections(search: Search, found: Found) -> list[IdleSection]:
    """Returns one section per island with unused GPUs, islands of the wrong precision included."""
    used = used_slots(found.placements)
    sections = []
    for idx, island in enumerate(search.space.islands):
        free = free_slots(island, used)
        if free:
            whole = len(free) == island.num_gpus
            reason = (
                _unused_island(search, found, idx) if whole else _left_over(search, found, island, len(free))
            )
            sections.append(IdleSection(island=island.name, count=len(free), gpus=free, reason=reason))
    for island, reason in search.space.excluded:
        free = free_slots(island, used)
        sections.append(IdleSection(island=island.name, count=len(free), gpus=free, reason=reason))
    return sections


def used_slots(placements: Sequence[Placement]) -> set[tuple[str, int]]:
    """Returns the GPUs of all stages, as (node name, index)."""
    return {(slot.node.name, slot.gpu_idx) for placement in placements for slot in placement.slots}


def free_slots(island: Island, used: set[tuple[str, int]]) -> list[GpuSlot]:
    """Returns the GPUs of an island that are not in use, in node order."""
    slots = [(node.name, gpu) for node in island.nodes for gpu in range(island.gpus_per_node)]
    return [GpuSlot(node=node, gpu_idx=gpu) for node, gpu in slots if (node, gpu) not in used]


def _unused_island(search: Search, found: Found, island_idx: int) -> str:
    island = search.space.islands[island_idx]
    label = f"{island.num_gpus}x {island.gpu.name} left out"
    pace_ns = max(s.forward_ns + s.backward_ns for s in found.pipeline.stages)
    clauses = []
    ratio = _least_pace_ratio(search, found, island_idx, pace_ns)
    if ratio > 1.05:
        clauses.append(f"with one layer they would set a pace at least {ratio:.1f}x the present one")
    forced = search.forced.get(island_idx)
    if forced is not None and forced.time_ns > 2 * found.iteration_ns:
        clauses.append("no plan that uses them was found within twice this one's time")
    elif forced is not None:
        more = 100 * (forced.time_ns / found.iteration_ns - 1)
        seconds = format_duration(forced.time_ns / NS_PER_S)
        what = (
            "uses them"
            if _holds_layers(search, forced, island_idx)
            else "puts only an end of the model on them"
        )
        clauses.append(f"the best plan found that {what} takes {seconds} ({more:+.1f} % against this one)")
    if (search.space.is_large or search.is_stopped) and not clauses:
        clauses.append("no plan that uses them was found to be faster")
    if not clauses:
        clauses.append("no stage that fits their memory makes a plan with the others")
    return f"{label}: {'; '.join(clauses)}"


def _holds_layers(search: Search, forced: Candidate, island_idx: int) -> bool:
    """Whether a plan puts any layer on an island, and not only the embedding or the head."""
    pieces = forced.problem.pieces
    return any(
        atom.layer_idxs
        for piece in forced.chain.pieces
        if pieces.island[piece] == island_idx
        for atom in search.atoms[int(pieces.start[piece]) : int(pieces.stop[piece])]
    )


def _least_pace_ratio(search: Search, found: Found, island_idx: int, pace_ns: int) -> float:
    """Pace of the quickest useful stage of an island (at least one whole layer) over the plan's pace."""
    problem = search.problem_of(found.micro_batch)
    if problem is None:
        return _reference_layer_s(search, found, island_idx) * NS_PER_S / pace_ns
    pieces = problem.pieces
    idx = np.flatnonzero(pieces.island == island_idx)
    layers = np.array([bool(a.layer_idxs) for a in search.atoms])
    ahead = np.concatenate([[0], np.cumsum(layers)])
    useful = idx[ahead[pieces.stop[idx]] > ahead[pieces.start[idx]]]
    if not len(useful):
        # Tables leave out stages slower than the plan allows: then one GPU alone gives the bound.
        return _reference_layer_s(search, found, island_idx) * NS_PER_S / pace_ns
    return float(pieces.period_ns[useful].min()) / pace_ns


def _reference_layer_s(search: Search, found: Found, island_idx: int) -> float:
    """Least time of the cheapest layer atom on all GPUs of an island."""
    seconds = found.micro_batch.reference.gpu_seconds[island_idx]
    cheapest = min(s for s, atom in zip(seconds.tolist(), search.atoms, strict=True) if atom.layer_idxs)
    return float(cheapest) / search.space.islands[island_idx].num_gpus


def _left_over(search: Search, found: Found, island: Island, count: int) -> str:
    stages: Sequence[int] = [s.portion.num_gpus for s in found.stages if s.portion.island.name == island.name]
    sizes = " + ".join(map(str, stages)) if len(stages) <= 6 else f"{min(stages)} to {max(stages)}"
    return (
        f"{count} of {island.num_gpus}x {island.gpu.name} left over beside stages of {sizes} GPUs: no way to "
        f"use them made a faster plan (stages take divisors of a node or whole nodes, and dp divides the "
        f"micro-batch of {found.micro_batch.size})"
    )
