"""The Pareto set against its definition, option by option."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from tangram.parallelizers.pareto import FAR_NS, Rows, pareto_options

Option = tuple[int, int, int, int]


@st.composite
def row_tables(draw: st.DrawFn) -> Rows:
    """Few distinct values, so that ties of every kind are common."""
    num_windows = draw(st.integers(1, 4))
    num_rows = draw(st.integers(1, 12))
    contents = sorted(draw(st.lists(st.integers(0, 2), min_size=num_rows, max_size=num_rows)))
    ends = draw(
        st.lists(st.tuples(st.integers(1, 3), st.integers(1, 3)), min_size=num_rows, max_size=num_rows)
    )
    times, numbers, configs = [], [], []
    for row, content in enumerate(contents):
        steps = draw(st.lists(st.integers(0, 2), min_size=num_windows, max_size=num_windows))
        base = draw(st.integers(4, 7))
        fits = draw(st.integers(0, num_windows))
        increasing = np.cumsum(steps)
        times.append([base + int(s) if w < fits else FAR_NS for w, s in enumerate(increasing)])
        numbers.append(
            [int(s) + (draw(st.integers(0, 1)) if w + 1 == fits else 0) for w, s in enumerate(increasing)]
        )
        configs.append(sum(1 for c in contents[:row] if c == content))
    return Rows(
        content=np.array(contents),
        forward_ns=np.array([f for f, _ in ends]),
        step_ns=np.array([u for _, u in ends]),
        rank=np.array(draw(st.lists(st.integers(0, 1), min_size=num_rows, max_size=num_rows))),
        config=np.array(configs),
        num_recomputed=np.array(numbers),
        backward_ns=np.array(times),
    )


def by_definition(rows: Rows) -> set[tuple[int, int]]:
    """Options as (backward, forward, step, -window); a dominated one, or the less liked of equals, goes."""
    options: dict[tuple[int, int], tuple[Option, tuple[int, int, int]]] = {}
    for row in range(len(rows.content)):
        times = [int(t) for t in rows.backward_ns[row]]
        for w, time in enumerate(times):
            last = w + 1 == len(times) or times[w + 1] != time
            if time < FAR_NS and last:
                cost = (time, int(rows.forward_ns[row]), int(rows.step_ns[row]), -(w + 1))
                preference = (int(rows.rank[row]), int(rows.num_recomputed[row, w]), int(rows.config[row]))
                options[row, w] = (cost, preference)

    def beats(a: tuple[int, int], b: tuple[int, int]) -> bool:
        (cost_a, preferred_a), (cost_b, preferred_b) = options[a], options[b]
        if a == b or rows.content[a[0]] != rows.content[b[0]]:
            return False
        if cost_a == cost_b:
            return preferred_a < preferred_b
        return all(x <= y for x, y in zip(cost_a, cost_b, strict=True))

    return {b for b in options if not any(beats(a, b) for a in options)}


@settings(max_examples=200, deadline=None)
@given(row_tables())
def test_equals_its_definition(rows: Rows) -> None:
    kept = {(int(r), int(w)) for r, w in np.argwhere(pareto_options(rows))}
    assert kept == by_definition(rows)


def test_of_equal_times_the_longer_run_stays() -> None:
    """Both rows take 5 ns at window 1; the less preferred one still does at window 2."""
    rows = Rows(
        content=np.array([0, 0]),
        forward_ns=np.array([1, 1]),
        step_ns=np.array([1, 1]),
        rank=np.array([0, 1]),
        config=np.array([0, 1]),
        num_recomputed=np.zeros((2, 2), dtype=np.int64),
        backward_ns=np.array([[5, FAR_NS], [5, 5]]),
    )
    assert pareto_options(rows).tolist() == [[False, False], [False, True]]


def test_no_rows() -> None:
    none = np.zeros(0, dtype=np.int64)
    rows = Rows(
        none, none, none, none, none, np.zeros((0, 3), dtype=np.int64), np.zeros((0, 3), dtype=np.int64)
    )
    assert pareto_options(rows).shape == (0, 3)
