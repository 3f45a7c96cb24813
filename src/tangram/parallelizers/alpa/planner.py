"""The parallelizer ``alpa``: both passes behind the narrow API.

Per island and micro-batch size, submeshes are costed once for all contents: the intra-operator pass leaves
configurations (:mod:`tangram.parallelizers.alpa.fronts`), the referee says what stages cost under each with
all or none of their layers recomputed, and the inter-operator pass strings them together. A query only looks
up.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import accumulate, pairwise

import numpy as np

from tangram.cluster.spec import Portion, portions
from tangram.cost.types import FloatArray, IntArray, StageConfig
from tangram.job import Recompute
from tangram.parallelizers.alpa.fronts import stage_configs
from tangram.parallelizers.alpa.inter import UNLIMITED, Options, Pipelines, rounded_down
from tangram.parallelizers.alpa.runs import Runs, runs_of
from tangram.parallelizers.book import StageBook, stage_book
from tangram.parallelizers.contents import slice_contents
from tangram.parallelizers.protocols import Capabilities, SlicePlan, SliceRequest, StageChoice
from tangram.parallelizers.totals import StageTotals, nanoseconds, stage_totals

_TABLES = 4  # Islands and micro-batch sizes that are remembered.

_MOST_UNITS = 16
"""Blocks of GPUs that a portion is counted in: a larger one has no stages of a single GPU."""


_FEW_NODES = 4
"""Up to so many nodes a stage may have any number of them; beyond, few numbers (Alpa: powers of two)."""


class AlpaPlanner:
    """Plans a slice as Alpa does: stages on submeshes, each with a sharding of its operators."""

    name = "alpa"
    capabilities = Capabilities(seconds_per_query=0.0005)

    def plan(self, request: SliceRequest) -> Sequence[SlicePlan]:
        """Returns plans that fit at ``request.in_flight``, the fastest first.

        With stage times ``t_i`` (step ends included, one part in ``m`` each) and ``m`` micro-batches a plan
        is judged by ``sum t_i + (m - 1) max t_i``. A slower plan is returned only if it still fits with more
        micro-batches in flight than all faster ones. The last stage holds ``request.in_flight``, each stage
        in front of it one more.
        """
        island = _island(stage_book(request))
        ranked = island.ranked(request.portion.num_gpus)
        run = int(island.runs.number[request.start, request.stop])
        first, last = int(ranked.first[run]), int(ranked.first[run + 1])
        rows = range(first, last)
        return [
            island.slice_plan(request, ranked, row) for row in rows if ranked.limit[row] >= request.in_flight
        ]


@dataclass(frozen=True, slots=True, eq=False)
class _Ranked:
    """The useful plans on at most so many GPUs; arrays ordered by run, then value.

    Attributes:
        unit: Every stage has a multiple of so many GPUs.
        first: First row of each run, and the end of the last.
        limit: Most micro-batches in flight at the last stage.
        num_gpus, row: The label.
    """

    unit: int
    first: IntArray
    limit: IntArray
    num_gpus: IntArray
    row: IntArray


@dataclass(slots=True, eq=False)
class _IslandTables:
    """Everything that is known of one island and micro-batch size.

    Attributes:
        book: The question.
        runs: Of the model.
        submeshes: Portions of stages, in the order in which they were asked for.
        choices: Per submesh, configuration and whether layers are recomputed, as options number them.
        pipelines: On these submeshes.
    """

    book: StageBook
    runs: Runs
    submeshes: list[Portion] = field(default_factory=list)
    choices: list[list[tuple[StageConfig, bool]]] = field(default_factory=list)
    _options: list[Options] = field(default_factory=list)
    _pipelines: dict[int, Pipelines] = field(default_factory=dict)
    _ranked: dict[int, _Ranked] = field(default_factory=dict)

    def ranked(self, num_gpus: int) -> _Ranked:
        """Returns the plans of all runs on at most so many GPUs."""
        if num_gpus not in self._ranked:
            self._grow(num_gpus)
            self._ranked[num_gpus] = self._rank(num_gpus)
        return self._ranked[num_gpus]

    def pipelines(self, unit: int) -> Pipelines:
        """Returns the pipelines whose stages have multiples of so many GPUs."""
        if unit not in self._pipelines:
            dictated = self.book.job.pins.pp is not None
            self._pipelines[unit] = Pipelines(
                self.runs, {}, self.book.num_micro_batches, dictated, balanced=unit > 1
            )
        made = self._pipelines[unit]
        for submesh, options in enumerate(self._options):
            if options.num_gpus % unit == 0:
                made.options.setdefault(submesh, options)
        return made

    def slice_plan(self, request: SliceRequest, ranked: _Ranked, row: int) -> SlicePlan:
        """Returns a ranked plan for a slice of its run."""
        position, stages = request.start, []
        pipelines = self._pipelines[ranked.unit]
        for submesh, option in pipelines.stages(int(ranked.num_gpus[row]), int(ranked.row[row])):
            options = self._options[submesh]
            run = int(options.run[option])
            config, full = self.choices[submesh][int(options.choice[option])]
            stop = position + int(self.runs.stop[run] - self.runs.start[run])
            held = request.atoms[position:stop]
            recomputed = tuple(full and not (a.is_embedding or a.is_head) for a in held)
            stages.append(StageChoice(position, stop, self.submeshes[submesh], config, recomputed))
            position = stop
        return SlicePlan(tuple(stages))

    def _grow(self, num_gpus: int) -> None:
        """Costs the submeshes of up to so many GPUs."""
        for portion in portions(self.book.island):
            if portion in self.submeshes or portion.num_gpus > num_gpus or not _is_submesh(portion):
                continue
            options, choices = _options(self.book, self.runs, portion)
            self.submeshes.append(portion)
            self.choices.append(choices)
            self._options.append(options)

    def _rank(self, num_gpus: int) -> _Ranked:
        unit = _unit(num_gpus, sorted(portion.num_gpus for portion in self.submeshes))
        pipelines = self.pipelines(unit)
        labels = {d: pipelines.labels(d) for d in range(unit, num_gpus + 1, unit)}
        run, stages, total, slowest, limit = (
            np.concatenate([getattr(part, name) for part in labels.values()])
            for name in ("run", "stages", "sum_ns", "max_ns", "limit")
        )
        gpus = np.concatenate([np.full(len(part), d) for d, part in labels.items()])
        row = np.concatenate([np.arange(len(part)) for part in labels.values()])
        value = total + (self.book.num_micro_batches - 1) * slowest
        order = np.lexsort((row, gpus, stages, -limit, value, run))
        order = order[self._may(run, stages)[order]]
        run, limit = run[order], limit[order]
        # Within a run, only what fits with more in flight than everything faster.
        raised = limit + run * (2 * UNLIMITED)
        best = np.maximum.accumulate(raised)
        kept = np.concatenate([[True], best[1:] > best[:-1]]) if len(best) else np.zeros(0, dtype=np.bool_)
        first = np.searchsorted(run[kept], np.arange(len(self.runs.start) + 1))
        return _Ranked(unit, first, limit[kept], gpus[order][kept], row[order][kept])

    def _may(self, run: IntArray, stages: IntArray) -> np.ndarray[tuple[int, ...], np.dtype[np.bool_]]:
        """Returns which labels the user's number of stages allows."""
        wanted = self.book.job.pins.pp
        if wanted is None:
            return np.ones(len(run), dtype=np.bool_)
        return np.where(run == self.runs.whole, stages == wanted, stages <= wanted)


