"""Slice queries: how often a slice planner is asked, where, and what one answer serves.

A slice is asked first for the smallest number of micro-batches in flight that it can meet; every plan says
how many it can hold, and the next question is asked just beyond that. So there are at most (pairs x
distinct feasibility limits) queries, and one answer serves every pipeline position up to its limit (paper,
section 5.2).

Where queries run is the executor's affair (:mod:`tangram.executors`). Answers are merged in the order of the
questions, so the number of workers changes nothing but the time.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from math import floor

from tangram.cost.types import StageCost
from tangram.executors.inline import InlineExecutor
from tangram.executors.protocol import Errand, Executor, Lost
from tangram.parallelizers.guard import Rejection, RejectionKind, guarded_plan
from tangram.parallelizers.invariants import recost, request_text
from tangram.parallelizers.protocols import SlicePlan, SlicePlanner, SliceRequest, TableRequest

NATIVE_PLANNERS = frozenset({"uniform"})
"""Slice planners of our own: the conformance test checks their answers, so that a search need not."""

QUERY_BUDGET_S = 60.0
"""Of one query; a parallelizer that announces more than half of it gets twice what it announces."""


@dataclass(frozen=True, slots=True)
class SliceAnswer:
    """One slice plan and what it serves.

    Attributes:
        plan: As planned for the first of ``slices``.
        costs: Of its stages, as the cost model sees them with one micro-batch in flight.
        max_in_flight: Largest window of its last stage that fits.
        slices: All slices of equal content.
    """

    plan: SlicePlan
    costs: tuple[StageCost, ...]
    max_in_flight: int
    slices: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class SliceQueries:
    """Executes slice queries.

    Attributes:
        executor: Where.
    """

    executor: Executor = field(default_factory=InlineExecutor)

    def ask(
        self, planner: SlicePlanner, request: TableRequest, counts: Counter[str], rejections: list[str]
    ) -> list[SliceAnswer]:
        """Asks about every slice of the request; equal contents once."""
        groups = _by_content(request)
        firsts = [slices[0] for slices in groups]
        errand = Errand(answer_slices, (planner, request), firsts, planner.capabilities.seconds_per_query)
        results: list[SliceResult | Lost] = self.executor.run(errand)
        answers: list[SliceAnswer] = []
        for slices, result in zip(groups, results, strict=True):
            if isinstance(result, Lost):
                counts["queries"] += 1
                rejections.append(_lost(planner, request, slices[0], result))
                continue
            found, num_queries, faults = result
            counts["queries"] += num_queries
            rejections += faults
            answers += [SliceAnswer(plan, costs, limit, tuple(slices)) for plan, costs, limit in found]
        return answers


SliceResult = tuple[list[tuple[SlicePlan, tuple[StageCost, ...], int]], int, list[str]]


def answer_slices(
    planner: SlicePlanner, request: TableRequest, slices: Sequence[tuple[int, int]]
) -> list[SliceResult]:
    """Answers for some slices: plans with their limits, the number of queries, and what was rejected."""
    return [_answer_slice(planner, request, start, stop) for start, stop in slices]


def _answer_slice(planner: SlicePlanner, request: TableRequest, start: int, stop: int) -> SliceResult:
    ends = stop == len(request.atoms)
    in_flight = 1 if ends else 2
    highest = 1 if ends else max(2, request.max_in_flight)
    found: list[tuple[SlicePlan, tuple[StageCost, ...], int]] = []
    faults: list[str] = []
    num_queries = 0
    budget_s = max(QUERY_BUDGET_S, 2 * planner.capabilities.seconds_per_query)
    while in_flight <= highest:
        num_queries += 1
        question = _slice_request(request, start, stop, in_flight)
        if planner.name in NATIVE_PLANNERS:
            plans = planner.plan(question)
        else:
            answer = guarded_plan(planner, question, budget_s)
            plans = answer.plans
            faults += [str(r) for r in answer.rejections]
        if not plans:
            break
        reached = in_flight
        for plan in plans:
            costs = stage_costs(request, plan)
            limit = max(in_flight, max_in_flight(request, costs))
            found.append((plan, costs, min(limit, highest)))
            reached = max(reached, limit)
        in_flight = reached + 1
    return found, num_queries, faults


def _lost(planner: SlicePlanner, request: TableRequest, first: tuple[int, int], lost: Lost) -> str:
    """Says that a question ended the processes that were asked it."""
    question = request_text(_slice_request(request, *first, 1 if first[1] == len(request.atoms) else 2))
    return str(Rejection(planner.name, RejectionKind.RAISED, lost.reason, question))


def stage_costs(request: TableRequest, plan: SlicePlan) -> tuple[StageCost, ...]:
    """Costs every stage of a plan with one micro-batch in flight; more only add their activations."""
    return tuple(recost(request, stage, 1) for stage in plan.stages)


def max_in_flight(request: TableRequest, costs: Sequence[StageCost]) -> int:
    """Returns the largest window of a plan's last stage at which every stage of it fits."""
    limit = request.max_in_flight
    for place, cost in enumerate(costs):
        offset = len(costs) - 1 - place
        if cost.activation_bytes <= 0:
            continue
        each = cost.activation_bytes * cost.upper_ratio
        room = cost.capacity_bytes - (cost.peak_bytes - each)
        fits = floor(room / each)
        if fits < request.num_micro_batches:
            limit = min(limit, fits - offset)
    return limit


def _slice_request(request: TableRequest, start: int, stop: int, in_flight: int) -> SliceRequest:
    rate = request.portion.nic_bandwidth_bytes_per_s
    return SliceRequest(
        model=request.model,
        atoms=request.atoms,
        start=start,
        stop=stop,
        portion=request.portion,
        micro_batch=request.micro_batch,
        num_micro_batches=request.num_micro_batches,
        in_flight=in_flight,
        link_in_bytes_per_s=rate if start > 0 else None,
        link_out_bytes_per_s=rate if stop < len(request.atoms) else None,
        job=request.job,
    )


def _by_content(request: TableRequest) -> list[list[tuple[int, int]]]:
    groups: dict[tuple[bool, tuple[str, ...]], list[tuple[int, int]]] = {}
    for start, stop in request.slices or ():
        content = tuple(atom.fingerprint for atom in request.atoms[start:stop])
        groups.setdefault((stop == len(request.atoms), content), []).append((start, stop))
    return list(groups.values())


def collapsed(rejections: Sequence[str]) -> list[str]:
    """Returns one sentence per parallelizer and reason, with the first request of each and how many more
    there were.
    """
    groups: dict[tuple[str, str], list[str]] = {}
    for text in sorted(set(rejections)):
        groups.setdefault((text.partition(" skipped for ")[0], text.rpartition(": ")[2]), []).append(text)
    return [
        texts[0] if len(texts) == 1 else f"{texts[0]} (and {len(texts) - 1} more such requests)"
        for texts in groups.values()
    ]
