from __future__ import annotations

from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st
from row_samples import read, row

from tangram.validation.folds import assign_folds, spread_choice
from tangram.validation.run import Run

keys = st.lists(st.text(max_size=3), min_size=1, max_size=40)


@given(keys, st.integers(2, 6), st.integers(0, 99))
def test_keys_stay_together_and_folds_are_even(listed: list[str], num_folds: int, seed: int) -> None:
    folds = assign_folds(listed, num_folds, seed)
    of_key = dict(zip(listed, folds, strict=True))
    assert [of_key[key] for key in listed] == folds
    counts = [list(of_key.values()).count(fold) for fold in range(num_folds)]
    assert max(counts) - min(counts) <= 1


def test_splits_are_repeatable_and_depend_on_the_seed() -> None:
    listed = [str(i) for i in range(50)]
    assert assign_folds(listed, 5, 1) == assign_folds(listed, 5, 1)
    assert assign_folds(listed, 5, 1) != assign_folds(listed, 5, 2)
    assert sorted(assign_folds(["a", "b", "c"], 5, 0)) == [0, 1, 2]


def runs(folder: Path) -> list[Run]:
    cells = [{"micro_batch": 2 ** (i % 3), "tp": 2 ** (i // 3), "dp": 8 // 2 ** (i // 3)} for i in range(9)]
    results = read(folder, *(row(**c) for c in cells), *(row(iter_s=0.45 + i / 100) for i in range(3)))
    return [result.run for result in results if result.run is not None]


def test_a_choice_is_spread(tmp_path: Path) -> None:
    listed = runs(tmp_path)
    assert len(listed) == 12
    chosen = spread_choice(listed, 5)
    assert chosen == spread_choice(listed, 5) == sorted(set(chosen))
    corners = {(1, 1), (1, 4), (4, 1), (4, 4)}
    assert corners <= {(listed[i].micro_batch, listed[i].degrees.tp) for i in chosen}


def test_repeats_are_chosen_last(tmp_path: Path) -> None:
    listed = runs(tmp_path)
    assert len({listed[i].key for i in spread_choice(listed, 9)}) == 9


def test_a_choice_does_not_depend_on_the_order(tmp_path: Path) -> None:
    listed = runs(tmp_path)
    chosen = {listed[i].origin.line for i in spread_choice(listed, 4)}
    turned = listed[::-1]
    assert {turned[i].origin.line for i in spread_choice(turned, 4)} == chosen


def test_all_where_there_are_no_more(tmp_path: Path) -> None:
    listed = runs(tmp_path)
    assert spread_choice(listed, 12) == spread_choice(listed, 99) == list(range(12))
