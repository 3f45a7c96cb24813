"""The uniform planner against a naive enumeration, plan by plan and stage by stage."""

from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise

import pytest

from tangram.cluster.spec import Portion, portions
from tangram.cost.configs import legal_configs
from tangram.job import Pins, Recompute
from tangram.model.atoms import cut_atoms, parse_granularity
from tangram.parallelizers.invariants import plan_faults, recost
from tangram.parallelizers.protocols import Capabilities, SlicePlan, SliceRequest, StageChoice
from tangram.parallelizers.totals import SPARE_BYTES
from tangram.parallelizers.uniform import UniformPlanner, equal_portion, split_evenly
from tangram.testing.cases import llama_like, slice_cases, small_island

REQUESTS = [case.request for case in slice_cases(Capabilities())]


def naive_plans(request: SliceRequest) -> Iterator[SlicePlan]:
    """All uniform plans, whether they fit or not, from the words of the definition."""
    for num_stages in range(1, request.portion.num_gpus + 1):
        gpus, rest = divmod(request.portion.num_gpus, num_stages)
        equal = [p for p in portions(request.portion.island) if p.num_gpus == gpus]
        body = [i for i in range(request.start, request.stop) if request.atoms[i].layer_idxs]
        if rest or not equal or len(body) < num_stages:
            continue
        cuts = [body[i * len(body) // num_stages] for i in range(1, num_stages)]
        stages = list(pairwise([request.start, *cuts, request.stop]))
        for config in legal_configs(request.model, equal[0], request.micro_batch, request.job):
            for full in (False, True):
                if not config.selective:
                    yield SlicePlan(
                        tuple(
                            StageChoice(
                                a,
                                b,
                                equal[0],
                                config,
                                tuple(full and bool(atom.layer_idxs) for atom in request.atoms[a:b]),
                            )
                            for a, b in stages
                        )
                    )


def judged(request: SliceRequest, plan: SlicePlan) -> float | None:
    """Sum of times, the slowest per further micro-batch, the longest step end; None if it does not fit."""
    costs = []
    for ahead, stage in enumerate(reversed(plan.stages)):
        cost = recost(request, stage, request.in_flight + ahead)
        left = cost.capacity_bytes - cost.state_bytes
        if cost.best_peak_bytes - cost.state_bytes > left / cost.upper_ratio - SPARE_BYTES:
            return None
        costs.append(cost)
    slowest = max(c.time_s for c in costs)
    return (
        sum(c.time_s for c in costs)
        + (request.num_micro_batches - 1) * slowest
        + max(c.step_s for c in costs)
    )


@pytest.mark.parametrize("num_micro_batches", [1, 2, 8])
@pytest.mark.parametrize("idx", range(0, len(REQUESTS), 7))
def test_best_equals_naive_enumeration(idx: int, num_micro_batches: int) -> None:
    request = replace(REQUESTS[idx], num_micro_batches=num_micro_batches)
    values = [v for v in (judged(request, plan) for plan in naive_plans(request)) if v is not None]
    plans = UniformPlanner().plan(request)
    assert bool(plans) == bool(values)
    if plans:
        assert judged(request, plans[0]) == pytest.approx(min(values), rel=1e-9, abs=1e-7)


@pytest.mark.parametrize("idx", range(1, len(REQUESTS), 4))
def test_every_plan_is_sound_and_useful(idx: int) -> None:
    request = REQUESTS[idx]
    plans = UniformPlanner().plan(request)
    values = []
    for plan in plans:
        assert plan_faults(request, plan) == []
        assert len({stage.config for stage in plan.stages}) == 1
        value = judged(request, plan)
        assert value is not None
        values.append(value)
    assert values == sorted(values)
    for faster, slower in pairwise(plans):
        more = request.in_flight
        while judged(replace(request, in_flight=more), faster) is not None:
            more += 1
            assert more < 100
        assert judged(replace(request, in_flight=more), slower) is not None


def test_equal_portions() -> None:
    island = small_island()
    sizes = {
        n: p and (p.num_nodes, p.gpus_per_node)
        for n in (1, 2, 4, 8)
        if (p := equal_portion(Portion(island, 2, 4), n)) or True
    }
    assert sizes == {1: (2, 4), 2: (1, 4), 4: (1, 2), 8: (1, 1)}
    three = Portion(small_island(num_nodes=3), 3, 4)
    assert equal_portion(three, 2) is None
    assert equal_portion(three, 5) is None
    assert equal_portion(three, 4) is None
    assert equal_portion(three, 6) == Portion(three.island, 1, 2)


def whole(num_layers: int, granularity: str = "layer", pins: Pins = Pins()) -> SliceRequest:
    model = llama_like(num_layers)
    atoms = cut_atoms(model, parse_granularity(granularity))
    job = replace(REQUESTS[0].job, pins=pins)
    return replace(
        REQUESTS[0],
        model=model,
        atoms=atoms,
        start=0,
        stop=len(atoms),
        portion=Portion(small_island(), 2, 4),
        job=job,
    )


def test_splits() -> None:
    assert split_evenly(whole(8), 2) == ((0, 5), (5, 10))
    assert split_evenly(whole(7), 3) == ((0, 3), (3, 5), (5, 9))
    assert split_evenly(whole(2), 4) is None
    assert split_evenly(replace(whole(4), start=0, stop=1), 1) == ((0, 1),)
    assert split_evenly(replace(whole(4), start=0, stop=1), 2) is None
    by_operator = whole(2, "operator")  # Five atoms per layer: cut between layers while there are enough.
    assert split_evenly(by_operator, 2) == ((0, 6), (6, 12))
    assert split_evenly(by_operator, 4) == ((0, 3), (3, 6), (6, 8), (8, 12))


def test_dictated_stages() -> None:
    pinned = whole(8, pins=Pins(layers_per_stage=(1, 3, 4), pp=3))
    assert split_evenly(pinned, 3) == ((0, 2), (2, 5), (5, 10))
    assert split_evenly(pinned, 2) is None
    assert split_evenly(replace(pinned, start=2), 2) == ((2, 5), (5, 10))
    assert split_evenly(replace(pinned, start=3), 1) is None
    coarse = whole(8, "2", pins=Pins(layers_per_stage=(1, 7)))
    assert split_evenly(coarse, 2) is None


@pytest.mark.parametrize(
    "pins",
    [
        Pins(tp=2),
        Pins(zero=3),
        Pins(pp=2),
        Pins(dp=2, tp=2),
        Pins(recompute=Recompute.FULL),
        Pins(recompute=Recompute.NONE),
        Pins(recompute=Recompute.SELECTIVE),
        Pins(layers_per_stage=(1, 3)),
    ],
)
def test_pins_are_obeyed(pins: Pins) -> None:
    request = whole(4, pins=pins)
    plans = UniformPlanner().plan(request)
    assert plans
    for plan in plans:
        assert plan_faults(request, plan) == []
        if pins.pp is not None:
            assert len(plan.stages) == pins.pp
        if pins.layers_per_stage is not None:
            assert [(s.start, s.stop) for s in plan.stages] == [(0, 2), (2, 6)]


def test_nothing_legal() -> None:
    request = whole(4, pins=Pins(tp=8))
    assert UniformPlanner().plan(request) == []
