"""How good the plan is: the lower bound, the gap, and the staircase that says where the gap goes."""

from __future__ import annotations

from tangram.plan.schema import BoundSection, BoundStep
from tangram.planner.search import Found, Search
from tangram.units import NS_PER_S


def bound_section(search: Search, found: Found) -> BoundSection:
    """Returns the bound section for the plan that a search found."""
    ideal_ns = min(size.bound_ns for size in search.sizes)
    bound_ns = min(max(search.lower_bound_ns(), ideal_ns), found.iteration_ns)
    proven = search.is_proven(found)
    if proven:
        bound_ns = found.iteration_ns
    return BoundSection(
        lower_bound_s=bound_ns / NS_PER_S,
        gap_frac=found.iteration_ns / bound_ns - 1,
        proven_optimal=proven,
        staircase=_staircase(search, found),
        scope=_scope(search),
    )


def _staircase(search: Search, found: Found) -> list[BoundStep]:
    """Stairs of the plan's own micro-batch size, from the ideal to the simulated time."""
    size = found.micro_batch
    idx = search.sizes.index(size)
    pace_ns, fill_ns = search.composer.stairs_ns.get(idx, (size.bound_ns, size.bound_ns))
    ideal = min(size.bound_ns, found.iteration_ns)
    whole = min(max(pace_ns, ideal), found.iteration_ns)
    filled = min(max(fill_ns, whole), found.iteration_ns)
    stairs = [
        (
            "ideal",
            ideal,
            "every usable GPU busy all the time, layers split at will, no communication between GPUs",
        ),
        (
            "whole layers and memory",
            whole,
            "stages of whole atoms that fit, with their collectives; the slowest sets the pace",
        ),
        (
            "fill and drain",
            filled,
            "the first micro-batch has to reach the last stage, the last one has to come back",
        ),
        (
            "step end, transfers, search",
            found.iteration_ns,
            "gradient synchronisation and optimizer, waiting for links, whatever the search missed",
        ),
    ]
    return [BoundStep(name=name, time_s=ns / NS_PER_S, explanation=text) for name, ns, text in stairs]


def _scope(search: Search) -> str:
    names = " and ".join(search.options.parallelizers)
    extra = f"; {'; '.join(search.space.notes)}" if search.space.notes else ""
    return (
        f"one 1F1B pipeline whose stages take part of a node or whole nodes of one island each, cut between "
        f"atoms of granularity {search.options.granularity}, with every option of {names}, over "
        f"{len(search.sizes)} micro-batch sizes, under this cost model{extra}"
    )
