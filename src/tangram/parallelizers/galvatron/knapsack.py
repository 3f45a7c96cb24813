"""The knapsack over layers and memory: which strategy every atom of a stage takes.

A state is (atoms so far, layout of the last one, memory so far), its value the least time. Memory is counted
from what the leanest strategy of each atom holds, in whole steps, rounded up: a choice that fits in steps
fits in bytes. A change of layout between two atoms costs an exchange of activations, so runs of one layout
form by themselves. Stages that begin alike share a chain, whatever their number of atoms: for equal layers it
is a programme over counts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from tangram.cost.types import FloatArray, IntArray


@dataclass(frozen=True, slots=True, eq=False)
class Menu:
    """What atoms may take, class by class.

    Attributes:
        strategies: Numbers of the strategies, per class.
        layout: Layout of each of them; shape ``(num_strategies,)`` over all strategies, as the next ones.
        value_s: Per class; ``(num_classes, num_strategies)``.
        steps: Memory beyond the leanest of the class, in whole steps; ``(num_classes, num_strategies)``.
        exchange_s: Behind an atom of a class; ``(num_classes, num_layouts, num_layouts)``.
    """

    strategies: tuple[tuple[int, ...], ...]
    layout: IntArray
    value_s: FloatArray
    steps: IntArray
    exchange_s: FloatArray

    def only(self, held: int, strategy: int) -> Menu:
        """Returns the menu with one strategy for a class."""
        fixed = tuple((strategy,) if c == held else own for c, own in enumerate(self.strategies))
        return Menu(fixed, self.layout, self.value_s, self.steps, self.exchange_s)


@dataclass(slots=True, eq=False)
class Chain:
    """Best values of the first atoms of a sequence of classes.

    Attributes:
        menu: What atoms may take.
        classes: The sequence.
        num_steps: Memory counts from 0 to here.
    """

    menu: Menu
    classes: Sequence[int]
    num_steps: int
    _values: list[FloatArray] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._values.append(np.zeros((self.menu.exchange_s.shape[1], self.num_steps + 1)))

    @property
    def most_cells(self) -> int:
        """Values that it holds once all atoms of the sequence have been asked about."""
        return (len(self.classes) + 1) * self._values[0].size

    def best(self, count: int, steps: int) -> float:
        """Returns the least time of the first ``count`` atoms within so many steps; ``inf`` if none fits."""
        self._extend(count)
        return float(self._values[count][:, min(steps, self.num_steps)].min())

    def best_before(self, count: int, last: int, strategies: Sequence[int], steps: int) -> tuple[float, int]:
        """Returns the least time with one more atom behind the first ``count``, and its strategy.

        Args:
            count: Atoms in front, at least one.
            last: Class of the atom behind them.
            strategies: What it may take.
            steps: For all of them.
        """
        self._extend(count)
        found = np.inf, -1
        for strategy in strategies:
            left = min(steps - int(self.menu.steps[last, strategy]), self.num_steps)
            if left >= 0:
                entering = self._entering(count, int(self.menu.layout[strategy]), left)
                value = float(entering.min()) + float(self.menu.value_s[last, strategy])
                found = min(found, (value, strategy))
        return found

    def strategies(self, count: int, steps: int, behind: int | None = None) -> list[int]:
        """Returns the strategies of the first ``count`` atoms that attain the best value, first to last.

        Args:
            count: Atoms.
            steps: Within which they fit.
            behind: Strategy of the atom behind them; None where there is none.
        """
        self._extend(count)
        left = min(steps, self.num_steps)
        if behind is None:
            layout = int(self._values[count][:, left].argmin())
        else:
            layout = int(self._entering(count, int(self.menu.layout[behind]), left).argmin())
        chosen: list[int] = []
        for idx in range(count, 0, -1):
            strategy, left, layout = self._last(idx, layout, left)
            chosen.append(strategy)
        return chosen[::-1]

    def _extend(self, count: int) -> None:
        while len(self._values) <= count:
            self._values.append(self._next(len(self._values)))

    def _next(self, count: int) -> FloatArray:
        """Values of the first ``count`` atoms, from those of one fewer."""
        front, held = self._values[count - 1], self.classes[count - 1]
        if count > 1:
            change_s = self.menu.exchange_s[self.classes[count - 2]]
            front = (front[:, None, :] + change_s[:, :, None]).min(axis=0)
        values = np.full_like(front, np.inf)
        for strategy in self.menu.strategies[held]:
            layout, steps = self.menu.layout[strategy], int(self.menu.steps[held, strategy])
            if steps <= self.num_steps:
                row = values[layout, steps:]
                added = front[layout, : len(row)] + self.menu.value_s[held, strategy]
                np.minimum(row, added, out=row)
        return values

    def _entering(self, count: int, layout: int, steps: int) -> FloatArray:
        """Values of the first ``count`` atoms by their last layout, with the change to another one."""
        values: FloatArray = self._values[count][:, steps]
        return values + self.menu.exchange_s[self.classes[count - 1], :, layout] if count else values

    def _last(self, count: int, layout: int, steps: int) -> tuple[int, int, int]:
        """Returns the strategy of the last of ``count`` atoms, and steps and layout of those before it."""
        held = self.classes[count - 1]
        found: tuple[float, int, int, int] | None = None
        for strategy in self.menu.strategies[held]:
            left = steps - int(self.menu.steps[held, strategy])
            if self.menu.layout[strategy] != layout or left < 0:
                continue
            entering = self._entering(count - 1, layout, left)
            before = int(entering.argmin())
            value = float(entering[before]) + float(self.menu.value_s[held, strategy])
            if found is None or value < found[0]:
                found = value, strategy, left, before
        assert found is not None
        return found[1:]
