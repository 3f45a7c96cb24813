"""Asks the knapsack for stages of one portion and one number of micro-batches in flight."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from tangram.cost.types import BoolArray, FloatArray, IntArray
from tangram.parallelizers.galvatron.knapsack import Chain, Menu
from tangram.parallelizers.galvatron.levels import Levels, levels_of
from tangram.parallelizers.galvatron.strategies import Strategies
from tangram.units import MIB

_CELLS = 1 << 22  # Values of all chains of a portion, 32 MiB.

Chains = OrderedDict[tuple[int, int, int, int], Chain]
"""By in-flight count, level, first atom, and what that must take; the latest last."""


@dataclass(frozen=True, slots=True)
class Grain:
    """How finely the knapsack counts.

    Attributes:
        step_bytes: Largest step of memory.
        num_steps: On GPUs with little room steps are smaller: so many in all.
        level_bytes: Workspaces closer than this to each other are taken as one.
        worth_frac: How much less time a bound must promise before the knapsack is asked.
    """

    step_bytes: float = 64 * MIB
    num_steps: int = 512
    level_bytes: float = 256 * MIB
    worth_frac: float = 2e-3


@dataclass(frozen=True, slots=True, eq=False)
class Ends:
    """What the ends of the model are among the classes.

    Attributes:
        sequence: Class of every atom of the model.
        alike: Per atom, the first one from which on the model goes on as it does from there, the head aside.
        head: Class of the head.
        tied: Embedding and head, if they share a matrix; ``(num_classes,)``.
        both: Which contents hold both of these; ``(num_contents,)``.
    """

    sequence: tuple[int, ...]
    alike: tuple[int, ...]
    head: int | None
    tied: BoolArray
    both: BoolArray


@dataclass(frozen=True, slots=True, eq=False)
class _Way:
    """A chain, and perhaps the head behind it.

    Attributes:
        chain: Of the atoms in front of the head.
        count: How many these are.
        steps: Memory for all.
        head: Class of the head; None where there is none behind the chain.
        heads: Strategies that it may take.
        twice_s: What is counted twice.
    """

    chain: Chain
    count: int
    steps: int
    head: int | None = None
    heads: tuple[int, ...] = ()
    twice_s: float = 0.0

    def value_s(self) -> float:
        """The least value; ``inf`` where nothing fits."""
        if self.head is None:
            return self.chain.best(self.count, self.steps)
        return self.chain.best_before(self.count, self.head, self.heads, self.steps)[0] - self.twice_s

    def strategies(self) -> list[int]:
        """The strategies that attain it."""
        if self.head is None:
            return self.chain.strategies(self.count, self.steps)
        _, last = self.chain.best_before(self.count, self.head, self.heads, self.steps)
        left = self.steps - int(self.chain.menu.steps[self.head, last])
        return [*self.chain.strategies(self.count, left, last), last]


class Mixer:
    """The knapsack over the slices of a model.

    Args:
        strategies: Of the portion.
        counts: Atoms per class of each content; ``(num_contents, num_classes)``.
        ends: Of the model.
        capacity_bytes: What best estimates may take of a GPU.
        in_flight: Micro-batches in flight.
        grain: How finely to count.
        chains: Of all windows of the portion, the latest last.
    """

    def __init__(
        self,
        strategies: Strategies,
        counts: IntArray,
        ends: Ends,
        capacity_bytes: float,
        in_flight: int,
        grain: Grain,
        chains: Chains,
    ) -> None:
        self._strategies, self._counts, self._ends, self._grain = strategies, counts, ends, grain
        self._held: FloatArray = strategies.held_bytes(in_flight)
        self.levels: Levels = levels_of(
            strategies, counts, capacity_bytes, self._held, ends.both, ends.tied, grain.level_bytes
        )
        most = max(0.0, float(self.levels.room_bytes.max(initial=0.0)))
        self._step = max(1.0, min(grain.step_bytes, most / grain.num_steps))
        self._menus: dict[int, tuple[Menu, FloatArray]] = {}
        self._chains, self._in_flight = chains, in_flight

    def best(self, content: int, start: int, stop: int, below_s: float) -> tuple[float, list[int]] | None:
        """Returns the least value of a slice and its atoms' strategies; None if no less than ``below_s``.

        Args:
            content: Of the slice.
            start, stop: The slice.
            below_s: What is to be beaten.
        """
        bounds, found = self.levels.bound_s[:, content], None
        worth = 1.0 - self._grain.worth_frac
        for level in np.argsort(bounds, kind="stable").tolist():
            if not bounds[level] < below_s * worth:
                break
            for way in self._ways(level, content, start, stop):
                value = way.value_s()
                if value < below_s:
                    below_s, found = value, way
        return None if found is None else (below_s, found.strategies())

    def _ways(self, level: int, content: int, start: int, stop: int) -> Iterator[_Way]:
        """Yields what a level has to offer: one way, or one per strategy that both ends may have together."""
        menu, leanest = self._menu(level)
        room = float(self.levels.room_bytes[level, content])
        held = self._counts[content].tolist()
        room -= sum(number * size for number, size in zip(held, leanest, strict=True) if number)
        head = self._ends.head
        if head is None or stop - start == 1 or self._ends.sequence[stop - 1] != head:
            if room >= 0:
                yield _Way(self._chain(level, menu, start), stop - start, int(room // self._step))
            return
        if not self._ends.both[content]:
            if room >= 0:
                chain = self._chain(level, menu, start)
                steps = int(room // self._step)
                yield _Way(chain, stop - start - 1, steps, head, menu.strategies[head])
            return
        first = self._ends.sequence[start]
        for strategy in menu.strategies[first]:
            left = room + float(self._strategies.tied_bytes[strategy])
            if strategy in menu.strategies[head] and left >= 0:
                chain = self._chain(level, menu.only(first, strategy), start, strategy)
                twice = float(self._strategies.tied_value_s[strategy])
                yield _Way(chain, stop - start - 1, int(left // self._step), head, (strategy,), twice)

    def _menu(self, level: int) -> tuple[Menu, FloatArray]:
        """Returns what a level offers, and the leanest of each class."""
        if level not in self._menus:
            allowed, held = self.levels.allowed[level], self._held
            leanest = np.where(allowed, held, np.inf).min(axis=1)
            beyond = np.where(allowed, held - np.where(allowed.any(axis=1), leanest, 0.0)[:, None], 0.0)
            menu = Menu(
                strategies=tuple(tuple(np.flatnonzero(row).tolist()) for row in allowed),
                layout=self._strategies.layout,
                value_s=self._strategies.value_s,
                steps=np.ceil(beyond / self._step).astype(np.int64),
                exchange_s=self._strategies.exchange_s,
            )
            self._menus[level] = menu, leanest
        return self._menus[level]

    def _chain(self, level: int, menu: Menu, start: int, fixed: int = -1) -> Chain:
        """Returns the chain that a slice is the beginning of; equal beginnings share one."""
        begin = self._ends.alike[start]
        key = (self._in_flight, level, begin, fixed)
        if key not in self._chains:
            sequence = self._ends.sequence[begin:]
            room = max(0.0, float(self.levels.room_bytes[level].max()))
            needed = int(menu.steps.max(axis=1)[list(sequence)].sum())
            chain = Chain(menu, sequence, min(int(room // self._step) + 1, needed))
            while len(self._chains) >= max(1, _CELLS // chain.most_cells):
                self._chains.popitem(last=False)
            self._chains[key] = chain
        self._chains.move_to_end(key)
        return self._chains[key]


def first_alike(sequence: Sequence[int], head: int | None) -> tuple[int, ...]:
    """Returns ``Ends.alike`` of a sequence of classes."""
    whole = tuple(sequence)
    stop = len(whole) - (bool(whole) and whole[-1] == head)
    found = []
    for start in range(len(whole)):
        own = whole[start:stop]
        found.append(next(at for at in range(start + 1) if whole[at : at + len(own)] == own))
    return tuple(found)
