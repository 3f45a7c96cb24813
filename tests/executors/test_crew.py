"""Sharing out, against a crew that answers in any order and dies at will."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tangram.errors import InternalError, Stopped
from tangram.executors.crew import CHUNK_S, MOST_DEATHS, Chunk, Died, Done, attempt, cut_chunks, share_out
from tangram.executors.inline import InlineExecutor
from tangram.executors.protocol import Errand, Lost


def doubled(common: int, items: Sequence[int]) -> list[int]:
    return [common + 2 * item for item in items]


def fussy(items: Sequence[int]) -> list[int]:
    raise LookupError(f"no luck with {items[0]}")


@dataclass
class Unsteady:
    """Does errands in a random order; ``dies`` says of which chunks, and how often, its workers die."""

    errand: Errand[int, int]
    dice: random.Random
    dies: Callable[[Chunk, int], bool] = lambda chunk, before: False
    sent: list[Chunk] = field(default_factory=list)
    done: list[Chunk] = field(default_factory=list)
    asked: dict[Chunk, int] = field(default_factory=dict)
    is_abandoned: bool = False

    def send(self, chunk: Chunk) -> None:
        self.sent.append(chunk)

    def receive(self) -> tuple[Chunk, Done | Died]:
        chunk = self.sent.pop(self.dice.randrange(len(self.sent)))
        before = self.asked.get(chunk, 0)
        self.asked[chunk] = before + 1
        if self.dies(chunk, before):
            return chunk, Died("of boredom")
        self.done.append(chunk)
        items = [self.errand.items[place] for place in chunk]
        return chunk, attempt(self.errand.function, self.errand.shared, items)

    def abandon(self) -> None:
        self.is_abandoned = True


@settings(deadline=None)
@given(
    st.integers(0, 40),
    st.integers(1, 5),
    st.sampled_from([0.0, 0.01, 0.3, 2.0]),
    st.floats(0, 0.6),
    st.randoms(use_true_random=False),
)
def test_deaths_change_nothing(
    num_items: int, num_workers: int, seconds_each: float, risk: float, dice: random.Random
) -> None:
    """Whatever dies less than three times over one item: the results of one process, none asked twice that
    came back.
    """
    items = [dice.randrange(100) for _ in range(num_items)]
    errand = Errand(doubled, (7,), items, seconds_each)

    def dies(chunk: Chunk, before: int) -> bool:
        return dice.random() < risk and before + (len(chunk) == 1 and seconds_each < 1) < MOST_DEATHS - 1

    crew = Unsteady(errand, dice, dies)
    chunks = cut_chunks(num_items, num_workers, seconds_each)
    assert share_out(crew, errand, chunks) == InlineExecutor().run(errand) == doubled(7, items)
    assert sorted(place for chunk in crew.done for place in chunk) == list(range(num_items))
    assert not crew.is_abandoned


def test_an_item_that_kills_everybody_is_given_up_alone() -> None:
    errand = Errand(doubled, (0,), list(range(12)), 0.1)
    crew = Unsteady(errand, random.Random(1), lambda chunk, before: 5 in chunk)
    found = share_out(crew, errand, cut_chunks(12, 1, 0.1))
    assert found[5] == Lost("3 workers died of it, the last one: of boredom")
    assert found[:5] + found[6:] == [0, 2, 4, 6, 8, 12, 14, 16, 18, 20, 22]


def test_what_a_function_raises_is_a_bug_and_said_with_its_traceback() -> None:
    errand = Errand(fussy, (), [3, 4], 0.1)
    crew = Unsteady(errand, random.Random(1))
    with pytest.raises(InternalError, match=r"(?s)failed in a worker.*in fussy.*LookupError: no luck with 3"):
        share_out(crew, errand, cut_chunks(2, 1, 0.1))
    assert crew.is_abandoned


def test_stopping_abandons_what_is_under_way() -> None:
    errand = Errand(doubled, (0,), list(range(8)), 2.0)
    crew = Unsteady(errand, random.Random(1))

    def stopping(chunk: Chunk, before: int) -> bool:
        raise Stopped

    crew.dies = stopping
    with pytest.raises(Stopped):
        share_out(crew, errand, cut_chunks(8, 2, 2.0))
    assert crew.is_abandoned


@settings(deadline=None)
@given(st.integers(0, 500), st.integers(1, 64), st.floats(0, 100))
def test_chunks_are_all_items_in_order_and_small(num_items: int, workers: int, seconds_each: float) -> None:
    chunks = cut_chunks(num_items, workers, seconds_each)
    assert [place for chunk in chunks for place in chunk] == list(range(num_items))
    for chunk in chunks:
        assert len(chunk) == 1 or len(chunk) * seconds_each <= CHUNK_S
        assert len(chunk) == 1 or len(chunk) * 4 * workers <= num_items
