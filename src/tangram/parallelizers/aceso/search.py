"""Aceso's search for one number of stages: relieve the bottleneck, over several steps where one won't do.

From a pipeline the search goes depth first: all steps of a group are applied to the bottleneck; if one of the
results beats the pipeline it began with, it begins anew there; else it follows the results, the best first,
up to ``max_hops`` steps deep. Where nothing is found it restarts from the best pipeline that was met and not
yet explored. No pipeline is costed twice. Effort is counted in pipelines costed, so that results do not
depend on the machine.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from tangram.parallelizers.aceso.degrees import starting_sizes, with_best_degrees
from tangram.parallelizers.aceso.moves import Resource, bottleneck, bottlenecks
from tangram.parallelizers.aceso.primitives import groups
from tangram.parallelizers.aceso.space import Judged, Pipeline, Space, judge

MAX_HOPS = 7
PER_TRIAL = 100
"""Pipelines to cost before another bottleneck is tried: no chain of steps takes all of the budget."""

NEAR = 1.2
"""Pipelines up to this factor above the best one are kept to restart from."""


@dataclass(slots=True, eq=False)
class Search:
    """The search for one number of stages.

    Attributes:
        space: Where.
        num_stages: Of every pipeline.
        budget: Pipelines to cost.
        per_trial: The most of them for one bottleneck of one pipeline.
        max_hops: Steps in a chain.
        seeds: Pipelines to begin with, besides equal stages.
        best: The best pipeline so far; None before the first.
        costed: All of them, in the order in which they were met.
    """

    space: Space
    num_stages: int
    budget: int
    per_trial: int = PER_TRIAL
    max_hops: int = MAX_HOPS
    seeds: Sequence[Pipeline] = ()
    best: Judged | None = None
    costed: dict[Pipeline, Judged] = field(default_factory=dict)
    _open: list[Judged] = field(default_factory=list)
    _explored: set[Pipeline] = field(default_factory=set)
    _trial_end: int = 0

    def run(self) -> None:
        """Searches until the budget is spent or nothing is left to explore."""
        self._open += [found for start in self._starts() if (found := self._cost(start)) is not None]
        while self._left() > 0:
            current = self._next()
            if current is None:
                return
            while current is not None and self._left() > 0:
                current = self._trial(current)

    def _starts(self) -> Iterator[Pipeline]:
        """Yields the pipelines to begin with: those given; equal stages, of the smallest micro-batch."""
        yield from self.seeds
        stops = even_stops(self.space.num_atoms, self.num_stages)
        for sizes in starting_sizes(self.space, self.num_stages):
            for micro_batch in self.space.micro_batches:
                found = with_best_degrees(self.space, micro_batch, stops, sizes)
                if found is not None:
                    yield found
                    break

    def _left(self) -> int:
        return self.budget - len(self.costed)

    def _cost(self, pipeline: Pipeline) -> Judged | None:
        """Costs a pipeline; None when it is not new."""
        if pipeline in self.costed:
            return None
        judged = self.costed[pipeline] = judge(self.space, pipeline)
        if self.best is None or judged.rank < self.best.rank:
            self.best = judged
        return judged

    def _next(self) -> Judged | None:
        """Takes the best pipeline to restart from."""
        self._open = [j for j in self._open if j.pipeline not in self._explored]
        if not self._open:
            return None
        found = min(self._open, key=lambda j: j.rank)
        self._open.remove(found)
        return found

    def _trial(self, start: Judged) -> Judged | None:
        """Returns a pipeline better than the best one at the beginning, or None."""
        assert self.best is not None
        goal = self.best.rank
        self._explored.add(start.pipeline)
        for stage, resource in bottlenecks(start):
            self._trial_end = len(self.costed) + self.per_trial
            found = self._hop(start, stage, resource, goal, 1)
            if found is not None:
                return found
            if self._left() <= 0:
                return None
        return None

    def _hop(
        self, judged: Judged, stage: int, resource: Resource, goal: tuple[float, float], depth: int
    ) -> Judged | None:
        self._explored.add(judged.pipeline)
        for group in groups(judged, stage, resource):
            children: list[Judged] = []
            for primitive in group:
                made = primitive.apply(self.space, judged, stage, resource)
                children += [child for p in made if (child := self._cost(p)) is not None]
            children.sort(key=lambda c: c.rank)
            self._open += [child for child in children if self._is_near(child)]
            if children and children[0].rank < goal:
                return children[0]
            if depth >= self.max_hops:
                continue
            for child in children:
                if self._left() <= 0 or len(self.costed) >= self._trial_end:
                    return None
                found = self._hop(child, *bottleneck(child), goal, depth + 1)
                if found is not None:
                    return found
        return None

    def _is_near(self, judged: Judged) -> bool:
        """Returns whether to restart from it some time: it is not far from the best, or nothing fits yet."""
        best = self.best
        if best is None or best.over > 0:
            return True
        return judged.over == 0 and judged.iteration <= NEAR * best.iteration


def even_stops(num_atoms: int, num_stages: int) -> tuple[int, ...]:
    """Returns the ends of stages of equally many atoms; what is left over goes to the last one."""
    each = num_atoms // num_stages
    return (*(each * i for i in range(1, num_stages)), num_atoms)


def search_all(space: Space, budget: int, max_stages: int = 16) -> Judged | None:
    """Returns the best pipeline over all numbers of stages, each with its own budget; None when none fits."""
    found: list[Judged] = []
    for num_stages in range(1, min(space.num_gpus, space.num_atoms, max_stages) + 1):
        search = Search(space, num_stages, budget)
        search.run()
        if search.best is not None and search.best.over == 0:
            found.append(search.best)
    return min(found, key=lambda j: j.iteration, default=None)
