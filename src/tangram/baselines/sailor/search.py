"""Sailor's search: pipeline depths, micro-batches, replicas, and a dynamic programme over the stages.

For every number of stages (layers split evenly), micro-batch, order of regions and number of replicas,
stages take GPUs one after the other. A state is the stage and the GPUs that are left in the current
region, by zone and type; a choice is how many replicas each type gives to the stage. A stage is as fast as
its slowest type, so a split whose stage alone takes as long as that of the split tried before is skipped:
of the mixed ones only the first counts that leaves enough for the next stage. Of the stages behind, only
the fastest pipeline is kept per state, though another could suit the stages in front better. Both make the
search fast and inexact; they are its method, no defect.

Numbers of replicas are tried from the largest down, until one is no better than the one before.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import combinations, pairwise, permutations

from tangram.baselines.sailor.clock import Clock, Tail
from tangram.baselines.sailor.profile import Endpoint, Run, SailorPlan, SailorProblem, SailorStage
from tangram.baselines.sailor.rules import Degrees, even_cuts, replica_counts, tensor_degrees
from tangram.baselines.sailor.simulator import fits, simulated_s

Counts = tuple[tuple[int, ...], ...]
"""GPUs left in the zones of a region, per type."""

Regions = tuple[tuple[int, ...], ...]
"""Zones of the regions that a pipeline may use, in order."""


def search(problem: SailorProblem, *, defects: bool) -> list[SailorPlan]:
    """Returns the plan of every choice of the outer loops that has one, in the order in which they are found.

    The published program returns all of them, but passes over regions in which no type of GPU could hold a
    pipeline by itself. Repaired, plans are left out that cannot be faster, by either of Sailor's clocks, than
    one that was found.

    Args:
        problem: What is asked.
        defects: Whether to do as the published program does.
    """
    plans: list[SailorPlan] = []
    best_s = math.inf
    orders = region_orders(problem)
    for num_stages in range(1, problem.num_layers + 1):
        cuts = even_cuts(problem.num_layers, num_stages)
        for micro_batch in problem.micro_batches:
            counts = replica_counts(problem, micro_batch, defects=defects)
            for degrees in tensor_degrees(problem, cuts, micro_batch, defects=defects):
                if all(tps is None for tps in degrees):
                    continue
                clock = Clock(problem, cuts, micro_batch, degrees, defects=defects)
                for regions in orders:
                    if defects and not _one_type_suffices(problem, regions, degrees):
                        continue
                    found = [plan for plan in _descend(clock, regions, counts, best_s) if fits(problem, plan)]
                    plans += found
                    if not defects:
                        judged = (simulated_s(problem, plan, defects=False) for plan in found)
                        best_s = min([best_s, *judged])
    return plans


def best_plan(problem: SailorProblem, *, defects: bool) -> SailorPlan | None:
    """Returns the plan that Sailor would run; None when it finds none.

    Published, that is the first by the search's own clock; repaired, the first by the simulator's, which
    counts transfers in more detail.
    """
    plans = search(problem, defects=defects)
    if defects:
        return min(plans, key=lambda plan: plan.estimate_s, default=None)
    return min(plans, key=lambda plan: simulated_s(problem, plan, defects=False), default=None)


def _descend(clock: Clock, regions: Regions, counts: list[int], best_s: float) -> list[SailorPlan]:
    """Tries numbers of replicas from the largest down, until one is no better than the one before."""
    plans: list[SailorPlan] = []
    num_types = len(clock.problem.gpus)
    there = [sum(zone.gpus[gpu] for zone in clock.problem.zones) for gpu in range(num_types)]
    for dp in counts:
        if clock.at_least_s(dp, 0, there) >= best_s:
            continue
        tail = Stages(clock, regions, dp, best_s).best()
        if tail is None:
            continue
        if plans and tail.total_s >= plans[-1].estimate_s:
            break
        stages = tuple(
            SailorStage(start, stop, runs)
            for (start, stop), runs in zip(clock.cuts, tail.stages(), strict=True)
        )
        plans.append(SailorPlan(clock.micro_batch, dp, stages, tail.total_s))
    return plans


@dataclass(slots=True)
class Stages:
    """The dynamic programme, for one number of replicas and one order of regions.

    Attributes:
        clock: Of the cuts, the micro-batch and the tps.
        regions: Zones of the regions that may be used, in order.
        dp: Replicas of every stage.
        cutoff_s: What cannot be part of a faster plan is passed over.
    """

    clock: Clock
    regions: Regions
    dp: int
    cutoff_s: float = math.inf
    _known: dict[tuple[int, int, Counts], Tail | None] = field(default_factory=dict)

    def best(self) -> Tail | None:
        """Returns the fastest pipeline found; None where the GPUs do not suffice."""
        return self._solve(0, 0, self._whole(0))

    def _whole(self, region: int) -> Counts:
        zones = self.clock.problem.zones
        return tuple(zones[zone].gpus for zone in self.regions[region])

    def _solve(self, idx: int, region: int, left: Counts) -> Tail | None:
        key = idx, region, left
        if key not in self._known:
            self._known[key] = self._search(idx, region, left)
        return self._known[key]

    def _search(self, idx: int, region: int, left: Counts) -> Tail | None:
        best: Tail | None = None
        if region == len(self.regions) - 1:
            there = [sum(counts) for counts in zip(*left, strict=True)]
            if self.clock.at_least_s(self.dp, idx, there) >= self.cutoff_s:
                return None
        is_last = idx == len(self.clock.cuts) - 1
        before_s: float | None = None
        for split in splits(self._room(idx, left), self.dp):
            runs, after = self._take(idx, region, left, split)
            where = None if is_last else self._next(idx + 1, region, after)
            if not is_last and where is None:
                continue
            front = self.clock.alone(idx, runs, self.dp)
            tail: Tail | None = front
            if where is not None:
                if front.total_s == before_s:
                    continue
                before_s = front.total_s
                if (self.clock.num_micro_batches(self.dp) - 1) * front.compute_s >= self.cutoff_s:
                    continue
                rest = self._solve(idx + 1, *where)
                tail = None if rest is None else self.clock.joined(idx, front, rest, self.dp)
            if tail is not None and (best is None or tail.total_s < best.total_s):
                best = tail
        return best

    def _room(self, idx: int, left: Counts) -> list[int]:
        """Replicas of stage ``idx`` that the GPUs left could hold, per type."""
        room = []
        for gpu, tps in enumerate(self.clock.degrees):
            room.append(0 if tps is None else sum(zone[gpu] // tps[idx] for zone in left))
        return room

    def _take(
        self, idx: int, region: int, left: Counts, split: tuple[int, ...]
    ) -> tuple[tuple[Run, ...], Counts]:
        """Fills the zones of a region one after the other; returns the replicas and what is left."""
        after = [list(zone) for zone in left]
        runs = []
        for gpu, (replicas, tps) in enumerate(zip(split, self.clock.degrees, strict=True)):
            if not replicas:
                continue
            assert tps is not None, "a type that cannot hold every stage gets none"
            for zone, counts in zip(self.regions[region], after, strict=True):
                taken = min(replicas, counts[gpu] // tps[idx])
                if taken:
                    counts[gpu] -= taken * tps[idx]
                    replicas -= taken
                    runs.append(Run(Endpoint(zone, gpu, tps[idx]), taken))
        return tuple(runs), tuple(tuple(zone) for zone in after)

    def _next(self, idx: int, region: int, left: Counts) -> tuple[int, Counts] | None:
        """Where stage ``idx`` goes: what is left here, or else the next region; None where there is no
        other.
        """
        if sum(self._room(idx, left)) >= self.dp:
            return region, left
        if region + 1 == len(self.regions):
            return None
        return region + 1, self._whole(region + 1)


def splits(room: list[int], dp: int) -> Iterator[tuple[int, ...]]:
    """Yields the ways to share replicas among types; those with fewest of the first type first."""
    most = min(dp, room[0])
    if len(room) == 1:
        if most == dp:
            yield (dp,)
        return
    least = max(0, dp - sum(room[1:]))
    for number in range(least, most + 1):
        for rest in splits(room[1:], dp - number):
            yield (number, *rest)


def region_orders(problem: SailorProblem) -> list[Regions]:
    """Returns the zones of every set of regions, region after region in the set's best order.

    The best order has the widest bottleneck between neighbours; single regions come first, then the sets
    with the widest bottleneck. A width is the largest rate between any types, one GPU at a time.
    """
    regions = problem.regions()
    found: list[tuple[float, tuple[str, ...]]] = []
    for size in range(1, len(regions) + 1):
        for chosen in combinations(sorted(regions), size):
            orders = [(_width(problem, regions, order), order) for order in permutations(chosen)]
            found.append(max(orders, key=lambda entry: entry[0]))
    found.sort(key=lambda entry: -entry[0])
    return [tuple(regions[name] for name in order) for _, order in found]


def _one_type_suffices(problem: SailorProblem, regions: Regions, degrees: Degrees) -> bool:
    """Whether GPUs of one type could hold one pipeline by themselves."""
    for gpu, tps in enumerate(degrees):
        there = sum(problem.zones[zone].gpus[gpu] for zones in regions for zone in zones)
        if tps is not None and there >= sum(tps):
            return True
    return False


def _width(problem: SailorProblem, regions: dict[str, tuple[int, ...]], order: tuple[str, ...]) -> float:
    return min(
        (_between(problem, regions[a][0], regions[b][0]) for a, b in pairwise(order)), default=math.inf
    )


def _between(problem: SailorProblem, a: int, b: int) -> float:
    types = range(len(problem.gpus))
    ends = [(Endpoint(a, g, 1), Endpoint(b, h, 1)) for g in types for h in types]
    return max(problem.network.link(x, y).peak_bytes_per_s for x, y in ends)
