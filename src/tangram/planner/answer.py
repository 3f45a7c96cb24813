"""The answer to a question: the search, plans for parts of the cluster, and a second opinion.

The space of ``exact`` holds every plan of ``uniform``, except for large clusters that are counted in blocks.
So where the search proves its answer, ``uniform`` has no better one. A micro-batch size that the search
leaves open might hold one; then the plans of ``uniform`` that may be faster are listed there, and the better
plan counts. Where the search has listed the plans of a size whose bound is below its best time, but they are
too many to execute, ``uniform`` need be asked only about slices and GPUs that occur in them: each stage of a
faster plan of ``uniform`` does, or one that is better in everything. Where even the plans of ``uniform`` are
too many, the search among them goes on as any search does, at the sizes that are open and with the same time
to beat.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace

from tangram.cluster.spec import Assumption
from tangram.errors import Stopped
from tangram.job import divisors
from tangram.parallelizers.contents import slice_contents
from tangram.parallelizers.uniform import UniformPlanner, equal_portion
from tangram.planner.anew import asked_anew
from tangram.planner.comparisons import Alone, best_alone, better_without
from tangram.planner.options import Pruning
from tangram.planner.problem import FAR_NS
from tangram.planner.referee import Found
from tangram.planner.search import Search
from tangram.planner.space import SearchSpace
from tangram.units import NS_PER_S, format_duration

MOST_QUESTIONS = 100_000
"""Slices times portions times micro-batch sizes, before pruning, up to which ``uniform`` is asked. Pruning
leaves about a tenth, at some 0.4 ms each: a few seconds.
"""

LISTED_LABELS, LISTED_PLANS = 50_000, 2_000
"""Of one micro-batch size, when plans of ``uniform`` are listed: labels, and plans simulated, at most."""

_ASKED = UniformPlanner.name

Phase = Callable[[str], AbstractContextManager[None]]


@dataclass(frozen=True, slots=True)
class SecondOpinion:
    """What ``uniform`` says of a question that the search did not settle.

    Attributes:
        gap_frac: Of the search, to its bound.
        ours_ns: The plan of the search.
        theirs_ns: The plan of ``uniform``; None without a faster one, or when it was not asked.
        num_questions: How many it would have been, where that was too many; else None.
    """

    gap_frac: float
    ours_ns: int
    theirs_ns: int | None
    num_questions: int | None = None

    @property
    def is_better(self) -> bool:
        """Whether the plan of ``uniform`` is the faster one."""
        return self.theirs_ns is not None and self.theirs_ns < self.ours_ns

    def note(self) -> Assumption:
        """Says it in words."""
        gap = f"the search ended with a gap of {100 * self.gap_frac:.2g} % to its bound"
        if not self.gap_frac:
            gap = f"so large a cluster is counted in a way that leaves some stages of {_ASKED} out"
        if self.num_questions is not None:
            what = f"{_ASKED} was not asked for a second opinion and may have a faster plan"
            return Assumption(what, f"{gap}, but that would be up to {self.num_questions} questions")
        ours = format_duration(self.ours_ns / NS_PER_S)
        if self.theirs_ns is None:
            return Assumption(f"a second opinion: {_ASKED} has no faster plan", gap)
        theirs = format_duration(self.theirs_ns / NS_PER_S)
        if self.is_better:
            return Assumption(
                f"a second opinion: the plan began as one of {_ASKED} with {theirs}", f"{gap}, with {ours}"
            )
        return Assumption(f"a second opinion: the best plan of {_ASKED} takes {theirs}", gap)


@dataclass(frozen=True, slots=True)
class Answer:
    """The best plan that is known.

    Attributes:
        found: The plan, as one of the search.
        alone: The best plan of one island by itself.
        second: What ``uniform`` says, where it was needed.
    """

    found: Found
    alone: Alone | None
    second: SecondOpinion | None


def best_answer(
    search: Search,
    phase: Phase = lambda name: nullcontext(),
    may_stop: AbstractContextManager[None] = nullcontext(),
) -> Answer | None:
    """Searches, and looks at whatever else may hold a better plan; None when nothing fits.

    Args:
        search: The question; not run yet.
        phase: Times a part of the work by name.
        may_stop: While it is entered, :class:`~tangram.errors.Stopped` may be raised anywhere; then the best
            plan so far is the answer.

    Raises:
        Stopped: There is no plan yet.
    """
    alone: Alone | None = None
    found: Found | None = None
    second: SecondOpinion | None = None
    try:
        with may_stop:
            with phase("single_islands_s"):
                for better in best_alone(search):
                    alone = better
                    search.incumbent(better.found)
            with phase("search_s"):
                found = search.run()
            if found is None:
                return None
            with phase("left_out_s"):
                found = search.with_left_out(better_without(search, found))
            with phase("second_opinion_s"):
                found, second = _with_second_opinion(search, found)
    except Stopped:
        stopped = search.stop()
        known = [plan for plan in (found, stopped) if plan is not None]
        if not known:
            raise
        found = min(known, key=lambda plan: plan.iteration_ns)
    return Answer(found, alone, second)


def _with_second_opinion(search: Search, found: Found) -> tuple[Found, SecondOpinion | None]:
    sizes = _open_sizes(search, found)
    if not sizes:
        return found, None
    gap_frac = 0.0 if search.is_proven(found) else found.iteration_ns / search.lower_bound_ns() - 1
    num_questions = len(sizes) * len(search.space.portions) * len(slice_contents(search.atoms).counts)
    if num_questions > MOST_QUESTIONS or search.space.is_large:
        return found, SecondOpinion(gap_frac, found.iteration_ns, None, num_questions)
    if search.progress is not None:
        search.progress(f"asking {_ASKED} for a second opinion")
    listed = _question(search, found.iteration_ns, sizes)
    theirs = listed.run_listing()
    if not listed.is_settled(min(found.iteration_ns, theirs.iteration_ns if theirs else FAR_NS)):
        theirs = listed.go_on()
    if theirs is not None and theirs.iteration_ns >= found.iteration_ns:
        theirs = None
    second = SecondOpinion(gap_frac, found.iteration_ns, theirs.iteration_ns if theirs else None)
    search.counts["second_opinion_queries"] = listed.counts["queries"]
    search.counts["second_opinion_is_better"] = int(second.is_better)
    if theirs is not None and second.is_better:
        found = search.with_left_out(search.improved(theirs))
    return found, second


def _question(search: Search, incumbent_ns: int, only_sizes: frozenset[int]) -> Search:
    """The same question to ``uniform``, with a time to beat, effort for a complete list, and no more for
    bounds.
    """
    effort = search.options.effort
    widest, narrowest = (
        replace(wide, listing_labels=LISTED_LABELS, listing_plans=LISTED_PLANS)
        for wide in (effort.widest, effort.narrowest)
    )
    merged = min(effort.merged_labels, LISTED_LABELS)
    effort = replace(effort, widest=widest, narrowest=narrowest, merged_labels=merged)
    return asked_anew(
        search,
        replace(search.options, parallelizers=(_ASKED,), effort=effort),
        progress=search.progress,
        incumbent_ns=incumbent_ns,
        only_sizes=only_sizes,
        only_pairs=search.pairs_below(incumbent_ns) if holds_uniform_stages(search.space) else None,
    )


def _open_sizes(search: Search, found: Found) -> frozenset[int]:
    """Micro-batch sizes at which ``uniform`` may have a better plan than a search that includes ``exact``.

    Pruning by the paper's rules promises nothing, and gets no second opinion.
    """
    options = search.options
    if "exact" not in options.parallelizers or options.pruning is Pruning.PAPER or options.effort.quick:
        return frozenset()
    if not holds_uniform_stages(search.space):
        return frozenset(size.size for size in search.sizes)
    return search.open_sizes(found)


def holds_uniform_stages(space: SearchSpace) -> bool:
    """Whether every stage of every uniform plan is on a portion of the space: of large clusters, which are
    counted in blocks, some are left out.
    """
    known = {
        (k, p.num_nodes, p.gpus_per_node) for k, p in zip(space.portion_islands, space.portions, strict=True)
    }
    return all(
        (k, part.num_nodes, part.gpus_per_node) in known
        for k, portion in zip(space.portion_islands, space.portions, strict=True)
        for number in divisors(portion.num_gpus)
        if (part := equal_portion(portion, number)) is not None
    )
