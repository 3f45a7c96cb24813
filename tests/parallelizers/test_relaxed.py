"""Bounds on stages whose layers may differ: no stage of anybody is faster at that window."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tangram.cluster.spec import Portion
from tangram.errors import InternalError
from tangram.job import Job, Pins, Precision, Recompute
from tangram.model.atoms import cut_atoms
from tangram.model.spec import ModelSpec
from tangram.parallelizers.exact import ExactStageTable
from tangram.parallelizers.galvatron.planner import GalvatronPlanner
from tangram.parallelizers.invariants import recost
from tangram.parallelizers.protocols import OptionTable, SliceRequest, TableRequest
from tangram.parallelizers.relaxed import RelaxedTable
from tangram.testing.cases import llama_like, moe_like, small_gpu, small_island

MODELS = (llama_like(), moe_like(), replace(llama_like(), tied_embeddings=True))


def question(model: ModelSpec, memory: float, pins: Pins = Pins()) -> TableRequest:
    """All slices on four GPUs whose memory is a factor of the usual."""
    gpu = small_gpu()
    tight = replace(gpu, usable_memory_bytes=round(memory * gpu.usable_memory_bytes))
    portion = Portion(small_island(tight), 1, 4)
    job = Job(32, 256, Precision.BF16, pins=pins)
    return TableRequest(model, cut_atoms(model), portion, 8, 4, 4, float("inf"), job)


def bound_ns(table: OptionTable, start: int, stop: int, in_flight: int) -> float:
    """What the table says of a slice at a window; infinite where it says that nothing fits."""
    rows = (table.start == start) & (table.stop == stop) & (table.max_in_flight >= in_flight)
    times = (table.forward_ns + table.backward_ns)[rows]
    return float(times.min()) if len(times) else float("inf")


@pytest.mark.parametrize("model", MODELS, ids=["dense", "moe", "tied"])
@pytest.mark.parametrize("memory", [1.0, 0.0388, 0.0376])
@pytest.mark.parametrize("pinned", [None, Recompute.NONE, Recompute.FULL])
def test_no_stage_of_exact_is_faster(model: ModelSpec, memory: float, pinned: Recompute | None) -> None:
    request = question(model, memory, Pins(recompute=pinned))
    bounds, table = RelaxedTable().options(request), ExactStageTable().options(request)
    for row in range(len(table.start)):
        time_ns = table.forward_ns[row] + table.backward_ns[row]
        window = int(table.max_in_flight[row])
        assert bound_ns(bounds, int(table.start[row]), int(table.stop[row]), window) <= time_ns + 1


@pytest.mark.parametrize("memory", [1.0, 0.0384])
def test_no_stage_of_galvatron_is_faster(memory: float) -> None:
    request, planner, found = question(llama_like(), memory), GalvatronPlanner(), 0
    bounds = RelaxedTable().options(request)
    for start, stop in ((0, 3), (1, 4), (2, len(request.atoms)), (0, len(request.atoms))):
        asked = SliceRequest(
            request.model, request.atoms, start, stop, request.portion, 8, 4, 2, None, None, request.job
        )
        for plan in planner.plan(asked):
            if len(plan.stages) == 1:
                found += 1
                cost = recost(asked, plan.stages[0], 2)
                assert bound_ns(bounds, start, stop, 2) <= cost.time_s * 1e9 + 1
    assert found


def test_more_in_flight_never_lowers_the_bound() -> None:
    table = RelaxedTable().options(question(llama_like(), 0.038))
    order = np.lexsort((table.max_in_flight, table.stop, table.start))
    time_ns = (table.forward_ns + table.backward_ns)[order]
    same = (np.diff(table.start[order]) == 0) & (np.diff(table.stop[order]) == 0)
    assert same.any()
    assert (np.diff(time_ns)[same] >= 0).all()


def test_tight_memory_raises_the_bound() -> None:
    model = llama_like()
    wide, tight = (RelaxedTable().options(question(model, memory)) for memory in (1.0, 0.038))
    last = len(cut_atoms(model))
    assert bound_ns(tight, 0, last, 4) > bound_ns(wide, 0, last, 4)


def test_a_bound_cannot_be_executed() -> None:
    request = question(llama_like(), 1.0)
    table = RelaxedTable().options(request)
    with pytest.raises(InternalError):
        RelaxedTable().choice(request, table, 0)
