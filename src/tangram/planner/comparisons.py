"""Is mixing worth it? The fastest single island alone, an even layer split over everything, and the plan."""

from __future__ import annotations

from dataclasses import replace

from tangram.plan.schema import Comparison
from tangram.planner.fixed import best_fixed_ns, even_split
from tangram.planner.search import Found, Search
from tangram.planner.space import search_space
from tangram.units import NS_PER_S, count_of


def comparisons(search: Search, found: Found) -> list[Comparison]:
    """Returns the three lines that every plan prints beside its answer."""
    seconds = found.iteration_ns / NS_PER_S
    used = {s.portion.island.name for s in found.stages}
    gpus = sum(s.portion.num_gpus for s in found.stages)
    stages, islands = count_of(len(found.stages), "stage"), count_of(len(used), "island")
    summary = f"{stages} on {count_of(gpus, 'GPU')} of {islands}"
    return [
        _single_island(search, found),
        _even_split(search),
        Comparison(name="tangram", iteration_time_s=seconds, summary=summary),
    ]


def _single_island(search: Search, found: Found) -> Comparison:
    """The fastest island by itself, planned with the same parallelizers (quick search)."""
    name = "single-island"
    islands = search.space.islands
    if len(islands) == 1:
        return Comparison(
            name=name,
            iteration_time_s=found.iteration_ns / NS_PER_S,
            summary=f"{islands[0].num_gpus}x {islands[0].gpu.name} is all there is",
        )
    best: tuple[int, str] | None = None
    for island in sorted(
        islands, key=lambda i: -i.num_gpus * i.gpu.achieved_flop_per_s[search.job.precision]
    ):
        options = replace(search.options, effort=search.options.effort.hurried())
        alone = Search(
            search.model,
            search.atoms,
            search.cluster,
            search.job,
            search_space([island], search.job.precision),
            options,
            incumbent_ns=best[0] if best else None,
        )
        plan = alone.run()
        if plan is not None and (best is None or plan.iteration_ns < best[0]):
            stages = count_of(len(plan.stages), "stage")
            best = plan.iteration_ns, f"{island.num_gpus}x {island.gpu.name} alone, {stages}"
    if best is None:
        reason = "no island holds the model by itself"
        return Comparison(name=name, iteration_time_s=None, summary="one island alone", reason=reason)
    return Comparison(name=name, iteration_time_s=best[0] / NS_PER_S, summary=best[1])


def _even_split(search: Search) -> Comparison:
    """Every node one stage, layers split evenly, as one would type it."""
    stages = even_split(search.atoms, search.space.islands)
    layers = [len({i for a in search.atoms[s.start : s.stop] for i in a.layer_idxs}) for s in stages]
    counts = "/".join(map(str, layers)) if len(layers) <= 8 else f"{min(layers)} to {max(layers)}"
    summary = f"{count_of(len(stages), 'node')}, {counts} layers, best degrees per stage"
    found = best_fixed_ns(search, stages)
    if found is None:
        reason = "does not fit at any micro-batch size: the smallest node would need more memory than it has"
        return Comparison(name="even-split", iteration_time_s=None, summary=summary, reason=reason)
    return Comparison(name="even-split", iteration_time_s=found[0] / NS_PER_S, summary=summary)
