"""Metis's two searches, one in the other.

*Inter-stage*: every order of the kinds of GPUs, every number of stages, every sequence of group sizes, every
number of micro-batches. *Intra-stage*: all stages begin with data parallelism alone; layers are balanced by
speed and, where a stage overflows, by memory; while that fails or was not at once right, the stage with the
least memory to spare halves dp and doubles tp. With the defects off, a balance that loses layers or leaves a
stage without any has failed too.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, islice, pairwise, permutations

from tangram.baselines.metis.cost import CostBreakdown, CostModel
from tangram.baselines.metis.groups import device_groups
from tangram.baselines.metis.layers import LayerBalancer
from tangram.baselines.metis.question import Layout, Question
from tangram.baselines.metis.stages import StageForm, StageForms
from tangram.job import divisors

_ATTEMPTS = 3
_CUT_BACK = 0.9  # Of the speed that would just fit: what an overfull stage is set to.
_SHARE_DONE = 0.01
_SHARE_NONE = 0.001


@dataclass(frozen=True, slots=True)
class Candidate:
    """One plan with its cost.

    Attributes:
        order: Of the kinds, by number.
        groups: GPUs of every stage.
        degrees: dp and tp of every stage.
        num_micro_batches: Per step.
        bounds: Layers of the stages.
        attempts: At balancing layers.
        forms: What the stages are.
        cost: As Metis sees it.
    """

    order: tuple[int, ...]
    groups: tuple[int, ...]
    degrees: tuple[tuple[int, int], ...]
    num_micro_batches: int
    bounds: tuple[int, ...]
    attempts: int
    forms: tuple[StageForm, ...]
    cost: CostBreakdown


@dataclass(frozen=True, slots=True)
class Found:
    """The outcome of a search.

    Attributes:
        candidates: The cheapest first; of equal cost, the one found first.
        num_inter: Inter-stage plans looked at.
        is_whole: Whether these were all there are.
    """

    candidates: tuple[Candidate, ...]
    num_inter: int
    is_whole: bool


def search(question: Question) -> Found:
    """Returns all plans that Metis costs."""
    batches = divisors(question.global_batch)[::-1]
    allowed = max(1, question.limits.max_plans // (question.num_orders * len(batches)))
    groupings = list(islice(_groupings(question), allowed + 1))
    whole = len(groupings) <= allowed
    forms, costs, balancer = StageForms(question), CostModel(question), LayerBalancer(question.profile.share)
    candidates: list[Candidate] = []
    num_inter = 0
    for number, order in enumerate(permutations(range(len(question.kinds)))):
        layout = Layout.of(question, order)
        for groups, costed in _costed(groupings[:allowed], question, number):
            num_inter += len(batches)
            for count in batches:
                walk = _Walk(question, layout, groups, count, forms, balancer)
                candidates += walk.candidates(costs, costed)
    candidates.sort(key=lambda candidate: candidate.cost.total)
    return Found(tuple(candidates), num_inter, whole)


def _groupings(question: Question) -> Iterator[tuple[int, ...]]:
    """Yields all group sizes, the fewest stages first."""
    limits = question.limits
    for num_stages in range(1, min(question.num_gpus, question.profile.num_layers) + 1):
        sizes = device_groups(num_stages, question.num_gpus, limits.variance, limits.max_blocks)
        yield from dict.fromkeys(sizes)


def _costed(
    groupings: Sequence[tuple[int, ...]], question: Question, number: int
) -> Iterator[tuple[tuple[int, ...], int]]:
    """Yields group sizes with the number of stages that count, for one order of the kinds."""
    if not question.defects.one_stage_costed or number == 0:
        yield from ((groups, len(groups)) for groups in groupings)
        return
    several = [groups for groups in groupings if len(groups) > 1]
    fewest = min(map(len, several), default=0)
    yield from ((groups, 1) for groups in several if len(groups) == fewest)
    yield from ((groups, len(groups)) for groups in several)


class _Walk:
    """The intra-stage search for one inter-stage plan."""

    def __init__(
        self,
        question: Question,
        layout: Layout,
        groups: tuple[int, ...],
        num_micro_batches: int,
        forms: StageForms,
        balancer: LayerBalancer,
    ) -> None:
        self._question, self._layout, self._groups = question, layout, groups
        self._count, self._forms, self._balancer = num_micro_batches, forms, balancer
        self._micro_batch = question.global_batch // num_micro_batches
        self._whole_only = not question.defects.invalid_plans
        self._ranks = list(pairwise((0, *accumulate(groups))))

    def candidates(self, costs: CostModel, costed: int) -> Iterator[Candidate]:
        """Yields the plans on the way from data to tensor parallelism that fit, as Metis sees it."""
        degrees: list[tuple[int, int]] | None = [(size, 1) for size in self._groups]
        spare: list[float] | None = None
        while degrees is not None:
            forms = self._stage_forms(degrees)
            if forms is not None:
                balanced = self._balanced(forms)
                spare = None
                if balanced is not None:
                    bounds, attempts, spare = balanced
                    cost = costs.cost(self._layout, self._groups, forms[:costed], bounds, self._count)
                    if cost is not None:
                        pairs, made = tuple(degrees), tuple(forms)
                        order, groups = self._layout.order, self._groups
                        yield Candidate(order, groups, pairs, self._count, bounds, attempts, made, cost)
                    if attempts == 1:
                        return
            degrees = _next_degrees(degrees, spare)

    def _stage_forms(self, degrees: Sequence[tuple[int, int]]) -> list[StageForm] | None:
        """Returns the stages, or None for degrees outside of what is profiled."""
        limits, made = self._question.limits, []
        for dp, tp in degrees:
            if not 1 <= self._micro_batch // dp <= limits.max_batch or tp > limits.max_tp:
                return None
        for (start, stop), pair in zip(self._ranks, degrees, strict=True):
            form = self._forms.form(self._layout, start, stop, pair, self._micro_batch)
            if form is None:
                return None
            made.append(form)
        return made

    def _balanced(self, forms: Sequence[StageForm]) -> tuple[tuple[int, ...], int, list[float]] | None:
        """Returns bounds, attempts, and what every stage has to spare; None where memory overflows."""
        total = sum(form.speed for form in forms)
        speed: list[float] | None = [form.speed / total for form in forms]
        room = [self._forms.capacity_mb(self._layout, *ranks) for ranks in self._ranks]
        if self._whole_only and not self._can_hold_all(forms, room):
            return None
        for attempt in range(1, _ATTEMPTS + 1):
            if speed is None:
                return None
            bounds = self._balancer.bounds(speed)
            demand = [form.demand_mb(*span) for form, span in zip(forms, pairwise(bounds), strict=True)]
            spare = [has - needs for has, needs in zip(room, demand, strict=True)]
            if min(spare) >= 0:
                whole = bounds[-1] == len(self._balancer.share) and all(a < b for a, b in pairwise(bounds))
                return (bounds, attempt, spare) if whole or not self._whole_only else None
            speed = _eased(speed, room, demand)
        return None

    def _can_hold_all(self, forms: Sequence[StageForm], room: Sequence[float]) -> bool:
        """Whether there is room for all layers, were they like the smallest of them, and the ends nothing."""
        layers = sum(int(has // form.least_demand_mb) for form, has in zip(forms, room, strict=True))
        return layers >= len(self._balancer.share) - 2


def _next_degrees(
    degrees: Sequence[tuple[int, int]], spare: Sequence[float] | None
) -> list[tuple[int, int]] | None:
    """Moves the stage with the least to spare that still has replicas towards tensor parallelism."""
    key = [1 / dp for dp, _ in degrees] if spare is None else spare
    for stage in sorted(range(len(degrees)), key=lambda idx: key[idx]):
        dp, tp = degrees[stage]
        if dp != 1:
            return [*degrees[:stage], (dp // 2, tp * 2), *degrees[stage + 1 :]]
    return None


def _eased(speed: Sequence[float], room: Sequence[float], demand: Sequence[float]) -> list[float] | None:
    """Returns shares of speed that relieve overfull stages at the cost of those with memory to spare; None
    where these have not enough.
    """
    eased, spare, lost = [], [], 0.0
    for share, has, needs in zip(speed, room, demand, strict=True):
        if has > needs:
            eased.append(share)
            spare.append(share * has / needs - share)
        else:
            eased.append(share * (has / needs) * _CUT_BACK)
            spare.append(0.0)
            lost += share - eased[-1]
    if sum(spare) < lost:
        return None
    given = [0.0] * len(spare)
    while lost > _SHARE_DONE:
        takers = sum(share for share, left in zip(speed, spare, strict=True) if left > _SHARE_NONE)
        if takers == 0.0:
            return None
        parts = [
            share / takers if left > _SHARE_NONE else 0.0 for share, left in zip(speed, spare, strict=True)
        ]
        for stage, part in enumerate(parts):
            taken = min(lost * part, spare[stage])
            given[stage] += taken
            spare[stage] -= taken
            lost -= taken
    return [add + share for add, share in zip(given, eased, strict=True)]
