"""The best stage for every slice of a portion: all atoms alike, or each as the knapsack says.

"Best" is the least ``t + u / m``: time of a micro-batch, and the step end shared out to all micro-batches.
What all atoms alike cost is computed for all slices, windows and configurations at once, with the least full
recomputation that fits; nothing is rounded there. The knapsack is asked where a bound says that layers of
their own strategies may be better.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field

import numpy as np

from tangram.cluster.spec import Portion
from tangram.cost.configs import legal_configs
from tangram.cost.constants import upper_memory_ratio
from tangram.cost.types import BoolArray, FloatArray, IntArray
from tangram.job import Recompute
from tangram.parallelizers.book import StageBook
from tangram.parallelizers.contents import slice_contents
from tangram.parallelizers.galvatron.joining import stage_of
from tangram.parallelizers.galvatron.mixing import Chains, Ends, Grain, Mixer, first_alike
from tangram.parallelizers.galvatron.strategies import strategies_of
from tangram.parallelizers.protocols import SlicePlan, StageChoice
from tangram.parallelizers.recompute import RecomputeLevels, class_order, least_recompute, no_recompute
from tangram.parallelizers.totals import SPARE_BYTES, stage_totals

_WINDOWS = 64  # Whose stages are remembered.


@dataclass(slots=True, eq=False)
class Window:
    """Best stages with one number of micro-batches in flight; arrays ``(num_contents,)``.

    Attributes:
        value_s: ``t + u / m``; ``inf`` where nothing fits.
        config, num_recomputed: Of the best stages whose atoms are all alike.
        bound_s: Below which no stage costs, whatever the knapsack will say; what it said where it was asked.
        asked: Where the knapsack has been asked, or has nothing to say.
        mixed: By content, the strategies of the atoms where the knapsack has found something better.
        mixer: Asks the knapsack; None where nothing fits.
    """

    value_s: FloatArray
    config: IntArray
    num_recomputed: IntArray
    bound_s: FloatArray
    asked: BoolArray
    mixed: dict[int, list[int]] = field(default_factory=dict)
    mixer: Mixer | None = None


class PortionStages:
    """Best stages on one portion, for one question.

    Attributes:
        answers: What was answered about slices of this portion, by (start, stop, in flight).

    Args:
        book: The question.
        portion: The GPUs of a stage.
        slices: Which may be asked about; None for all.
        grain: How finely the knapsack counts.
    """

    def __init__(
        self,
        book: StageBook,
        portion: Portion,
        slices: tuple[tuple[int, int], ...] | None = None,
        grain: Grain = Grain(),
    ) -> None:
        self.book, self.portion, self._grain = book, portion, grain
        self._contents = contents = slice_contents(book.atoms, slices)
        self._keys = contents.start * (len(book.atoms) + 1) + contents.stop
        _, self._first_slice = np.unique(contents.content_of, return_index=True)
        self._windows: OrderedDict[int, Window] = OrderedDict()
        self._chains = Chains()
        self.answers: dict[tuple[int, int, int], list[SlicePlan]] = {}
        self._levels: RecomputeLevels | None = None
        self.configs = legal_configs(book.model, portion, book.micro_batch, book.job)
        if not self.configs:
            return
        job = book.job
        plain = stage_totals(book.model, book.atoms, contents, portion, self.configs, book.micro_batch, job)
        self._strategies = strategies_of(book, portion, self.configs, contents, plain)
        self._totals = plain.all_recomputed() if job.pins.recompute is Recompute.FULL else plain
        # A bound: what does not fit here fits in no window.
        self._pairs = np.nonzero(self._totals.may_fit())
        self._ends = self._model_ends()

    def contents_of(self, start: IntArray, stop: IntArray) -> IntArray:
        """Returns the contents of slices; errors are not looked for."""
        found: IntArray = self._contents.content_of[
            np.searchsorted(self._keys, start * (len(self.book.atoms) + 1) + stop)
        ]
        return found

    def window(self, in_flight: int) -> Window:
        """Returns what is known of the best stages with so many micro-batches in flight."""
        held = min(in_flight, self.book.num_micro_batches)
        if held not in self._windows:
            if len(self._windows) >= _WINDOWS:
                self._windows.popitem(last=False)
            self._windows[held] = self._alike(held) if self.configs else self._nothing()
        self._windows.move_to_end(held)
        return self._windows[held]

    def ask(self, window: Window, start: int, stop: int) -> bool:
        """Puts a slice to the knapsack; returns whether that changed what is known of it."""
        content = self._content_of(start, stop)
        if window.asked[content]:
            return False
        self._ask(window, content)
        return True

    def stage(self, window: Window, start: int, stop: int) -> StageChoice | None:
        """Returns the best known stage of a slice; None where none fits."""
        content = self._content_of(start, stop)
        if not np.isfinite(window.value_s[content]):
            return None
        classes = self._contents.class_of[start:stop].tolist()
        if content not in window.mixed:
            config = int(window.config[content])
            again = self._marked(classes, config, int(window.num_recomputed[content]))
            return StageChoice(start, stop, self.portion, self.configs[config], again)
        first = self._first_slice[content]
        origin = self._contents.class_of[self._contents.start[first] : self._contents.stop[first]].tolist()
        # Another slice of the content may have its atoms in another order.
        waiting: dict[int, list[int]] = {}
        for held, strategy in zip(origin, window.mixed[content], strict=True):
            waiting.setdefault(held, []).append(strategy)
        chosen = [waiting[held].pop(0) for held in classes]
        configs = [self.configs[int(self._strategies.config[s])] for s in chosen]
        again = tuple(bool(self._strategies.full[s]) for s in chosen)
        return stage_of(self.book, start, stop, self.portion, configs, again)

    def _content_of(self, start: int, stop: int) -> int:
        return int(self.contents_of(np.array([start]), np.array([stop]))[0])

    def _alike(self, in_flight: int) -> Window:
        """Stages whose atoms are all alike, but for recomputation, and what the knapsack may do better."""
        num = len(self._contents.counts)
        levels, column = self._recomputed(in_flight), in_flight - 1
        content, config = self._pairs
        time_s = (self._totals.forward_s + self._totals.backward_s)[content, config]
        time_s = time_s + levels.recompute_s[:, column]
        step_s = self._totals.step_s[content, config]
        value = np.full((num, len(self.configs)), np.inf)
        fitting = time_s + step_s / self.book.num_micro_batches
        value[content, config] = np.where(levels.feasible[:, column], fitting, np.inf)
        best = value.argmin(axis=1)
        number = np.zeros(value.shape, dtype=np.int64)
        number[content, config] = levels.num_recomputed[:, column]
        if self.book.job.pins.recompute is Recompute.FULL:
            number[:] = self._totals.num_recomputable[:, None]
        chosen = np.arange(num)
        value_s = value[chosen, best]
        mixer = self._mixer(in_flight)
        bound_s = np.minimum(value_s, mixer.levels.bound_s.min(axis=0))
        asked = (self._contents.counts.sum(axis=1) < 2) | ~(bound_s < value_s * (1 - self._grain.worth_frac))
        bound_s[asked] = value_s[asked]
        return Window(value_s, best, number[chosen, best], bound_s, asked, mixer=mixer)

    def _nothing(self) -> Window:
        """Where no configuration is legal."""
        num = len(self._contents.counts)
        none, never = np.zeros(num, dtype=np.int64), np.full(num, np.inf)
        return Window(never, none, none, never, np.ones(num, dtype=np.bool_))

    def _mixer(self, in_flight: int) -> Mixer:
        counts, capacity = self._contents.counts, self.portion.island.gpu.usable_memory_bytes
        room = capacity / upper_memory_ratio(self.book.job.basis) - SPARE_BYTES
        return Mixer(self._strategies, counts, self._ends, room, in_flight, self._grain, self._chains)

    def _recomputed(self, in_flight: int) -> RecomputeLevels:
        """The least recomputation up to a window at least; computed anew for twice as many where too few."""
        if self._levels is None or self._levels.feasible.shape[1] < in_flight:
            number = 4
            while number < in_flight:
                number *= 2
            least = least_recompute if self.book.job.pins.recompute is None else no_recompute
            content, config = self._pairs
            self._levels = least(self._totals, content, config, number)
        return self._levels

    def _ask(self, window: Window, content: int) -> None:
        """Puts one content to the knapsack."""
        assert window.mixer is not None
        first = self._first_slice[content]
        start, stop = int(self._contents.start[first]), int(self._contents.stop[first])
        found = window.mixer.best(content, start, stop, float(window.value_s[content]))
        if found is not None:
            window.value_s[content], window.mixed[content] = found
        window.bound_s[content] = window.value_s[content]
        window.asked[content] = True

    def _marked(self, classes: list[int], config: int, number: int) -> tuple[bool, ...]:
        """Marks so many atoms for recomputation, class by class in the order of what they save."""
        marked = [False] * len(classes)
        for held in class_order(self._totals)[:, config].tolist():
            members = [idx for idx, own in enumerate(classes) if own == held][:number]
            for idx in members:
                marked[idx] = True
            number -= len(members)
        return tuple(marked)

    def _model_ends(self) -> Ends:
        contents, atoms = self._contents, self.book.atoms
        distinct = contents.distinct(atoms)
        head = next((idx for idx, atom in enumerate(distinct) if atom.is_head), None)
        ends = np.array([atom.is_embedding or atom.is_head for atom in distinct])
        tied = ends & self.book.model.shares_embedding
        both = (contents.counts[:, tied] > 0).sum(axis=1) == 2
        sequence = tuple(contents.class_of.tolist())
        return Ends(sequence, first_alike(sequence, head), head, tied, both)