def _is_submesh(portion: Portion) -> bool:
    """Whether stages may have this portion: of few nodes, of ``2^k`` or ``3 * 2^k``, or of all there are."""
    num = portion.num_nodes
    odd = num // 3 if num % 3 == 0 else num
    return num <= _FEW_NODES or odd & (odd - 1) == 0 or num == portion.island.num_nodes


def _unit(num_gpus: int, sizes: Sequence[int]) -> int:
    """Returns the block of GPUs that a portion is counted in: the smallest submesh that makes few of it."""
    able = [size for size in sizes if num_gpus % size == 0 and size < num_gpus] or [num_gpus]
    return next((size for size in able if num_gpus // size <= _MOST_UNITS), able[-1])


@lru_cache(maxsize=_TABLES)
def _island(book: StageBook) -> _IslandTables:
    pins = book.job.pins
    dictated = None if pins.layers_per_stage is None else _dictated(book, pins.layers_per_stage)
    return _IslandTables(book, runs_of(book.classes, book.first_layers, dictated))


def _dictated(book: StageBook, layers_per_stage: Sequence[int]) -> tuple[int, ...]:
    """Returns the atoms in front of which the dictated stages begin; a layer inside of an atom has none."""
    begins: dict[int, int] = {}
    for position, atom in enumerate(book.atoms):
        for layer in atom.layer_idxs[:1]:
            begins.setdefault(layer, position)
    cuts = list(accumulate(layers_per_stage))[:-1]
    return tuple(begins.get(cut, -1) for cut in cuts)


def _options(book: StageBook, runs: Runs, portion: Portion) -> tuple[Options, list[tuple[StageConfig, bool]]]:
    """Costs all runs as single stages on a submesh, and keeps what is fastest for some number in flight."""
    configs, pinned = stage_configs(book, portion), book.job.pins.recompute
    modes = (False, True) if pinned is None else (pinned is Recompute.FULL,)
    choices = [(config, full) for full in modes for config in configs]
    if not configs:
        none = np.zeros(0, dtype=np.int64)
        return Options(portion.num_gpus, none, none, none, none), choices
    contents = slice_contents(book.atoms)
    plain = stage_totals(book.model, book.atoms, contents, portion, configs, book.micro_batch, book.job)
    totals = [plain.all_recomputed() if full else plain for full in modes]
    time_ns = np.concatenate([_time_ns(t, book.num_micro_batches) for t in totals], axis=1)
    held = np.concatenate([_held(t, book.num_micro_batches) for t in totals], axis=1)
    num = len(book.atoms)
    place = runs.start * num - runs.start * (runs.start - 1) // 2 + runs.stop - runs.start - 1
    content = contents.content_of[place]
    order = np.argsort(time_ns, axis=1, kind="stable")
    ranked_held = np.take_along_axis(held, order, axis=1)
    reached = np.maximum.accumulate(ranked_held, axis=1)
    more = np.ones(reached.shape, dtype=np.bool_)
    more[:, 1:] = reached[:, 1:] > reached[:, :-1]
    more &= ranked_held >= 1
    run, column = np.nonzero((more[content]) & _stands(runs, book)[:, None])
    choice = order[content[run], column]
    return (
        Options(portion.num_gpus, run, time_ns[content[run], choice], held[content[run], choice], choice),
        choices,
    )


def _stands(runs: Runs, book: StageBook) -> np.ndarray[tuple[int, ...], np.dtype[np.bool_]]:
    """Returns which runs may be a stage: all, or those that lie between neighbouring dictated cuts."""
    pins = book.job.pins
    if pins.layers_per_stage is None:
        return np.ones(len(runs.start), dtype=np.bool_)
    bounds = [0, *_dictated(book, pins.layers_per_stage), len(book.atoms)]
    stages = set(pairwise(bounds))
    pairs = zip(runs.start.tolist(), runs.stop.tolist(), strict=True)
    return np.array([pair in stages for pair in pairs], dtype=np.bool_)


def _time_ns(totals: StageTotals, num_micro_batches: int) -> IntArray:
    """Forward, backward and a micro-batch's share of the step end."""
    return nanoseconds(totals.forward_s + totals.backward_s + totals.step_s / num_micro_batches)


def _held(totals: StageTotals, num_micro_batches: int) -> IntArray:
    """Returns how many micro-batches fit into the room that is left; -1 where that is below zero."""
    room: FloatArray = totals.room_bytes
    fits = np.floor(np.maximum(room, 0.0) / np.maximum(totals.activation_bytes, 1.0))
    held = np.where(room < 0, -1.0, np.where(fits >= num_micro_batches, float(UNLIMITED), fits))
    return np.where(held < 0, -1, rounded_down(held.astype(np.int64)))
