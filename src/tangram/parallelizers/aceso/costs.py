"""Aceso's space for a slice on an island portion, on Tangram's cost model.

What any slice costs as one stage is computed once per number of GPUs, for all degrees and all numbers of
micro-batches in flight together; the search then only looks stages up. Under a stage's tp and dp the quickest
choice that fits is derived, as Aceso derives recomputation: how many atoms are recomputed in full, whether
the attention core of the others is (where attention is not fused), and, an addition to Aceso's space, how the
experts of a mixture are spread.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from tangram.cluster.spec import Portion, portions
from tangram.cost.configs import legal_configs
from tangram.cost.constants import upper_memory_ratio
from tangram.cost.types import IntArray, StageConfig
from tangram.job import Recompute
from tangram.model.atoms import Atom
from tangram.parallelizers.aceso.space import Degrees, Pipeline, StageValue
from tangram.parallelizers.book import StageBook
from tangram.parallelizers.contents import Contents, slice_contents
from tangram.parallelizers.protocols import SlicePlan, StageChoice
from tangram.parallelizers.recompute import class_order, least_recompute, no_recompute
from tangram.parallelizers.totals import SPARE_BYTES, StageTotals, nanoseconds, stage_totals

_TABLES = 24  # Stage sizes that are remembered, of some islands and micro-batches.
_FAR = np.int64(1) << 60


class Derived(NamedTuple):
    """What follows from a stage's degrees and its number of micro-batches in flight.

    Attributes:
        value: What it costs; times in nanoseconds, memory in bytes.
        config: Index of the configuration.
        num_recomputed: Atoms recomputed in full.
    """

    value: StageValue
    config: int
    num_recomputed: int


@dataclass(slots=True, eq=False)
class SizeTable:
    """What slices cost as stages of one number of GPUs, for one model, island and micro-batch.

    Attributes:
        portion: The GPUs.
        contents: Of all slices of the model.
        configs: Of Aceso's space, grouped by degrees.
        groups: Per degrees, the first of their configurations and the one behind the last.
        totals: Costs without full recomputation.
        key_ns: What decides between configurations of equal degrees, m t + u; ``_FAR`` where it does not fit.
            Of ``(content, config, window)``, window 1 first; so are the next two.
        num_recomputed: Atoms recomputed in full.
        time_ns: Forward, backward and recomputation.
        num_windows: Length of the last axis; a step has no more micro-batches than that, or nobody asks.
    """

    portion: Portion
    contents: Contents
    configs: tuple[StageConfig, ...]
    groups: dict[Degrees, tuple[int, int]]
    totals: StageTotals
    full: StageTotals
    key_ns: IntArray
    num_recomputed: IntArray
    time_ns: IntArray
    step_ns: IntArray
    plain_ns: IntArray
    num_windows: int
    limit_bytes: float
    _orders: dict[int, list[int]] = field(default_factory=dict)

    def recomputed(self, start: int, stop: int, derived: Derived) -> tuple[bool, ...]:
        """Marks the recomputed atoms of a slice: class by class, the earliest first."""
        marks = [False] * (stop - start)
        number = derived.num_recomputed
        if number:
            if derived.config not in self._orders:
                self._orders[derived.config] = class_order(self.totals)[:, derived.config].tolist()
            classes = self.contents.class_of[start:stop].tolist()
            for held in self._orders[derived.config]:
                for at, atom_class in enumerate(classes):
                    if number and atom_class == held:
                        marks[at] = True
                        number -= 1
        return tuple(marks)

    def derived(self, content: int, degrees: Degrees, window: int) -> Derived:
        """Returns the quickest choice that fits; where none does, the one that lacks least memory."""
        first, last = self.groups[degrees]
        at = min(window, self.num_windows) - 1
        config = first + int(np.argmin(self.key_ns[content, first:last, at]))
        fits = bool(self.key_ns[content, config, at] < _FAR)
        if not fits:
            full = self.full
            lacking = (window * full.activation_bytes - full.room_bytes)[content, first:last]
            config = first + int(np.argmin(lacking))
            memory = self.limit_bytes + float(lacking[config - first])
        number = int(self.num_recomputed[content, config, at])
        time, plain = int(self.time_ns[content, config, at]), int(self.plain_ns[content, config])
        if fits:
            held = window * float(self.totals.activation_bytes[content, config])
            used = self.limit_bytes - float(self.totals.room_bytes[content, config]) + held
            memory = min(used, self.limit_bytes)  # What recomputes does so until it just fits.
        value = StageValue(
            time=float(time),
            step=float(self.step_ns[content, config]),
            memory=memory,
            limit=self.limit_bytes,
            ideal=float(plain),
            recompute=float(time - plain),
        )
        return Derived(value, config, number)


def aceso_configs(book: StageBook, portion: Portion) -> list[StageConfig]:
    """Returns the configurations of Aceso's space, by tp: tp x dp, neither ZeRO nor context parallelism.

    What the user dictates counts all the same; a dictated cp is part of the number of replicas.
    """
    pins = book.job.pins
    found: dict[StageConfig, None] = {}
    for config in legal_configs(book.model, portion, book.micro_batch, book.job):
        if config.cp == (pins.cp or 1):
            found[config if pins.zero is not None else replace(config, zero=0)] = None
    return list(found)


@lru_cache(maxsize=_TABLES)
def size_table(book: StageBook, num_nodes: int, gpus_per_node: int, num_windows: int) -> SizeTable | None:
    """Returns the table of one stage size; None where it has no configuration."""
    portion = Portion(book.island, num_nodes, gpus_per_node)
    configs = aceso_configs(book, portion)
    if not configs:
        return None
    groups: dict[Degrees, tuple[int, int]] = {}
    for idx, config in enumerate(configs):
        degrees = config.tp, config.dp * config.cp
        groups[degrees] = groups.get(degrees, (idx, idx))[0], idx + 1
    contents = slice_contents(book.atoms)
    totals = stage_totals(book.model, book.atoms, contents, portion, configs, book.micro_batch, book.job)
    pinned = book.job.pins.recompute
    full = totals.all_recomputed() if pinned in (None, Recompute.FULL) else totals
    if pinned is Recompute.FULL:
        totals = full
    shape = (len(contents.counts), len(configs), num_windows)
    content, column = (axis.reshape(-1) for axis in np.indices(shape[:2]))
    levels = (least_recompute if pinned is None else no_recompute)(totals, content, column, num_windows)
    number = levels.num_recomputed.reshape(shape)
    if pinned is Recompute.FULL:
        number = np.broadcast_to(totals.num_recomputable[:, None, None], shape)
    forward_ns = nanoseconds(totals.forward_s)
    backward_s = totals.backward_s[:, :, None] + levels.recompute_s.reshape(shape)
    time_ns = forward_ns[:, :, None] + nanoseconds(backward_s)
    step_ns = nanoseconds(totals.step_s)
    key_ns = time_ns * book.num_micro_batches + step_ns[:, :, None]
    return SizeTable(
        portion=portion,
        contents=contents,
        configs=tuple(configs),
        groups=groups,
        totals=totals,
        full=full,
        key_ns=np.where(levels.feasible.reshape(shape), key_ns, _FAR),
        num_recomputed=number,
        time_ns=time_ns,
        step_ns=step_ns,
        plain_ns=forward_ns + nanoseconds(totals.backward_s),
        num_windows=num_windows,
        limit_bytes=book.island.gpu.usable_memory_bytes / upper_memory_ratio(book.job.basis) - SPARE_BYTES,
    )


@dataclass(slots=True, eq=False)
class SliceSpace:
    """Pipelines for a slice on an island portion.

    Transfers between its stages are left to the referee. There is one micro-batch to choose from: Tangram
    searches it outside of its parallelizers.

    Attributes:
        book: The question: model, island, micro-batch.
        portion: The GPUs.
        positions: Where stages may begin and end, as atoms of the model; a space's atoms are what is between.
        tables: By number of GPUs.
        values: What was looked up, by content, degrees and window; slices share it.
        in_flight: Micro-batches in flight at the last stage.
    """

    book: StageBook
    portion: Portion
    positions: tuple[int, ...]
    tables: dict[int, SizeTable]
    values: dict[tuple[int, Degrees, int], StageValue]
    in_flight: int = 1
    num_atoms: int = field(init=False)
    num_gpus: int = field(init=False)
    micro_batches: tuple[int, ...] = field(init=False)
    sizes: tuple[int, ...] = field(init=False)
    _choices: dict[int, tuple[Degrees, ...]] = field(init=False)
    _contents: list[list[int]] = field(init=False)

    def __post_init__(self) -> None:
        self.num_atoms = len(self.positions) - 1
        self.num_gpus = self.portion.num_gpus
        self.micro_batches = (self.book.micro_batch,)
        self.sizes = tuple(sorted(self.tables))
        self._choices = {size: tuple(table.groups) for size, table in self.tables.items()}
        self._contents = _contents(self.book.atoms, self.positions)

    def at(self, in_flight: int) -> SliceSpace:
        """Returns the space with another number of micro-batches in flight."""
        space = copy(self)
        space.in_flight = in_flight
        return space

    def num_micro_batches(self, micro_batch: int) -> int:
        """Returns the number of micro-batches of one step."""
        return self.book.num_micro_batches

    def degrees(self, micro_batch: int, size: int) -> tuple[Degrees, ...]:
        """Returns the degrees of the legal configurations."""
        return self._choices.get(size, ())

    def lays_out(self, sizes: tuple[int, ...]) -> bool:
        """Returns whether they use all GPUs; legal sizes always pack."""
        return sum(sizes) == self.num_gpus

    def value(
        self, micro_batch: int, start: int, stop: int, degrees: Degrees, behind: int, first_gpu: int
    ) -> StageValue:
        """Returns what a stage costs, in nanoseconds and bytes."""
        window = self.in_flight + behind
        if window > self.book.num_micro_batches:
            window = self.book.num_micro_batches
        key = (self._contents[start][stop - start - 1], degrees, window)
        found = self.values.get(key)
        if found is None:  # The search spends most of its time in this function.
            found = self.values[key] = self._derived(start, stop, degrees, behind).value
        return found

    def _derived(self, start: int, stop: int, degrees: Degrees, behind: int) -> Derived:
        window = min(self.in_flight + behind, self.book.num_micro_batches)
        table = self.tables[degrees[0] * degrees[1]]
        return table.derived(self._contents[start][stop - start - 1], degrees, window)

    def plan(self, pipeline: Pipeline) -> SlicePlan:
        """Returns a pipeline of this space as a slice plan."""
        stages = []
        start, last = 0, len(pipeline.stops) - 1
        for idx, (stop, degrees) in enumerate(zip(pipeline.stops, pipeline.degrees, strict=True)):
            table = self.tables[degrees[0] * degrees[1]]
            derived = self._derived(start, stop, degrees, last - idx)
            first, end = self.positions[start], self.positions[stop]
            marks = table.recomputed(first, end, derived)
            stages.append(StageChoice(first, end, table.portion, table.configs[derived.config], marks))
            start = stop
        return SlicePlan(tuple(stages))


def slice_space(book: StageBook, portion: Portion, positions: Sequence[int], num_windows: int) -> SliceSpace:
    """Returns the space of a slice.

    Args:
        book: Of the question.
        portion: The GPUs.
        positions: Where stages may begin and end: from the slice's first atom to behind its last one.
        num_windows: Micro-batches in flight up to which costs are told apart.
    """
    tables = _tables(book, portion.num_nodes, portion.gpus_per_node, num_windows)
    return SliceSpace(book, portion, tuple(positions), *tables)


@lru_cache(maxsize=_TABLES)
def _tables(
    book: StageBook, num_nodes: int, gpus_per_node: int, num_windows: int
) -> tuple[dict[int, SizeTable], dict[tuple[int, Degrees, int], StageValue]]:
    """Returns the tables of all stage sizes within a portion, and a place for what is looked up there."""
    tables = {}
    for part in portions(book.island):
        if part.num_nodes <= num_nodes and part.gpus_per_node <= gpus_per_node:
            table = size_table(book, part.num_nodes, part.gpus_per_node, num_windows)
            if table is not None:
                tables[part.num_gpus] = table
    return tables, {}


def _contents(atoms: Sequence[Atom], positions: Sequence[int]) -> list[list[int]]:
    """Returns the content of every stage: ``[start][length - 1]``."""
    num = len(atoms)
    content_of = slice_contents(atoms).content_of
    begin, end = np.array(positions[:-1]), np.array(positions[1:])
    # Slices go by start, then stop.
    place = (begin * num - begin * (begin - 1) // 2 - begin - 1)[:, None] + end[None, :]
    return [content_of[place[i, i:]].tolist() for i in range(len(begin))]
