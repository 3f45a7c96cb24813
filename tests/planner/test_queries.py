"""Slice queries: how many are asked, that their answers equal asking at every position, and that a
parallelizer that misbehaves is named and skipped.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest
from small_jobs import small_cluster, small_model, small_node

import tangram
from tangram.cluster.islands import build_islands
from tangram.cluster.spec import Portion
from tangram.cost.configs import legal_configs
from tangram.cost.stage import stage_cost
from tangram.errors import TangramError
from tangram.executors.choice import new_executor
from tangram.job import Job, Pins, Precision
from tangram.model.atoms import cut_atoms
from tangram.parallelizers.exact import ExactStageTable
from tangram.parallelizers.guard import Answer, guarded_plan
from tangram.parallelizers.protocols import (
    Capabilities,
    OptionTable,
    SlicePlan,
    SlicePlanner,
    SliceRequest,
    StageChoice,
    TableRequest,
)
from tangram.parallelizers.uniform import UniformPlanner
from tangram.planner import queries, tables
from tangram.planner.options import PlanOptions
from tangram.planner.queries import SliceAnswer, SliceQueries, max_in_flight, stage_costs
from tangram.units import GB

MAX_IN_FLIGHT = 12


def request(memory_bytes: float, *, gpus: int = 2, num_micro_batches: int = 16) -> TableRequest:
    """All slices of a small model on GPUs of this memory."""
    model = small_model(5)
    atoms = cut_atoms(model)
    job = Job(2 * num_micro_batches, 2048, Precision.FP16)
    cluster = small_cluster([small_node("a", "V100-16GB-SXM2", gpus, memory_bytes)])
    (island,) = build_islands(cluster, job.precision)
    slices = [(i, j) for i in range(len(atoms)) for j in range(i + 1, len(atoms) + 1)]
    return TableRequest(
        model=model,
        atoms=atoms,
        portion=Portion(island, 1, gpus),
        micro_batch=2,
        num_micro_batches=num_micro_batches,
        max_in_flight=min(MAX_IN_FLIGHT, num_micro_batches),
        max_time_s=float("inf"),
        job=job,
        slices=slices,
    )


@dataclass
class Counting:
    """A slice planner that counts what it is asked."""

    inner: Any
    name: str = "counting"
    capabilities: Capabilities = field(default_factory=Capabilities)
    asked: list[tuple[int, int, int]] = field(default_factory=list)

    def plan(self, request: SliceRequest) -> Sequence[SlicePlan]:
        self.asked.append((request.start, request.stop, request.in_flight))
        plans: Sequence[SlicePlan] = self.inner.plan(request)
        return plans


class OneStage:
    """Plans each slice as one stage, in the configurations given: quickest first, or only the quickest."""

    name = "one-stage"
    capabilities = Capabilities()

    def __init__(self, *, only_first: bool) -> None:
        self.only_first = only_first

    def plan(self, request: SliceRequest) -> Sequence[SlicePlan]:
        found = []
        configs = legal_configs(request.model, request.portion, request.micro_batch, request.job)
        for config in configs:
            for again in (False, True):
                recomputed = tuple(again and bool(atom.layer_idxs) for atom in request.slice)
                cost = stage_cost(
                    request.model,
                    request.slice,
                    request.portion,
                    config,
                    request.micro_batch,
                    request.num_micro_batches,
                    request.in_flight,
                    recomputed,
                    request.job,
                )
                if cost.peak_bytes <= cost.capacity_bytes:
                    choice = StageChoice(request.start, request.stop, request.portion, config, recomputed)
                    found.append((cost.time_s, len(found), SlicePlan((choice,))))
        plans = [plan for _, _, plan in sorted(found, key=lambda item: item[:2])]
        return plans[:1] if self.only_first else plans


def ask(
    planner: Any, table: TableRequest, workers: int = 1
) -> tuple[list[SliceAnswer], Counter[str], list[str]]:
    counts: Counter[str] = Counter()
    rejections: list[str] = []
    with closing(new_executor(PlanOptions(workers=workers).chosen_executor)) as executor:
        return SliceQueries(executor).ask(planner, table, counts, rejections), counts, rejections


def time_s(table: TableRequest, plan: SlicePlan) -> float:
    """Sum and slowest stage say which of a planner's answers is which."""
    costs = [
        stage_cost(
            table.model,
            table.atoms[s.start : s.stop],
            s.portion,
            s.config,
            table.micro_batch,
            table.num_micro_batches,
            1,
            s.recomputed,
            table.job,
        )
        for s in plan.stages
    ]
    return sum(c.time_s for c in costs) + (table.num_micro_batches - 1) * max(c.time_s for c in costs)


def positions(table: TableRequest, stop: int) -> range:
    """Windows that the last stage of a slice can have: 1 only where it ends the pipeline."""
    return range(1, 2) if stop == len(table.atoms) else range(2, table.max_in_flight + 1)


