"""Is mixing worth it? The fastest single island alone, an even layer split over everything, and the plan."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from tangram.cluster.spec import Island
from tangram.plan.schema import Comparison
from tangram.planner.anew import asked_anew
from tangram.planner.fixed import best_fixed_ns, even_split
from tangram.planner.referee import Found
from tangram.planner.search import Search
from tangram.planner.space import search_space
from tangram.units import NS_PER_S, count_of

_GOOD_ENOUGH_FRAC = 0.02
_MOST_LEFT_OUT = 6


@dataclass(frozen=True, slots=True)
class Alone:
    """The best plan found that uses one island only.

    Attributes:
        found: The plan; its sizes and islands are those of the search by itself.
        island: The island.
    """

    found: Found
    island: Island


def best_alone(search: Search) -> Iterator[Alone]:
    """Plans every island by itself (quick search), the strongest first; yields plans that are ever better,
    none when no island holds the model.
    """
    if len(search.space.islands) == 1:
        return
    best: Alone | None = None
    precision = search.job.precision
    options = replace(search.options, effort=search.options.effort.hurried())
    for island in sorted(
        search.space.islands, key=lambda i: (-i.num_gpus * i.gpu.achieved_flop_per_s[precision], i.name)
    ):
        plan = asked_anew(
            search,
            options,
            space=search_space([island], precision, large=search.space.is_large),
            incumbent_ns=best.found.iteration_ns if best else None,
        ).run()
        if plan is not None and (best is None or plan.iteration_ns < best.found.iteration_ns):
            best = Alone(plan, island)
            yield best


def better_without(search: Search, found: Found) -> Found:
    """Returns the best of a plan, of the islands that it uses, and of quick plans that leave one island out
    from the start.

    Fewer islands are searched more finely: GPUs are counted in smaller units, and fewer labels compete. So
    that more GPUs do not make the plan worse where the search is far from a proof.
    """
    found = _searched_where_used(search, found)
    islands = search.space.islands
    gap_ns = found.iteration_ns - search.lower_bound_ns()
    if search.space.is_large or len(islands) < 3 or gap_ns <= _GOOD_ENOUGH_FRAC * found.iteration_ns:
        return found
    options = replace(search.options, effort=search.options.effort.hurried())
    for left_out in range(min(len(islands), _MOST_LEFT_OUT)):
        rest = [island for idx, island in enumerate(islands) if idx != len(islands) - 1 - left_out]
        space = search_space(rest, search.job.precision)
        trial = asked_anew(search, options, space=space, incumbent_ns=found.iteration_ns).run()
        if trial is not None and trial.iteration_ns < found.iteration_ns:
            found = search.adopt(trial)
    return found


def _searched_where_used(search: Search, found: Found) -> Found:
    """Asks about the islands of a plan alone, with all effort: as if nobody had added those it leaves out."""
    used = {stage.portion.island.name for stage in found.stages}
    rest = [island for island in search.space.islands if island.name in used]
    if search.space.is_large or len(rest) == len(search.space.islands) or search.is_proven(found):
        return found
    space = search_space(rest, search.job.precision)
    trial = asked_anew(search, search.options, space=space, incumbent_ns=found.iteration_ns).run()
    if trial is None or trial.iteration_ns >= found.iteration_ns:
        return found
    return search.adopt(trial)


def comparisons(search: Search, found: Found, alone: Alone | None) -> list[Comparison]:
    """Returns the three lines that every plan prints beside its answer."""
    used = {s.portion.island.name for s in found.stages}
    gpus = sum(s.portion.num_gpus for s in found.stages)
    stages, islands = count_of(len(found.stages), "stage"), count_of(len(used), "island")
    summary = f"{stages} on {count_of(gpus, 'GPU')} of {islands}"
    ours = Comparison(name="tangram", iteration_time_s=found.iteration_ns / NS_PER_S, summary=summary)
    return [_single_island(search, found, alone), _even_split(search), ours]


def _single_island(search: Search, found: Found, alone: Alone | None) -> Comparison:
    """The fastest island by itself: the plan itself where it uses one island only and is no slower."""
    used = {s.portion.island.name: s.portion.island for s in found.stages}
    if len(used) == 1 and (alone is None or found.iteration_ns <= alone.found.iteration_ns):
        alone = Alone(found, next(iter(used.values())))
    if alone is None:
        reason = "no island holds the model by itself"
        if search.is_stopped:
            reason = "the search was stopped before one was found"
        return Comparison(
            name="single-island", iteration_time_s=None, summary="one island alone", reason=reason
        )
    seconds = alone.found.iteration_ns / NS_PER_S
    island, stages = alone.island, count_of(len(alone.found.stages), "stage")
    what = "is all there is" if len(search.space.islands) == 1 else f"alone, {stages}"
    summary = f"{island.num_gpus}x {island.gpu.name} {what}"
    return Comparison(name="single-island", iteration_time_s=seconds, summary=summary)


def _even_split(search: Search) -> Comparison:
    """Every node one stage, layers split evenly, as one would type it."""
    stages = even_split(search.atoms, search.space.islands)
    layers = [len({i for a in search.atoms[s.start : s.stop] for i in a.layer_idxs}) for s in stages]
    if len(layers) <= 8:
        counts = "/".join(map(str, layers))
    elif min(layers) == max(layers):
        counts = str(layers[0])
    else:
        counts = f"{min(layers)} to {max(layers)}"
    summary = f"{count_of(len(stages), 'node')}, {counts} layers, best degrees per stage"
    found = best_fixed_ns(search, stages)
    if found is None:
        reason = "does not fit at any micro-batch size: a node would need more memory than it has"
        return Comparison(name="even-split", iteration_time_s=None, summary=summary, reason=reason)
    return Comparison(name="even-split", iteration_time_s=found[0] / NS_PER_S, summary=summary)
