"""The parallelizer ``aceso``: iterative bottleneck alleviation for a slice on an island portion.

One search per number of stages; a slice gets a budget of pipelines to cost that is in proportion to its share
of the model's atoms, so small slices are quick. What does not fit is searched for anew with more micro-
batches in flight, so the answer is a frontier: plans that fit with more and more of them, the fastest for
each. It does not depend on how many the request asks about, only what is returned of it does; so asking for
fewer never brings a slower plan.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

from tangram.cluster.spec import Portion
from tangram.parallelizers.aceso.costs import SliceSpace, slice_space
from tangram.parallelizers.aceso.search import Search
from tangram.parallelizers.aceso.space import Judged, Pipeline, judge
from tangram.parallelizers.book import StageBook, stage_book
from tangram.parallelizers.protocols import Capabilities, SlicePlan, SliceRequest
from tangram.parallelizers.uniform import dictated_stages

MAX_STAGES = 16
BUDGET = 100
"""Pipelines to cost for all atoms of a model; docs/parallelizers.md has what more of them bring."""

NEAR = 1.1
"""Plans of fewer stages are returned up to this factor above the fastest: less is held in front of them."""

FAR = 1.2
"""Numbers of stages above this factor of the best one are not searched for more micro-batches in flight."""

_LEAST, _LEAST_AGAIN = 8, 4  # For any number of stages, at first and with more micro-batches in flight.
_REMEMBERED = 32  # Slices: the next question about one comes right after.
_WINDOWS = (1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16, 20, 24, 32)  # Searched for; beyond them by doubling.


class AcesoPlanner:
    """Plans a slice by Aceso's search.

    Args:
        budget: Pipelines to cost where the slice is the whole model; ``BUDGET`` by default.
        max_stages: Most stages of a slice.
    """

    name = "aceso"
    capabilities = Capabilities(seconds_per_query=0.003)

    def __init__(self, budget: int | None = None, max_stages: int = MAX_STAGES) -> None:
        self.budget = BUDGET if budget is None else budget
        self.max_stages = max_stages

    def plan(self, request: SliceRequest) -> Sequence[SlicePlan]:
        """Returns plans that fit at ``request.in_flight``, the fastest first.

        With stage times ``t_i``, step-end times ``u_i`` and ``m`` micro-batches a plan is judged by
        ``sum t_i + (m - 1) max t_i + max u_i``. A slower plan is returned only if it fits with more
        micro-batches in flight, or has fewer stages and comes near.
        """
        positions = _positions(request)
        if positions is None:
            return ()
        portion = request.portion
        shape = portion.num_nodes, portion.gpus_per_node
        windows = _windows(request)
        frontier = _frontier(stage_book(request), *shape, positions, windows, self.budget, self.max_stages)
        return frontier.plans(request.in_flight)


@dataclass(frozen=True, slots=True, eq=False)
class _Frontier:
    """The best pipelines met for a slice.

    Attributes:
        space: The slice's.
        windows: Numbers in flight that were searched for, ascending.
        met: The pipelines.
    """

    space: SliceSpace
    windows: tuple[int, ...]
    met: tuple[Pipeline, ...]

    def plans(self, in_flight: int) -> tuple[SlicePlan, ...]:
        """Returns plans for this number in flight and for larger ones that were searched, the fastest first.

        For each the fastest, and slower ones of fewer stages that come near: the stages in front of them hold
        fewer micro-batches.
        """
        found: dict[SlicePlan, float] = {}
        kept: list[_Fitting] = []
        for window in [*(w for w in reversed(self.windows) if w > in_flight), in_flight]:
            space = self.space.at(window)
            fitting = [j for j in (judge(space, p) for p in self.met) if j.over == 0]
            # What fits with more micro-batches in flight fits with fewer.
            kept = _useful(kept + [_Fitting(j.iteration, window, j.pipeline) for j in fitting])
            for fit in kept:
                found.setdefault(self.space.at(fit.window).plan(fit.pipeline), fit.iteration)
        return tuple(sorted(found, key=lambda plan: found[plan]))


class _Fitting(NamedTuple):
    """A pipeline that fits with a number of micro-batches in flight, and its iteration time then."""

    iteration: float
    window: int
    pipeline: Pipeline


def _useful(fitting: Sequence[_Fitting]) -> list[_Fitting]:
    """Returns the fastest, and those near it that have fewer stages than all faster ones."""
    useful: list[_Fitting] = []
    for fit in sorted(fitting, key=lambda f: (f.iteration, len(f.pipeline.stops), -f.window)):
        if not useful:
            useful.append(fit)
        elif fit.iteration > NEAR * useful[0].iteration:
            break
        elif len(fit.pipeline.stops) < len(useful[-1].pipeline.stops):
            useful.append(fit)
    return useful


@lru_cache(maxsize=_REMEMBERED)
def _frontier(
    book: StageBook,
    num_nodes: int,
    gpus_per_node: int,
    positions: tuple[int, ...],
    windows: tuple[int, ...],
    budget: int,
    max_stages: int,
) -> _Frontier:
    """Searches for one number in flight after the other, until the best pipeline fits with all."""
    portion = Portion(book.island, num_nodes, gpus_per_node)
    space = slice_space(book, portion, positions, min(book.num_micro_batches, windows[-1] + max_stages - 1))
    counts = _stage_counts(book, space, max_stages)
    share = (positions[-1] - positions[0]) / len(book.atoms)
    met: dict[Pipeline, None] = {}
    bests: dict[int, Judged] = {}
    for window in windows:
        here = space.at(window)
        again = {n: judge(here, best.pipeline) for n, best in bests.items()}
        kept = {n: best for n, best in again.items() if best.rank == bests[n].rank}
        if again and min(again.values(), key=_rank).rank == min(bests.values(), key=_rank).rank:
            continue
        open_ = _hopeful(bests) if bests else counts
        open_ = [n for n in open_ if n not in kept]
        bests = kept | _searched(here, open_, round(budget * share), again)
        met.update(dict.fromkeys(best.pipeline for best in bests.values()))
        if all(best.over > 0 for best in bests.values()):
            break
    return _Frontier(space, windows, tuple(met))


def _hopeful(bests: Mapping[int, Judged]) -> list[int]:
    """Returns the numbers of stages that are not far from the best one."""
    best = min(bests.values(), key=_rank)
    if best.over > 0:
        return list(bests)
    return [n for n, j in bests.items() if j.over == 0 and j.iteration <= FAR * best.iteration]


def _searched(
    space: SliceSpace, counts: Sequence[int], budget: int, before: Mapping[int, Judged]
) -> dict[int, Judged]:
    """Returns the best pipeline of every number of stages; the search begins with those from before."""
    found = {}
    for place, num_stages in enumerate(counts):
        part = max(_LEAST_AGAIN if before else _LEAST, budget // (len(counts) - place))
        seeds = [before[num_stages].pipeline] if num_stages in before else []
        search = Search(space, num_stages, part, seeds=seeds)
        search.run()
        budget -= len(search.costed)
        if search.best is not None:
            found[num_stages] = search.best
    return found


def _rank(judged: Judged) -> tuple[float, float]:
    return judged.rank


def _stage_counts(book: StageBook, space: SliceSpace, max_stages: int) -> list[int]:
    """Returns the numbers of stages to search, ascending."""
    pins = book.job.pins
    if not space.sizes:
        return []
    most = min(space.num_gpus // space.sizes[0], space.num_atoms, max_stages)
    if pins.layers_per_stage is not None:
        return [space.num_atoms]
    if pins.pp is None:
        return list(range(1, most + 1))
    whole = space.positions[-1] - space.positions[0] == len(book.atoms)
    return [n for n in range(1, most + 1) if (n == pins.pp if whole else n <= pins.pp)]


def _positions(request: SliceRequest) -> tuple[int, ...] | None:
    """Returns where stages may begin and end; None where the slice contradicts what the user dictates."""
    dictated = request.job.pins.layers_per_stage
    if dictated is None:
        return tuple(range(request.start, request.stop + 1))
    for num_stages in range(1, len(dictated) + 1):
        stages = dictated_stages(request, num_stages, dictated)
        if stages is not None:
            return (request.start, *(stop for _, stop in stages))
    return None


def _windows(request: SliceRequest) -> tuple[int, ...]:
    """Returns the numbers of micro-batches in flight to search for; they depend little on the request's."""
    most, num = _WINDOWS[-1], request.num_micro_batches
    if request.stop == len(request.atoms):
        return (min(request.in_flight, num),)  # It ends the pipeline: nobody asks for another one.
    while most < min(request.in_flight, num):
        most *= 2
    windows = [w for w in _WINDOWS[1:] if w < num]
    while windows and windows[-1] < min(most, num):
        windows.append(min(2 * windows[-1], most, num))
    return tuple(windows) or (num,)
