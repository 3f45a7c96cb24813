"""Slice queries: how often a slice planner is asked, where, and what one answer serves.

A slice is asked first for the smallest number of micro-batches in flight that it can meet; every plan says
how many it can hold, and the next question is asked just beyond that. So there are at most (pairs x
distinct feasibility limits) queries, and one answer serves every pipeline position up to its limit (paper,
section 5.2).

Queries run in this process until the estimated work exceeds ``POOL_THRESHOLD_S``; then in spawned
processes. Answers are merged in the order of the questions, so the number of workers changes nothing but
the time.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from math import floor
from typing import TYPE_CHECKING

from tangram.cost.types import StageCost
from tangram.parallelizers.guard import guarded_plan
from tangram.parallelizers.invariants import recost
from tangram.parallelizers.protocols import SlicePlan, SlicePlanner, SliceRequest, TableRequest

if TYPE_CHECKING:
    from concurrent.futures import ProcessPoolExecutor

NATIVE_PLANNERS = frozenset({"uniform"})
"""Slice planners of our own: the conformance test checks their answers, so that a search need not."""

POOL_THRESHOLD_S = 2.0
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


@dataclass(slots=True)
class SliceQueries:
    """Executes slice queries.

    Attributes:
        workers: Processes; 0 decides by the estimated work, 1 stays in this process.
    """

    workers: int = 0
    _pool: ProcessPoolExecutor | None = field(default=None, repr=False)

    def close(self) -> None:
        """Ends the worker processes, if any."""
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)
            self._pool = None

    def ask(
        self, planner: SlicePlanner, request: TableRequest, counts: Counter[str], rejections: list[str]
    ) -> list[SliceAnswer]:
        """Asks about every slice of the request; equal contents once."""
        groups = _by_content(request)
        firsts = [slices[0] for slices in groups]
        if self._wants_pool(planner, len(firsts)):
            pool = self._started()
            size = max(1, len(firsts) // (4 * self._num_workers()))
            chunks = [firsts[i : i + size] for i in range(0, len(firsts), size)]
            jobs = [pool.submit(answer_slices, planner, request, chunk) for chunk in chunks]
            results = [result for job in jobs for result in job.result()]
        else:
            results = answer_slices(planner, request, firsts)
        answers: list[SliceAnswer] = []
        for slices, (found, num_queries, faults) in zip(groups, results, strict=True):
            counts["queries"] += num_queries
            rejections += faults
            answers += [SliceAnswer(plan, costs, limit, tuple(slices)) for plan, costs, limit in found]
        return answers

    def _num_workers(self) -> int:
        return self.workers or os.cpu_count() or 1

    def _wants_pool(self, planner: SlicePlanner, num_slices: int) -> bool:
        if self.workers == 1 or num_slices < 2:
            return False
        if self.workers > 1 or self._pool is not None:
            return True
        return (
            planner.capabilities.seconds_per_query * num_slices > POOL_THRESHOLD_S and self._num_workers() > 1
        )

    def _started(self) -> ProcessPoolExecutor:
        if self._pool is None:
            # Imported where it is needed: most plans start no process.
            import multiprocessing
            from concurrent.futures import ProcessPoolExecutor

            context = multiprocessing.get_context("spawn")
            self._pool = ProcessPoolExecutor(self._num_workers(), mp_context=context)
        return self._pool


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
