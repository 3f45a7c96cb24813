"""Stages of one portion whose atoms differ: the best per slice and window, where they beat ``exact``.

"Best" is the least ``t + u / m``, as for ``galvatron``: time of a micro-batch, and the step end shared out.
First a bound (any layout anywhere, atoms divided) leaves the slices and windows with something to gain; then
stages of one layout for all layers are filled; then those of two, where the bound still leaves room.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from tangram.cost.constants import upper_memory_ratio
from tangram.cost.types import BoolArray, FloatArray, IntArray
from tangram.parallelizers.book import stage_book
from tangram.parallelizers.contents import slice_contents
from tangram.parallelizers.galvatron.joining import stage_of
from tangram.parallelizers.galvatron.strategies import strategies_of
from tangram.parallelizers.layerwise.mixtures import Mixtures, Offers, best_mixtures, relaxed_values
from tangram.parallelizers.layerwise.ways import (
    FREE,
    Arrangement,
    classes_of,
    offers_of,
    pairs_of_layouts,
    single_layouts,
)
from tangram.parallelizers.prices import price_list
from tangram.parallelizers.protocols import OptionTable, StageChoice, TableRequest
from tangram.parallelizers.relaxed import WINDOWS
from tangram.parallelizers.totals import SPARE_BYTES, stage_totals

WORTH_FRAC = 1e-3
"""How much less a mixture must take than the best stage of ``exact`` to be of interest."""


@dataclass(frozen=True, slots=True, eq=False)
class MixedStages:
    """Stages whose atoms differ; arrays ``(num_stages, ...)``.

    Attributes:
        content: Of the slices; ``(num_stages,)``, as all but ``numbers``.
        front: Layout of the first layers.
        max_in_flight: Micro-batches in flight that fit.
        forward_s, backward_s, step_s: What they take.
        numbers: Atoms per class and strategy; ``(num_stages, num_classes, num_strategies)``.
    """

    content: IntArray
    front: IntArray
    max_in_flight: IntArray
    forward_s: FloatArray
    backward_s: FloatArray
    step_s: FloatArray
    numbers: IntArray


@dataclass(slots=True, eq=False)
class _Best:
    """The best mixture so far, per window and content; fields as of ``Mixtures`` and ``MixedStages``."""

    value_s: FloatArray
    front: IntArray
    behind: IntArray
    numbers: IntArray

    def improve(self, hopeful: BoolArray, found: Mixtures, ways: Sequence[Arrangement]) -> None:
        """Takes over what is better.

        Args:
            hopeful: Which windows and contents may be: what is found of one depends on no other.
            found: Of all rows and columns with any of these.
            ways: Of the mixtures.
        """
        windows, contents = np.flatnonzero(hopeful.any(axis=1)), np.flatnonzero(hopeful.any(axis=0))
        at = np.ix_(windows, contents)
        better = hopeful[at] & (found.value_s < self.value_s[at])
        rows, columns = np.nonzero(better)
        to = windows[rows], contents[columns]
        arrangement = np.array(ways, dtype=np.int64)[found.way[rows, columns]]
        self.value_s[to] = found.value_s[rows, columns]
        self.front[to], self.behind[to] = arrangement[:, 0], arrangement[:, 1]
        self.numbers[to] = found.numbers[rows, columns]


class StageQuestion:
    """One request.

    Attributes:
        contents: Of its slices.

    Args:
        request: With a legal configuration at least.
    """

    def __init__(self, request: TableRequest) -> None:
        self._request, self._book = request, stage_book(request)
        prices = price_list(request.model, request.atoms, request.portion, request.job)
        self._configs = prices.configs(request.micro_batch)
        self.contents = contents = slice_contents(request.atoms, request.slices)
        portion, job = request.portion, request.job
        totals = stage_totals(
            request.model, request.atoms, contents, portion, self._configs, request.micro_batch, job
        )
        self._costs = totals.costs
        rows = {config: idx for idx, config in enumerate(self._configs)}
        self._selective = np.array([config.selective for config in self._configs])
        self._twins = [rows.get(replace(config, selective=True), idx) for config, idx in rows.items()]
        self._strategies = strategies_of(self._book, portion, self._configs, contents, totals)
        distinct, class_of = contents.distinct(request.atoms), contents.class_of
        self._classes = classes_of(
            self._strategies,
            contents.counts,
            np.array([atom.is_embedding for atom in distinct]),
            np.array([atom.is_head for atom in distinct]),
            int(class_of[max(0, len(class_of) - 2)]),
            shared=request.model.shares_embedding,
        )
        self._room_bytes = (
            portion.island.gpu.usable_memory_bytes / upper_memory_ratio(job.basis) - SPARE_BYTES
        )
        most = max(1, min(request.max_in_flight, request.num_micro_batches))
        self._windows = np.array([window for window in WINDOWS if window <= most])

    def better_than(self, alike: OptionTable) -> MixedStages:
        """Returns the stages that are faster than all of ``exact`` that hold as many micro-batches.

        Args:
            alike: The answer of ``exact``.
        """
        classes = self._classes
        limit_s = self._best_alike(alike) * (1 - WORTH_FRAC)
        useful = np.flatnonzero(self.contents.counts.sum(axis=1) > 1)
        everything = np.arange(len(self._windows))
        bound_s = np.full(limit_s.shape, np.inf)
        if len(useful):
            bound_s[:, useful] = relaxed_values(self._offers([FREE], everything, useful)[0])
        shape = limit_s.shape
        none = np.zeros(shape, dtype=np.int64)
        best = _Best(limit_s.copy(), none, none.copy(), np.zeros((*shape, *classes.value_s.shape), np.int64))
        change_s = float(classes.exchange_s[classes.exchange_s > 0].min(initial=np.inf))
        for arrangements, least_s in ((single_layouts(classes), 0.0), (pairs_of_layouts(classes), change_s)):
            hopeful = bound_s + least_s < best.value_s * (1 - WORTH_FRAC)
            hopeful &= bound_s <= self._longest_s()
            windows, contents = np.flatnonzero(hopeful.any(axis=1)), np.flatnonzero(hopeful.any(axis=0))
            if arrangements and len(windows):
                offers, ways = self._offers(arrangements, windows, contents)
                best.improve(hopeful, best_mixtures(offers), ways)
        return self._costed(best, best.value_s < limit_s)

    def _longest_s(self) -> float:
        """Nothing whose bound is above that is fast enough: ``t`` may be, with the largest step end."""
        steps = float(self._costs.step_s.max()) * len(self._request.atoms)
        return self._request.max_time_s + steps / self._request.num_micro_batches

    def _offers(
        self, arrangements: Sequence[Arrangement], windows: IntArray, contents: IntArray
    ) -> tuple[Offers, list[Arrangement]]:
        numbers = self._windows[windows].tolist()
        return offers_of(self._classes, arrangements, numbers, contents, self._room_bytes)

    def _best_alike(self, alike: OptionTable) -> FloatArray:
        """Returns the least ``t + u / m`` of the options of ``exact`` per window and content."""
        found = np.full((len(self._windows), len(self.contents.counts)), np.inf)
        width = len(self._request.atoms) + 1
        keys = self.contents.start * width + self.contents.stop
        content = self.contents.content_of[np.searchsorted(keys, alike.start * width + alike.stop)]
        value = (alike.forward_ns + alike.backward_ns + alike.step_ns / self._request.num_micro_batches) / 1e9
        for row, window in zip(found, self._windows.tolist(), strict=True):
            fits = alike.max_in_flight >= window
            np.minimum.at(row, content[fits], value[fits])
        return found

    def _costed(self, best: _Best, chosen: BoolArray) -> MixedStages:
        """Costs the chosen stages; equal ones of several windows once."""
        content, window = np.nonzero(chosen.T)
        numbers = best.numbers[window, content]
        again = (np.diff(content) == 0) & (np.diff(numbers, axis=0) == 0).all(axis=(1, 2))
        kept = np.flatnonzero(~np.concatenate([[False], again])) if len(content) else content
        content, window, numbers = content[kept], window[kept], numbers[kept]
        front, behind = self._used_layouts(numbers, best.front[window, content], best.behind[window, content])
        exchange_s = self._exchanges_s(numbers, front, behind)
        costs, by_config = self._costs, self._by_config(numbers)
        again_s = np.concatenate([np.zeros_like(costs.recompute_s), costs.recompute_s], axis=1)
        tied_step_s = _sum(numbers[:, -1:], costs.tied_step_s[None, self._strategies.config])
        return MixedStages(
            content,
            front,
            # Rounding apart, what was filled for a window fits there.
            np.maximum(self._limits(numbers), self._windows[window]),
            _sum(by_config, _twice(costs.forward_s)) + exchange_s,
            _sum(by_config, _twice(costs.backward_s) + again_s) + exchange_s,
            _sum(by_config, _twice(costs.step_s)) - tied_step_s,
            numbers,
        )

    def _by_config(self, numbers: IntArray) -> IntArray:
        """Returns atoms per class, and per configuration: first those kept, then those recomputed in full.

        Selective recomputation means nothing for the latter, and is said to be theirs where all layers that
        are kept have it, as plan documents do.
        """
        config, full = self._strategies.config, self._strategies.full
        kept = numbers[:, self._classes.is_inner][:, :, ~full].sum(axis=1) > 0
        selective = self._selective[config[~full]]
        agrees = kept[:, selective].any(axis=1) & ~kept[:, ~selective].any(axis=1)
        parts = numbers[:, :-1].copy()
        parts[:, self._classes.is_first[:-1] | self._classes.is_last[:-1]] += numbers[:, -1:]
        found = np.zeros((len(numbers), parts.shape[1], 2 * len(self._configs)), dtype=np.int64)
        for strategy, own in enumerate(config.tolist()):
            usual = own + len(self._configs) * bool(full[strategy])
            column = np.where(agrees & full[strategy], self._twins[own] + len(self._configs), usual)
            found[np.arange(len(found)), :, column] += parts[:, :, strategy]
        return found

    def _exchanges_s(self, numbers: IntArray, front: IntArray, behind: IntArray) -> FloatArray:
        """What all changes of layout inside the stages take, one way."""
        classes, total = self._classes, np.zeros(len(front))
        layout = classes.layout[numbers.argmax(axis=2)]  # Of ends, of which there is one.
        first = int(classes.is_first.argmax())
        for held in range(numbers.shape[1]):
            there = numbers[:, held].any(axis=1)
            if classes.is_first[held] or classes.is_both[held]:
                total += there * classes.exchange_s[first, layout[:, held], front]
            if classes.is_last[held] or classes.is_both[held]:
                total += there * classes.exchange_s[classes.behind, behind, layout[:, held]]
            if classes.is_inner[held]:
                total += there * classes.exchange_s[held, front, behind]
        return total / 2

    def _used_layouts(
        self, numbers: IntArray, front: IntArray, behind: IntArray
    ) -> tuple[IntArray, IntArray]:
        """Layouts of the first and the last layers, as they are used."""
        inner = numbers[:, self._classes.is_inner].any(axis=1)
        uses_front, uses_behind = (
            (inner & (self._classes.layout == side[:, None])).any(axis=1) for side in (front, behind)
        )
        return np.where(uses_front, front, behind), np.where(uses_behind, behind, front)

    def _limits(self, numbers: IntArray) -> IntArray:
        """How many micro-batches in flight fit."""
        classes = self._classes
        used = numbers > 0
        workspace = np.where(used, classes.workspace_bytes, 0.0).max(axis=(1, 2))
        reserve = np.where(used.any(axis=1), classes.reserve_bytes, 0.0).max(axis=1)
        left = self._room_bytes - _sum(numbers, classes.state_bytes) - workspace - reserve
        each = _sum(numbers, classes.activation_bytes)
        fits = np.floor(np.divide(left, each, out=np.full(len(left), np.inf), where=each > 0))
        everything = fits >= self._request.num_micro_batches
        most = self._request.max_in_flight
        limits: IntArray = np.where(everything, most, np.minimum(fits, most)).astype(np.int64)
        return limits

    def choice(self, start: int, stop: int, stages: MixedStages, row: int) -> StageChoice:
        """Returns a stage on one of its slices: first the layers of the layout in front."""
        classes, numbers = self._classes, stages.numbers[row]
        behind = classes.layout != int(stages.front[row])
        waiting: dict[int, list[int]] = {}
        for held, of_class in enumerate(numbers):
            order = np.lexsort((np.arange(len(of_class)), behind))
            waiting[held] = [int(s) for s in order for _ in range(int(of_class[s]))]
        shared = waiting[len(numbers) - 1]
        chosen = []
        for held in self.contents.class_of[start:stop].tolist():
            own = waiting[held]
            chosen.append(own.pop(0) if own else shared[0])
        configs = [self._configs[int(self._strategies.config[s])] for s in chosen]
        again = tuple(bool(self._strategies.full[s]) for s in chosen)
        return stage_of(self._book, start, stop, self._request.portion, configs, again)


def _sum(numbers: IntArray, table: FloatArray) -> FloatArray:
    """Adds up, class by class, whatever other stages there are."""
    total = np.zeros(len(numbers))
    for number, row in zip(numbers.transpose(1, 0, 2), table, strict=True):
        for strategy in np.flatnonzero(number.any(axis=0)).tolist():
            total += number[:, strategy] * row[strategy]
    return total


def _twice(table: FloatArray) -> FloatArray:
    """Of configurations kept, and recomputed."""
    return np.concatenate([table, table], axis=1)
