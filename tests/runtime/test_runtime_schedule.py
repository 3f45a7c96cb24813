"""1F1B: what must hold of any order of work, and when receives are posted."""

from __future__ import annotations

import doctest
from itertools import accumulate

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tangram.runtime import schedule
from tangram.runtime.schedule import (
    Action,
    Work,
    execute,
    interleaved,
    locks_up,
    one_forward_one_backward,
    split_backwards,
)

BOTH = (Work.FORWARD, Work.BACKWARD)


@given(st.integers(1, 9), st.integers(1, 12))
def test_a_stage_holds_its_window_and_no_more(window: int, count: int) -> None:
    order = one_forward_one_backward(window, count)
    for work in BOTH:
        assert [a.micro_batch for a in order if a.work is work] == list(range(count))
    held = list(accumulate(1 if a.work is Work.FORWARD else -1 for a in order))
    assert max(held) == min(window, count)
    assert held[-1] == 0
    assert all(a.work is Work.FORWARD for a in order[: min(window, count)])
    # As early as the window allows: from then on one backward behind every forward.
    steady = order[min(window, count) - 1 : 2 * count - min(window, count) + 1]
    assert [a.work for a in steady] == [Work.FORWARD, Work.BACKWARD] * (len(steady) // 2)


@given(st.lists(st.integers(1, 3), min_size=1, max_size=4), st.integers(1, 8))
def test_stages_with_falling_windows_never_wait_in_a_circle(steps: list[int], count: int) -> None:
    windows = list(accumulate(reversed(steps)))[::-1]
    assert not locks_up([one_forward_one_backward(window, count) for window in windows], 1)


def test_rising_windows_lock_up() -> None:
    """The stage behind waits for a second micro-batch before it gives the first one back."""
    assert locks_up([one_forward_one_backward(window, 3) for window in (1, 2)], 1)


@given(st.integers(2, 5), st.integers(2, 4), st.integers(1, 13))
def test_interleaved_orders_are_whole_and_end(stages: int, chunks: int, count: int) -> None:
    orders = interleaved(stages, chunks, count)
    assert not locks_up(orders, chunks)
    due = {Action(work, k, chunk) for work in BOTH for k in range(count) for chunk in range(chunks)}
    for order in orders:
        assert len(order) == len(due)
        assert set(order) == due
    # Messages of a direction are taken in the order in which they are sent, also from last to first stage.
    for work in BOTH:
        sent = [(a.micro_batch, a.chunk) for a in orders[0] if a.work is work]
        for order in orders:
            assert [(a.micro_batch, a.chunk) for a in order if a.work is work] == sent
        wrapped = [(k, chunk + 1) for k, chunk in sent if chunk < chunks - 1]
        assert wrapped == [(k, chunk) for k, chunk in sent if chunk > 0]


def test_interleaved_orders_are_those_of_the_paper() -> None:
    """Where the stages divide the micro-batches, nobody begins with more forwards than in the paper."""
    for stages, chunks, groups in ((2, 2, 2), (4, 2, 2), (4, 3, 3), (3, 2, 1)):
        for stage, order in enumerate(interleaved(stages, chunks, stages * groups)):
            first = next(place for place, action in enumerate(order) if action.work is Work.BACKWARD)
            ahead = 2 * (stages - 1 - stage) + (chunks - 1) * stages
            assert first == min(ahead + 1, stages * groups * chunks)


@given(st.integers(1, 5), st.integers(1, 9), st.integers(0, 4))
def test_a_split_backward_keeps_the_order_and_lags(window: int, count: int, lag: int) -> None:
    plain = one_forward_one_backward(window, count)
    order = split_backwards(plain, lag)
    assert tuple(a for a in order if a.work is not Work.WEIGHTS) == plain
    assert [a.micro_batch for a in order if a.work is Work.WEIGHTS] == list(range(count))
    for k in range(count):
        behind = order.index(Action(Work.WEIGHTS, k)) - order.index(Action(Work.BACKWARD, k))
        assert behind >= 1
        between = order[order.index(Action(Work.BACKWARD, k)) : order.index(Action(Work.WEIGHTS, k))]
        assert sum(a.work is Work.BACKWARD for a in between) <= lag + 1


@pytest.mark.parametrize("ahead", [0, 1, 3])
def test_receives_are_posted_in_order_and_ahead(ahead: int) -> None:
    told: list[str] = []
    order = one_forward_one_backward(3, 5)
    execute(
        order,
        {work: lambda a: told.append(f"{a.work} {a.micro_batch}") for work in BOTH},
        {work: lambda a: told.append(f"post {a.work} {a.micro_batch}") for work in BOTH},
        ahead=ahead,
    )
    assert [line for line in told if "post" not in line] == [f"{a.work} {a.micro_batch}" for a in order]
    for work in BOTH:
        posts = [line for line in told if line.startswith(f"post {work}")]
        assert posts == [f"post {work} {k}" for k in range(5)]
        for k in range(5):
            before = told[: told.index(f"{work} {k}")]
            posted = sum(line.startswith(f"post {work}") for line in before)
            assert posted == min(5, k + 1 + ahead)


def test_examples() -> None:
    result = doctest.testmod(schedule)
    assert result.failed == 0
    assert result.attempted > 0
