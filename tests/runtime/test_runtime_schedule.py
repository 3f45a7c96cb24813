"""1F1B: what must hold of any order of work, and when receives are posted."""

from __future__ import annotations

from itertools import accumulate

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tangram.runtime.schedule import Action, Work, execute, one_forward_one_backward


@given(st.integers(1, 9), st.integers(1, 12))
def test_a_stage_holds_its_window_and_no_more(window: int, count: int) -> None:
    order = one_forward_one_backward(window, count)
    for work in Work:
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
    """Executes all stages, each action once what it needs is there."""
    windows = list(accumulate(reversed(steps)))[::-1]
    orders = [list(one_forward_one_backward(window, count)) for window in windows]
    done: set[tuple[int, Action]] = set()
    while any(orders):
        progress = False
        for stage, order in enumerate(orders):
            while order and ready(stage, order[0], len(orders), done):
                done.add((stage, order.pop(0)))
                progress = True
        assert progress, f"windows {windows} lock up"


def ready(stage: int, action: Action, num_stages: int, done: set[tuple[int, Action]]) -> bool:
    if action.work is Work.FORWARD:
        return stage == 0 or (stage - 1, action) in done
    return stage == num_stages - 1 or (stage + 1, action) in done


@pytest.mark.parametrize("ahead", [0, 1, 3])
def test_receives_are_posted_in_order_and_ahead(ahead: int) -> None:
    told: list[str] = []
    order = one_forward_one_backward(3, 5)
    execute(
        order,
        {work: lambda k, w=work: told.append(f"{w} {k}") for work in Work},
        {work: lambda k, w=work: told.append(f"post {w} {k}") for work in Work},
        ahead=ahead,
    )
    assert [line for line in told if "post" not in line] == [f"{a.work} {a.micro_batch}" for a in order]
    for work in Work:
        posts = [line for line in told if line.startswith(f"post {work}")]
        assert posts == [f"post {work} {k}" for k in range(5)]
        for k in range(5):
            before = told[: told.index(f"{work} {k}")]
            posted = sum(line.startswith(f"post {work}") for line in before)
            assert posted == min(5, k + 1 + ahead)