def slice_request(table: TableRequest, start: int, stop: int, in_flight: int) -> SliceRequest:
    return SliceRequest(
        model=table.model,
        atoms=table.atoms,
        start=start,
        stop=stop,
        portion=table.portion,
        micro_batch=table.micro_batch,
        num_micro_batches=table.num_micro_batches,
        in_flight=in_flight,
        link_in_bytes_per_s=1e9 if start else None,
        link_out_bytes_per_s=1e9 if stop < len(table.atoms) else None,
        job=table.job,
    )


def limits_of(planner: Any, table: TableRequest, start: int, stop: int) -> tuple[set[int], dict[int, float]]:
    """Asks at every position: the distinct limits of the best answers, and the best time per position.

    A position that cannot be met at all counts as a limit too: one has to ask once to know.
    """
    limits: set[int] = set()
    best: dict[int, float] = {}
    for in_flight in positions(table, stop):
        plans = planner.plan(slice_request(table, start, stop, in_flight))
        if not plans:
            limits.add(0)
            continue
        best[in_flight] = min(time_s(table, plan) for plan in plans)
        limits.add(
            min(max(max_in_flight(table, stage_costs(table, plan)) for plan in plans), table.max_in_flight)
        )
    return limits, best


PLANNERS: dict[str, Callable[[], Any]] = {
    "uniform": UniformPlanner,
    "one stage, all plans": lambda: OneStage(only_first=False),
    "one stage, the quickest": lambda: OneStage(only_first=True),
}


@pytest.mark.parametrize("name", PLANNERS)
@pytest.mark.parametrize("memory_gb", [2.2, 3, 16])
def test_answers_equal_asking_at_every_position(name: str, memory_gb: float) -> None:
    table = request(memory_gb * GB)
    planner = Counting(PLANNERS[name]())
    answers, counts, rejections = ask(planner, table)
    assert rejections == []
    assert counts["queries"] == len(planner.asked)
    asked = Counter((start, stop) for start, stop, _ in planner.asked)
    contents = {tuple(a.fingerprint for a in table.atoms[i:j]) for i, j in table.slices or ()}
    assert len(asked) <= len(contents)
    for (start, stop), number in asked.items():
        limits, best = limits_of(planner.inner, table, start, stop)
        assert number <= len(limits)
        served = [a for a in answers if (start, stop) in a.slices]
        for in_flight in positions(table, stop):
            able = [time_s(table, a.plan) for a in served if a.max_in_flight >= in_flight]
            assert (min(able) if able else None) == best.get(in_flight), (start, stop, in_flight)


@pytest.mark.parametrize("name", PLANNERS)
def test_few_queries_answer_many_positions(name: str) -> None:
    """Queries <= pairs x distinct feasibility limits, far below one per position."""
    table = request(3 * GB)
    planner = Counting(PLANNERS[name]())
    _, counts, _ = ask(planner, table)
    asked = {(start, stop) for start, stop, _ in planner.asked}
    most = max(len(limits_of(planner.inner, table, *pair)[0]) for pair in asked)
    assert counts["queries"] <= len(asked) * most
    assert counts["queries"] < sum(len(positions(table, stop)) for _, stop in asked) / 2


def test_every_slice_of_a_content_is_served_by_one_question() -> None:
    table = request(16 * GB)
    planner = Counting(UniformPlanner())
    answers, _, _ = ask(planner, table)
    served = {pair for answer in answers for pair in answer.slices}
    assert served == set(table.slices or ())
    for answer in answers:
        contents = {tuple(a.fingerprint for a in table.atoms[i:j]) for i, j in answer.slices}
        assert len(contents) == 1
    middle = {(start, stop) for start, stop, _ in planner.asked if start > 0 and stop < len(table.atoms)}
    assert len(middle) == len(table.atoms) - 2  # Lengths 1 to 5 of equal layers.


def test_limits_are_what_fits() -> None:
    """At its limit a plan fits in memory, one beyond it does not (unless everything does)."""
    for memory_gb in (2.2, 3, 5):
        table = request(memory_gb * GB)
        for answer in ask(UniformPlanner(), table)[0]:
            limit = answer.max_in_flight
            assert limit >= 1
            fits = [
                all(
                    stage_cost(
                        table.model,
                        table.atoms[s.start : s.stop],
                        s.portion,
                        s.config,
                        table.micro_batch,
                        table.num_micro_batches,
                        window + len(answer.plan.stages) - 1 - place,
                        s.recomputed,
                        table.job,
                    ).peak_bytes
                    <= table.portion.island.gpu.usable_memory_bytes
                    for place, s in enumerate(answer.plan.stages)
                )
                for window in (limit, limit + 1)
            ]
            assert fits[0]
            ends = answer.slices[0][1] == len(table.atoms)
            assert not fits[1] or ends or limit == table.max_in_flight


