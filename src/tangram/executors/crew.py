"""Shares an errand out to workers that may die, whatever they are made of.

Items travel in chunks. What comes back is kept. When a worker dies, its chunk is asked again item by item, so
that one bad item costs its neighbours no more than time; an item whose workers died ``MOST_DEATHS`` times is
given up.
"""

from __future__ import annotations

import traceback
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from tangram.errors import InternalError
from tangram.executors.protocol import Errand, Item, Lost, Result

MOST_DEATHS = 3

CHUNK_S = 1.0
"""Of guessed work that travels together at most: what the death of a worker costs."""

_CHUNKS_PER_WORKER = 4  # so that the last ones to finish are not far apart

Chunk = tuple[int, ...]
"""Places of items in their errand."""


@dataclass(frozen=True, slots=True)
class Done:
    """What became of a chunk whose worker lived.

    Attributes:
        results: Of its items; None where the function raised.
        raised: Its traceback.
    """

    results: Sequence[Any] | None
    raised: str = ""


@dataclass(frozen=True, slots=True)
class Died:
    """A chunk whose worker did not live.

    Attributes:
        reason: How, in words.
    """

    reason: str


class Crew(Protocol):
    """Workers that have been told the function of an errand and what its items share."""

    def send(self, chunk: Chunk) -> None:
        """Hands a chunk to whichever worker is free first."""
        ...

    def receive(self) -> tuple[Chunk, Done | Died]:
        """Waits until anything comes of any chunk that was sent."""
        ...

    def abandon(self) -> None:
        """Forgets what was sent and has not come back."""
        ...


def attempt(function: Callable[..., Sequence[Any]], shared: tuple[Any, ...], items: Sequence[Any]) -> Done:
    """Calls the function, in a worker; what it raises may not be picklable and is told as text."""
    try:
        return Done(list(function(*shared, items)))
    except Exception:
        return Done(None, traceback.format_exc())


def cut_chunks(num_items: int, num_workers: int, seconds_each: float) -> list[Chunk]:
    """Cuts items into chunks: of about a second, and several for every worker."""
    fair = num_items // (_CHUNKS_PER_WORKER * max(1, num_workers))
    size = max(1, min(fair, int(CHUNK_S / max(seconds_each, 1e-9))))
    return [tuple(range(i, min(i + size, num_items))) for i in range(0, num_items, size)]


def share_out(crew: Crew, errand: Errand[Item, Result], chunks: Sequence[Chunk]) -> list[Result | Lost]:
    """Runs an errand by a crew.

    Raises:
        InternalError: The function raised.
    """
    results: dict[int, Result | Lost] = {}
    deaths: Counter[int] = Counter()
    try:
        for chunk in chunks:
            crew.send(chunk)
        while len(results) < len(errand.items):
            chunk, end = crew.receive()
            if isinstance(end, Done):
                if end.results is None:
                    raise InternalError(f"an errand failed in a worker\n{end.raised}")
                results.update(zip(chunk, end.results, strict=True))
                continue
            for place in chunk:
                deaths[place] += 1
                if deaths[place] < MOST_DEATHS:
                    crew.send((place,))
                else:
                    results[place] = Lost(f"{MOST_DEATHS} workers died of it, the last one: {end.reason}")
    except BaseException:  # Stopped and Ctrl-C too: whatever is under way is of no use any more.
        crew.abandon()
        raise
    return [results[place] for place in range(len(errand.items))]
