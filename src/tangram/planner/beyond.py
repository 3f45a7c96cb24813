"""Beyond ``exact``: plans whose layers have degrees of their own within a stage, as ``auto`` looks for them.

``exact`` gives all layers of a stage one configuration. Stages whose layers differ cost several times as much
to find (:mod:`tangram.parallelizers.layerwise`). So they are looked for only where they may help: bounds on
them (:mod:`tangram.parallelizers.relaxed`) go through the same composition as stages do, which leaves the
micro-batch sizes that may hold a plan faster than the one in hand. Where none is left the plan is the best of
both spaces, to a thousandth. Else the stages of the best plan are put to a knapsack at last, which knows what
``layerwise`` leaves out (:mod:`tangram.planner.finer`).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from tangram.cluster.spec import Assumption
from tangram.parallelizers.relaxed import RelaxedTable
from tangram.planner.anew import asked_anew
from tangram.planner.referee import Found
from tangram.planner.search import Search
from tangram.units import NS_PER_S, format_duration

WORTH_FRAC = 0.001
"""What a micro-batch size must promise to be looked into: bounds and stages are rounded apart by less."""

_REFINEMENTS = 4  # of a plan, at most; the second one mostly finds nothing

FIRST = "exact"
SECOND = "layerwise"


@dataclass(frozen=True, slots=True)
class Beyond:
    """What was found beyond ``exact``.

    Attributes:
        found: The best plan that is known.
        before_ns: The plan in hand before.
        lowest_ns: No plan of either space takes less; at most ``before_ns``.
        num_sizes: Micro-batch sizes that might hold a faster plan.
        num_queries: Asked about them.
    """

    found: Found
    before_ns: int
    lowest_ns: int
    num_sizes: int
    num_queries: int

    def note(self) -> Assumption:
        """Says it in words."""
        before = format_duration(self.before_ns / NS_PER_S)
        least = format_duration(self.lowest_ns / NS_PER_S)
        if not self.num_sizes:
            return Assumption(
                "degrees per layer would not help",
                f"no stages whose layers differ make a plan possible that is faster than {before}",
            )
        after = format_duration(self.found.iteration_ns / NS_PER_S)
        what = "stages whose layers differ were looked for"
        if self.found.iteration_ns < self.before_ns:
            return Assumption(what, f"they make {after} of {before}; the bound with them is {least}")
        return Assumption(what, f"none makes {before} any shorter; the bound with them is {least}")


def with_layer_degrees(search: Search, found: Found) -> Beyond:
    """Looks for plans whose layers differ within a stage that are faster than the plan in hand.

    Args:
        search: Of ``exact``, run.
        found: Its answer, or a better plan.
    """
    before_ns = found.iteration_ns
    worth_ns = int(before_ns * (1 - WORTH_FRAC))
    first = asked_anew(search, search.options, incumbent_ns=before_ns)
    bounds, pairs = first.relaxed(RelaxedTable(), worth_ns)
    lowest_ns = min([before_ns, *bounds.values()])
    open_sizes = frozenset(size for size, bound_ns in bounds.items() if bound_ns < worth_ns)
    if not open_sizes:
        return Beyond(found, before_ns, lowest_ns, 0, 0)
    if search.progress is not None:
        search.progress("looking for stages whose layers differ")
    again = asked_anew(
        search,
        replace(search.options, parallelizers=(SECOND,)),
        progress=search.progress,
        incumbent_ns=before_ns,
        only_sizes=open_sizes,
        only_pairs=pairs,
    )
    better = again.run()
    if found.micro_batch.size in open_sizes:
        better = again.improved(found)  # Steps from the plan in hand, with layers that differ.
    search.rejections += again.rejections
    if better is not None and better.iteration_ns < before_ns:
        found = search.adopt(better)
    if found.micro_batch.size in open_sizes:
        found = search.adopt(_refined(again, found))
    return Beyond(found, before_ns, lowest_ns, len(open_sizes), again.counts["queries"])


def _refined(again: Search, found: Found) -> Found:
    """Puts the stages of a plan to the knapsack, as long as that makes it faster."""
    for _ in range(_REFINEMENTS):
        better = again.refined(found)
        if better.iteration_ns >= found.iteration_ns:
            break
        found = better
    return found