def test_workers_change_no_answer() -> None:
    """Spawned processes give the same answers in the same order."""
    table = request(3 * GB)
    alone = ask(UniformPlanner(), table)
    pooled = ask(UniformPlanner(), table, workers=2)
    assert pooled == alone


@pytest.mark.parametrize(("announced_s", "budget_s"), [(0.001, 60.0), (20.0, 60.0), (200.0, 400.0)])
def test_a_slow_parallelizer_gets_the_time_it_announces(
    monkeypatch: pytest.MonkeyPatch, announced_s: float, budget_s: float
) -> None:
    budgets: set[float | None] = set()

    def recording(planner: SlicePlanner, request: SliceRequest, budget_s: float | None = None) -> Answer:
        budgets.add(budget_s)
        return guarded_plan(planner, request, budget_s)

    monkeypatch.setattr(queries, "guarded_plan", recording)
    planner = Counting(UniformPlanner(), capabilities=Capabilities(seconds_per_query=announced_s))
    assert SliceQueries().ask(planner, request(16 * GB), Counter(), [])
    assert budgets == {budget_s}


class Raising(UniformPlanner):
    name = "raising"

    def plan(self, request: SliceRequest) -> Sequence[SlicePlan]:
        raise RuntimeError("no luck today")


class Nonsense(UniformPlanner):
    """Every plan misses its last atom."""

    name = "nonsense"

    def plan(self, request: SliceRequest) -> Sequence[SlicePlan]:
        plans = UniformPlanner().plan(request)
        return [SlicePlan((*p.stages[:-1], replace(p.stages[-1], stop=p.stages[-1].stop - 1))) for p in plans]


class TooLarge(UniformPlanner):
    """Plans that fit nowhere."""

    name = "too-large"

    def plan(self, request: SliceRequest) -> Sequence[SlicePlan]:
        roomy = [replace(a.portion.island.gpu, usable_memory_bytes=10**13) for a in [request]]
        island = replace(request.portion.island, gpu=roomy[0])
        return UniformPlanner().plan(replace(request, portion=replace(request.portion, island=island)))


class NotPlans(UniformPlanner):
    name = "not-plans"

    def plan(self, request: SliceRequest) -> Any:
        return ["a plan", None, 7]


class HalfWrong(UniformPlanner):
    """Good plans behind a bad one."""

    name = "half-wrong"

    def plan(self, request: SliceRequest) -> Sequence[SlicePlan]:
        return [SlicePlan(()), *UniformPlanner().plan(request)]


class RaisingTable(ExactStageTable):
    name = "raising-table"

    def options(self, request: TableRequest) -> OptionTable:
        raise RuntimeError("no luck today")


class WrongTable(ExactStageTable):
    """Promises twice the speed."""

    name = "wrong-table"

    def options(self, request: TableRequest) -> OptionTable:
        table = super().options(request)
        return replace(table, forward_ns=np.maximum(table.forward_ns // 2, 1))


def plan_with(monkeypatch: pytest.MonkeyPatch, names: tuple[str, ...], *planners: Any) -> tangram.Plan:
    """Plans a small job with parallelizers of our own beside the built-in ones."""
    known = {planner.name: planner for planner in planners}
    real = tables.get_parallelizer
    monkeypatch.setattr(
        tables, "get_parallelizer", lambda name: known[name]() if name in known else real(name)
    )
    cluster = small_cluster([small_node("a", "T4", 2), small_node("b", "V100-16GB-SXM2", 2)])
    job = Job(8, 512, Precision.FP16, pins=Pins(micro_batch=2))
    return tangram.plan(small_model(4), cluster, job, PlanOptions(parallelizers=names))


def plain(plan: tangram.Plan) -> tuple[Any, Any]:
    return plan.pipelines, plan.prediction


BAD = (Raising, Nonsense, TooLarge, NotPlans, RaisingTable, WrongTable)


@pytest.mark.parametrize("planner", BAD, ids=lambda planner: planner.name)
def test_a_parallelizer_that_misbehaves_is_named_and_skipped(
    monkeypatch: pytest.MonkeyPatch, planner: Any
) -> None:
    """The search goes on with the others and finds what it would have found without it."""
    alone = plan_with(monkeypatch, ("exact",))
    both = plan_with(monkeypatch, (planner.name, "exact"), planner)
    assert plain(both) == plain(alone)
    named = [a.what for a in both.assumptions if repr(planner.name) in a.what]
    assert named
    assert not [a for a in alone.assumptions if "skipped" in a.what]


def test_good_plans_beside_a_bad_one_are_used(monkeypatch: pytest.MonkeyPatch) -> None:
    expected = plan_with(monkeypatch, ("uniform",))
    found = plan_with(monkeypatch, ("half-wrong",), HalfWrong)
    assert plain(found) == plain(expected)
    assert any("'half-wrong'" in a.what for a in found.assumptions)


def test_only_misbehaving_parallelizers_end_in_a_clear_refusal(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(TangramError):
        plan_with(monkeypatch, ("raising",), Raising)
