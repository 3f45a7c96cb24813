"""The stages of a plan that is found, put to the knapsack."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
from example_plans import example_cluster, example_model

from tangram.job import Job, Pins, Precision
from tangram.model.load import trim_layers
from tangram.parallelizers.protocols import SlicePlan
from tangram.plan.check import check_plan
from tangram.plan.schema import PlanDocument
from tangram.planner.finer import FINEST
from tangram.planner.options import PlanOptions
from tangram.planner.planner import plan
from tangram.planner.recost import cost_violations
from tangram.planner.referee import Found
from tangram.planner.search import Search


@dataclass(frozen=True)
class Run:
    """A plan, and the searches that put one to the knapsack on the way, with the plans before and after."""

    document: PlanDocument
    refined: list[tuple[Search, Found, Found]]


def run(pins: Pins = Pins()) -> Run:
    refined: list[tuple[Search, Found, Found]] = []
    ask = Search.refined

    def recorded(search: Search, found: Found) -> Found:
        refined.append((search, found, ask(search, found)))
        return refined[-1][2]

    model, job = trim_layers(example_model("gpt3-13b"), 16), Job(64, 2048, Precision.FP16, pins=pins)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Search, "refined", recorded)
        document = plan(model, example_cluster("c1-v100-16"), job, PlanOptions(parallelizers=("auto",)))
    return Run(document, refined)


@pytest.fixture(scope="module")
def free() -> Run:
    """Nothing pinned."""
    return run()


def test_the_knapsack_makes_a_plan_faster_until_it_knows_no_more(free: Run) -> None:
    document, refined = free.document, free.refined
    assert check_plan(document) == []
    assert cost_violations(document) == []
    times = [found.iteration_ns for _, found, _ in refined]
    assert times == sorted(times, reverse=True)
    search, before, after = refined[0]
    assert after.iteration_ns < before.iteration_ns
    search, last, same = refined[-1]
    assert same.iteration_ns == last.iteration_ns
    assert document.prediction.iteration_time_s * 1e9 == pytest.approx(last.iteration_ns, abs=1)
    problem = search.problem_of(last.micro_batch)
    assert problem is not None
    tables = search.referee.tables_of(problem)
    assert any(source.parallelizer == FINEST for source in tables.sources)


def test_pieces_of_part_of_a_table_and_further_ones_keep_their_stages(free: Run) -> None:
    search, before, _ = free.refined[0]
    size = search.adopt(before).micro_batch
    problem = search.problem_of(size)
    assert problem is not None
    tables = search.referee.tables_of(problem)
    some = np.arange(3, len(tables.pieces), 17)
    part = tables.only(some).only(np.arange(0, len(some), 2))
    plans = [(stage.start, SlicePlan((stage,))) for stage in before.stages]
    more = part.more("somebody", tables.pieces.take(np.arange(len(plans))), plans)
    assert len(more.pieces) == len(part.pieces) + len(plans)
    for idx in range(0, len(part.pieces), 7):
        assert more.choices(idx) == part.choices(idx) == tables.choices(int(some[2 * idx]))
        assert more.spans(idx) == tables.spans(int(some[2 * idx]))
    for stage, idx in zip(before.stages, range(len(part.pieces), len(more.pieces)), strict=True):
        assert more.choices(idx) == (stage,)
        assert more.spans(idx) == [(stage.stop, stage.portion)]


def test_pinned_cuts_stay() -> None:
    pinned = run(Pins(layers_per_stage=(5, 6, 5)))
    assert pinned.refined
    assert check_plan(pinned.document) == []
    cuts = [stage.layers for stage in pinned.document.pipelines[0].stages]
    assert [stop - start for start, stop in cuts] == [5, 6, 5]
