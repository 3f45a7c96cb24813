"""A parallelizer that misbehaves is reported by name, and the search goes on."""

import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
import pytest

from tangram.model.atoms import cut_atoms
from tangram.parallelizers.exact import ExactStageTable
from tangram.parallelizers.guard import (
    GuardedWorker,
    Rejection,
    RejectionKind,
    guarded_options,
    guarded_plan,
)
from tangram.parallelizers.protocols import (
    Capabilities,
    OptionTable,
    SlicePlan,
    SliceRequest,
    StageChoice,
    TableRequest,
)
from tangram.parallelizers.uniform import UniformPlanner
from tangram.testing.cases import llama_like, slice_cases, table_cases


def request() -> SliceRequest:
    cases = slice_cases(Capabilities())
    return next(c.request for c in cases if c.request.portion.num_gpus == 4 and c.request.start == 0)


def table_request() -> TableRequest:
    return next(c.request for c in table_cases(Capabilities()) if c.request.portion.num_gpus == 2)


class Planner(UniformPlanner):
    name = "strange"


class Raising(Planner):
    def plan(self, request: SliceRequest) -> Sequence[SlicePlan]:
        raise ValueError("no idea\nsecond line")


class RaisingLate(Planner):
    def plan(self, request: SliceRequest) -> Iterator[SlicePlan]:  # type: ignore[override]
        yield from super().plan(request)
        raise ValueError("half way")


class Hanging(Planner):
    """Hangs on partial slices only."""

    def plan(self, request: SliceRequest) -> Sequence[SlicePlan]:
        if request.start:
            time.sleep(60)
        return super().plan(request)


class Dying(Planner):
    def plan(self, request: SliceRequest) -> Sequence[SlicePlan]:
        os._exit(3)


class Unpicklable(Planner):
    def plan(self, request: SliceRequest) -> Sequence[SlicePlan]:
        return [lambda: None]  # type: ignore[list-item]


class OneBad(Planner):
    """Its first plan loses the last atom."""

    def plan(self, request: SliceRequest) -> Sequence[SlicePlan]:
        good = super().plan(request)[0]
        last = good.stages[-1]
        short = replace(last, stop=last.stop - 1, recomputed=last.recomputed[:-1])
        return [SlicePlan((*good.stages[:-1], short)), good, "nonsense"]  # type: ignore[list-item]


def only(rejections: tuple[Rejection, ...]) -> Rejection:
    assert len(rejections) == 1
    assert "'strange'" in str(rejections[0])
    return rejections[0]


def test_a_good_answer_passes() -> None:
    answer = guarded_plan(UniformPlanner(), request(), budget_s=60)
    assert answer.plans == tuple(UniformPlanner().plan(request()))
    assert answer.rejections == ()


@pytest.mark.parametrize(("planner", "said"), [(Raising(), "no idea"), (RaisingLate(), "half way")])
def test_raising(planner: Planner, said: str) -> None:
    answer = guarded_plan(planner, request())
    rejection = only(answer.rejections)
    assert answer.plans == ()
    assert rejection.kind is RejectionKind.RAISED
    assert rejection.reason == f"ValueError: {said}"


def test_too_slow_is_measured_afterwards() -> None:
    ticks = iter([10.0, 12.5])
    answer = guarded_plan(Planner(), request(), budget_s=2.0, clock=lambda: next(ticks))
    assert only(answer.rejections).kind is RejectionKind.TOO_SLOW
    assert "2.5 s" in only(answer.rejections).reason
    assert answer.plans == ()


def test_only_the_broken_plans_go() -> None:
    answer = guarded_plan(OneBad(), request())
    assert answer.plans == (UniformPlanner().plan(request())[0],)
    broken, unreadable = answer.rejections
    assert "end at atom" in broken.reason
    assert broken.kind is unreadable.kind is RejectionKind.INVALID
    assert "cannot be read" in unreadable.reason


def test_worker_answers_and_survives_a_hang() -> None:
    partial = next(c.request for c in slice_cases(Capabilities()) if c.request.start)
    with GuardedWorker(Hanging(), budget_s=2.0) as worker:
        assert worker.plan(request()).plans == tuple(UniformPlanner().plan(request()))
        late = worker.plan(partial)
        assert only(late.rejections).kind is RejectionKind.TOO_SLOW
        assert "its 2 s" in only(late.rejections).reason
        assert worker.plan(request()).rejections == ()


@pytest.mark.parametrize("planner", [Raising(), Dying(), Unpicklable()])
def test_worker_reports_what_goes_wrong_inside(planner: Planner) -> None:
    with GuardedWorker(planner, budget_s=30) as worker:
        answer = worker.plan(request())
    assert answer.plans == ()
    assert only(answer.rejections).kind is RejectionKind.RAISED


class Table(ExactStageTable):
    name = "strange"

    def __init__(self, **changes: int) -> None:
        self.changes = changes

    def options(self, request: TableRequest) -> OptionTable:
        table = super().options(request)
        columns = {name: getattr(table, name) + change for name, change in self.changes.items()}
        return replace(table, **columns)


class ShortTable(Table):
    def options(self, request: TableRequest) -> OptionTable:
        return replace(super().options(request), start=np.zeros(1, dtype=np.int64))


class RaisingTable(Table):
    def options(self, request: TableRequest) -> OptionTable:
        raise RuntimeError("out of order")


def test_a_good_table_passes() -> None:
    answer = guarded_options(ExactStageTable(), table_request(), budget_s=60, max_recosted=None)
    assert answer.table is not None
    assert answer.rejections == ()


@pytest.mark.parametrize(
    ("table", "said"),
    [
        (Table(start=100), "not asked for"),
        (Table(forward_ns=50), "re-costed"),
        (Table(config=1000), "names no configuration"),
        (Table(max_in_flight=-100), "fits no micro-batch"),
        (Table(step_ns=-(10**12)), "below 1 ns"),
        (ShortTable(), "differ in length"),
    ],
)
def test_a_broken_table_goes(table: Table, said: str) -> None:
    answer = guarded_options(table, table_request())
    assert answer.table is None
    assert said in only(answer.rejections).reason
    assert only(answer.rejections).kind is RejectionKind.INVALID


def test_a_table_that_raises_or_is_late() -> None:
    raised = guarded_options(RaisingTable(), table_request())
    assert only(raised.rejections).reason == "RuntimeError: out of order"
    ticks = iter([0.0, 9.0])
    late = guarded_options(Table(), table_request(), budget_s=1.0, clock=lambda: next(ticks))
    assert only(late.rejections).kind is RejectionKind.TOO_SLOW


def test_a_choice_that_raises_is_reported() -> None:
    class Unreadable(Table):
        def choice(self, request: TableRequest, table: OptionTable, idx: int) -> StageChoice:
            raise KeyError(idx)

    answer = guarded_options(Unreadable(), table_request())
    assert "cannot be read: KeyError" in only(answer.rejections).reason


def test_pinned_slices_only() -> None:
    atoms = cut_atoms(llama_like())
    asked = replace(table_request(), slices=[(0, 2)])
    whole = ExactStageTable().options(table_request())

    class Eager(Table):
        def options(self, request: TableRequest) -> OptionTable:
            return whole

    assert len(atoms) == 6
    assert "not asked for" in only(guarded_options(Eager(), asked).rejections).reason
