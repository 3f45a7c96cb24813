"""How good the plan is: the lower bound, the gap, and the staircase that says where the gap goes."""

from __future__ import annotations

from tangram.plan.schema import BoundSection, BoundStep
from tangram.planner.beyond import Beyond
from tangram.planner.referee import Found
from tangram.planner.search import Search
from tangram.simulate.formulas import lower_bound_ns
from tangram.simulate.pipeline import SimPipeline
from tangram.units import NS_PER_S


def bound_section(search: Search, found: Found, beyond: Beyond | None = None) -> BoundSection:
    """Returns the bound section for the plan that a search found.

    Args:
        search: Run.
        found: The plan.
        beyond: What was asked beyond the search's own space, which the bound then covers too.
    """
    bound_ns = min(search.lower_bound_ns(), found.iteration_ns)
    proven = search.is_proven(found)
    if beyond is not None:
        bound_ns = min(bound_ns, beyond.lowest_ns)
        proven = proven and beyond.lowest_ns >= found.iteration_ns
    if proven:
        bound_ns = found.iteration_ns
    return BoundSection(
        lower_bound_s=bound_ns / NS_PER_S,
        gap_frac=found.iteration_ns / bound_ns - 1,
        proven_optimal=proven,
        staircase=_staircase(found),
        scope=_scope(search, beyond),
    )


def _staircase(found: Found) -> list[BoundStep]:
    """Stairs of the plan itself, from the ideal to the simulated time; each adds one cause."""
    stages, edges = found.pipeline.stages, found.pipeline.edges
    m = found.pipeline.num_micro_batches
    ideal = found.micro_batch.bound_ns
    pace = m * max(s.forward_ns + s.backward_ns for s in stages)
    no_edges = [0] * len(edges)
    steps = [s.step_ns for s in stages]
    filled = _own_bound_ns(found.pipeline, [0] * len(stages), no_edges, no_edges)
    ended = _own_bound_ns(found.pipeline, steps, no_edges, no_edges)
    stairs = [
        (
            "ideal",
            ideal,
            "every usable GPU busy all the time, layers split at will, no communication between GPUs",
        ),
        (
            "whole layers and memory",
            pace,
            "the slowest stage's micro-batches: whole atoms that fit, and their collectives",
        ),
        (
            "fill and drain",
            filled,
            "the first micro-batch has to reach the last stage, the last one has to come back",
        ),
        ("step end", ended, "gradient synchronisation and optimizer after the last backward"),
        (
            "transfers and waiting",
            found.iteration_ns,
            "activations and gradients between stages, on links that they may share",
        ),
    ]
    steps_up, reached = [], 0
    for name, ns, text in stairs:
        reached = min(max(reached, ns), found.iteration_ns)
        steps_up.append(BoundStep(name=name, time_s=reached / NS_PER_S, explanation=text))
    return steps_up


def _own_bound_ns(pipeline: SimPipeline, steps: list[int], one_way: list[int], round_trip: list[int]) -> int:
    """The lower bound of this pipeline's own stages and windows."""
    stages = pipeline.stages
    return lower_bound_ns(
        [s.forward_ns for s in stages],
        [s.backward_ns for s in stages],
        steps,
        one_way,
        round_trip,
        [s.in_flight for s in stages],
        pipeline.num_micro_batches,
    )


def _scope(search: Search, beyond: Beyond | None) -> str:
    names = " and ".join(search.options.parallelizers)
    names += "" if beyond is None else ", and with degrees per layer"
    extra = f"; {'; '.join(search.space.notes)}" if search.space.notes else ""
    return (
        f"one 1F1B pipeline whose stages take part of a node or whole nodes of one island each, cut between "
        f"atoms of granularity {search.options.granularity}, with every option of {names}, over "
        f"{len(search.sizes)} micro-batch sizes, under this cost model{extra}"
    )
