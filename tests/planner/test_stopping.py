"""A search that is stopped anywhere: the best plan so far, and a bound that still holds."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
from small_jobs import World, random_world

from tangram.cluster.islands import build_islands
from tangram.errors import Stopped
from tangram.model.atoms import cut_atoms
from tangram.plan.check import check_plan
from tangram.planner.answer import best_answer
from tangram.planner.options import PlanOptions
from tangram.planner.planner import plan
from tangram.planner.search import Search
from tangram.planner.space import search_space

SEED = 13


@pytest.fixture(scope="module")
def world() -> World:
    return random_world(SEED)


def search_of(world: World, progress: Callable[[str], None] | None = None) -> Search:
    options = PlanOptions()
    space = search_space(build_islands(world.cluster, world.job.precision), world.job.precision)
    atoms = cut_atoms(world.model, options.granularity)
    return Search(world.model, atoms, world.cluster, world.job, space, options, progress)


def stop_after(search: Search, simulations: int) -> None:
    """Has the search stopped once it has simulated so many plans."""
    execute, left = search.composer.referee, [simulations]

    def referee(*question: object) -> int:
        if not left[0]:
            raise Stopped
        left[0] -= 1
        return execute(*question)  # type: ignore[arg-type]

    search.composer.referee = referee


@contextmanager
def stopping_at_once() -> Iterator[None]:
    yield
    raise Stopped


@pytest.mark.parametrize("simulations", [1, 2, 5, 20, 60])
def test_the_best_plan_so_far_has_a_bound_that_holds(world: World, simulations: int) -> None:
    whole = best_answer(search_of(world))
    search = search_of(world)
    stop_after(search, simulations)
    answer = best_answer(search)
    assert whole is not None
    assert answer is not None
    assert search.is_stopped
    assert 0 < search.lower_bound_ns() <= whole.found.iteration_ns <= answer.found.iteration_ns
    assert search.is_proven(answer.found) == (search.lower_bound_ns() == answer.found.iteration_ns)


def test_a_stopped_plan_is_valid_and_says_so(world: World) -> None:
    document = plan(world.model, world.cluster, world.job, may_stop=stopping_at_once())
    assert not check_plan(document)
    assert any("stopped before its end" in said.what for said in document.assumptions)
    whole = plan(world.model, world.cluster, world.job)
    assert not any("stopped" in said.what for said in whole.assumptions)
    assert document.bound.lower_bound_s <= whole.prediction.iteration_time_s


def test_without_any_plan_it_stays_stopped(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    def stopped(self: Search) -> None:
        raise Stopped

    monkeypatch.setattr(Search, "run", stopped)
    with pytest.raises(Stopped):
        best_answer(search_of(world))


def test_the_gap_is_told_as_it_shrinks(world: World) -> None:
    lines: list[str] = []
    answer = best_answer(search_of(world, lines.append))
    assert answer is not None
    told = [line for line in lines if line.startswith("best so far")]
    gaps = [float(line.split("at most ")[1].split(" %")[0]) for line in told]
    assert len(gaps) > 1
    assert gaps[-1] < gaps[0]
    assert len(set(told)) == len(told)
