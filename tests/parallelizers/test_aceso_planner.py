"""The parallelizer ``aceso``: what its stages cost, what it finds, and what it promises."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest
from aceso_cases import brute_force

from tangram.cluster.spec import Portion
from tangram.job import Pins, Recompute
from tangram.model.atoms import cut_atoms
from tangram.parallelizers.aceso import planner as planner_module
from tangram.parallelizers.aceso.costs import SliceSpace, slice_space
from tangram.parallelizers.aceso.planner import AcesoPlanner
from tangram.parallelizers.aceso.search import Search
from tangram.parallelizers.aceso.space import Degrees, Pipeline
from tangram.parallelizers.book import stage_book
from tangram.parallelizers.invariants import plan_faults, recost
from tangram.parallelizers.protocols import Capabilities, SlicePlan, SliceRequest
from tangram.parallelizers.registry import get_parallelizer
from tangram.parallelizers.totals import nanoseconds
from tangram.testing import check_parallelizer
from tangram.testing.cases import llama_like, moe_like, slice_cases, small_cluster, small_island, with_memory

REQUESTS = [case.request for case in slice_cases(Capabilities())]


def test_it_keeps_its_promises() -> None:
    check_parallelizer(get_parallelizer("aceso"))


def asked(
    request: SliceRequest, num_layers: int = 6, pins: Pins = Pins(), *, moe: bool = False
) -> SliceRequest:
    """The same question about a whole model."""
    model = moe_like(num_layers) if moe else llama_like(num_layers)
    atoms = cut_atoms(model)
    job = replace(request.job, pins=pins)
    return replace(request, model=model, atoms=atoms, start=0, stop=len(atoms), job=job, in_flight=1)


def on(request: SliceRequest, nodes: int, gpus: int) -> SliceRequest:
    return replace(request, portion=Portion(request.portion.island, nodes, gpus))


def space_of(request: SliceRequest, num_windows: int = 16) -> SliceSpace:
    positions = range(request.start, request.stop + 1)
    found = slice_space(stage_book(request), request.portion, tuple(positions), num_windows)
    return found.at(request.in_flight)


def time_s(request: SliceRequest, plan: SlicePlan) -> float:
    """Sum of times, the slowest per further micro-batch, the longest step end."""
    costs = [recost(request, s, request.in_flight + i) for i, s in enumerate(reversed(plan.stages))]
    slowest = max(c.time_s for c in costs)
    rest = (request.num_micro_batches - 1) * slowest + max(c.step_s for c in costs)
    return sum(c.time_s for c in costs) + rest


@pytest.mark.parametrize("idx", range(1, len(REQUESTS), 5))
def test_a_stage_costs_what_the_cost_model_says(idx: int) -> None:
    """Of all degrees; and no choice under the same degrees is quicker."""
    request = REQUESTS[idx]
    space = space_of(request)
    for size in space.sizes:
        for degrees in space.degrees(request.micro_batch, size):
            for behind in (0, 3):
                value = space.value(request.micro_batch, 0, space.num_atoms, degrees, behind, 0)
                table = space.tables[size]
                plan = space.at(request.in_flight + behind)
                derived = plan._derived(0, space.num_atoms, degrees, 0)
                marks = table.recomputed(request.start, request.stop, derived)
                stage = plan.plan(single(request, space, degrees)).stages[0]
                assert stage.recomputed == marks
                cost = recost(request, stage, request.in_flight + behind)
                fits = cost.peak_bytes <= cost.capacity_bytes
                assert fits or value.memory > value.limit
                if value.memory <= value.limit:
                    times = nanoseconds(cost.forward_s), nanoseconds(cost.backward_s)
                    assert abs(value.time - sum(int(t) for t in times)) <= 1
                    assert abs(value.step - int(nanoseconds(cost.step_s))) <= 1
                    assert value.time >= value.ideal


def single(request: SliceRequest, space: SliceSpace, degrees: Degrees) -> Pipeline:
    return Pipeline(request.micro_batch, (space.num_atoms,), (degrees,))


@pytest.mark.parametrize("moe", [False, True])
@pytest.mark.parametrize(("nodes", "gpus"), [(1, 2), (1, 4), (2, 4)])
@pytest.mark.parametrize("memory", [40.0, 1.45, 1.25, 1.22])
def test_against_all_pipelines(nodes: int, gpus: int, memory: float, moe: bool) -> None:
    """On a few atoms the search finds the best there is, or nearly; memory from ample to tight."""
    request = on(asked(REQUESTS[0], 4, moe=moe), nodes, gpus)
    request = with_memory(request, round(memory * 2**30))
    space = space_of(request)
    best = brute_force(space, 4)
    plans = AcesoPlanner(max_stages=4, budget=400).plan(request)
    assert bool(plans) == (best is not None)
    if best is not None:
        ours = time_s(request, plans[0])
        assert best.iteration / 1e9 * (1 - 1e-6) <= ours <= best.iteration / 1e9 * 1.002


def test_plans_for_more_in_flight() -> None:
    """Fastest first; a slower one fits where the faster one does not; each fits where it should."""
    request = on(asked(REQUESTS[0], 6), 1, 4)
    request = replace(request, stop=len(request.atoms) - 1, num_micro_batches=40)
    several = 0
    for memory in (1.35, 1.3, 1.27, 1.25):
        tight = with_memory(request, round(memory * 2**30))
        planner = AcesoPlanner()
        plans = planner.plan(tight)
        several += len(plans) > 1
        times = [time_s(tight, plan) for plan in plans]
        for faster, slower in pairwise(times):
            assert faster <= slower * (1 + 1e-9)
        for plan in plans:
            assert plan_faults(tight, plan) == []
        for window in (2, 5, 9, 33, 40):
            later = replace(tight, in_flight=window)
            found = planner.plan(later)
            for plan in found:
                assert plan_faults(later, plan) == []
            fitting = [time_s(later, p) for p in plans if not plan_faults(later, p)]
            if fitting:  # What the first answer has for it is no better than the second.
                assert time_s(later, found[0]) <= min(fitting) * (1 + 1e-9)
    assert several


def test_the_space_is_acesos() -> None:
    """Neither ZeRO nor context parallelism; all GPUs are used; at most so many stages."""
    for request in (on(asked(REQUESTS[0]), 2, 4), on(asked(REQUESTS[0], moe=True), 2, 4)):
        for plan in AcesoPlanner().plan(request):
            assert sum(stage.portion.num_gpus for stage in plan.stages) == 8
            assert all(stage.config.zero == 0 and stage.config.cp == 1 for stage in plan.stages)
        assert all(len(p.stages) <= 2 for p in AcesoPlanner(max_stages=2).plan(request))


@pytest.mark.parametrize(
    "pins",
    [
        Pins(tp=2),
        Pins(dp=2),
        Pins(zero=2),
        Pins(cp=2),
        Pins(ep=2),
        Pins(recompute=Recompute.FULL),
        Pins(recompute=Recompute.NONE),
        Pins(recompute=Recompute.SELECTIVE),
        Pins(pp=3, tp=1),
        Pins(layers_per_stage=(1, 3, 2)),
    ],
    ids=lambda pins: str({n: getattr(pins, n) for n in pins.__slots__ if getattr(pins, n)}),
)
def test_what_the_user_dictates(pins: Pins) -> None:
    request = on(asked(REQUESTS[0], pins=pins, moe=True), 2, 4)
    plans = AcesoPlanner().plan(request)
    assert plans
    for plan in plans:
        assert plan_faults(request, plan) == []
        if pins.pp:
            assert len(plan.stages) == pins.pp
        if pins.layers_per_stage:
            assert [s.stop for s in plan.stages] == [2, 5, 8]


def test_dictated_layers_that_do_not_meet_the_slice() -> None:
    request = on(asked(REQUESTS[0], pins=Pins(layers_per_stage=(1, 3, 2))), 1, 4)
    assert AcesoPlanner().plan(replace(request, start=1, in_flight=1)) == ()
    assert AcesoPlanner().plan(replace(request, start=2, in_flight=1)) != ()


def test_no_legal_configuration() -> None:
    request = on(asked(REQUESTS[0], pins=Pins(tp=4)), 1, 2)
    assert AcesoPlanner().plan(request) == ()


def test_smaller_slices_get_smaller_budgets(monkeypatch: pytest.MonkeyPatch) -> None:
    costed = []

    class Counting(Search):
        def run(self) -> None:
            super().run()
            costed.append(len(self.costed))

    monkeypatch.setattr(planner_module, "Search", Counting)
    request = on(asked(REQUESTS[0], 30), 2, 4)
    for start in (0, 16, 24):
        costed.clear()
        AcesoPlanner(budget=600).plan(replace(request, start=start))
        budget = 600 * (32 - start) / 32
        assert 0.4 * budget < sum(costed) < budget + 8 * len(costed)


def test_more_budget_is_never_worse_here() -> None:
    request = on(asked(REQUESTS[0], 30), 2, 4)
    times = [time_s(request, AcesoPlanner(budget=b).plan(request)[0]) for b in (10, 100, 1000)]
    assert times == sorted(times, reverse=True)


def test_deep_models_and_six_gpus_a_node() -> None:
    """Sizes that are no powers of two grow by other factors."""
    island = small_island()
    nodes = tuple(replace(node, num_gpus=6) for node in small_cluster().nodes)
    island = replace(island, nodes=nodes, gpus_per_node=6)
    request = replace(asked(REQUESTS[0], 12), portion=Portion(island, 2, 6), micro_batch=12)
    plans = AcesoPlanner().plan(request)
    assert plans
    assert plan_faults(request, plans[0]) == []
    assert sum(stage.portion.num_gpus for stage in plans[0].stages) == 12
