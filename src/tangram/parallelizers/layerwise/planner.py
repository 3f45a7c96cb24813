"""The stage table ``layerwise``: what ``exact`` has, and stages whose atoms have strategies of their own.

``exact`` gives all atoms of a stage one configuration and chooses which of them are recomputed in full. Where
memory is short, or where the ends of the model suit other degrees than its layers, atoms that differ do
better: ZeRO for some layers, the attention core recomputed in some, another tp for the head. The strategies
are those of ``galvatron``. But where that runs a knapsack for one slice, one portion and one number in flight
after the other, this table fills all slices of a portion at once (:mod:`.mixtures`), and only those that a
bound leaves something to gain. Runs of stages are the composition's business.

What is left out: layers of three layouts in one stage, and of two in stages whose layers are of several
kinds; and the best use of the last atom's slack (see :mod:`.mixtures`). For a few stages there is
:mod:`.finest`.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np

from tangram.cost.types import BoolArray, IntArray
from tangram.parallelizers.contents import Contents
from tangram.parallelizers.exact import ExactStageTable
from tangram.parallelizers.invariants import TABLE_COLUMNS
from tangram.parallelizers.layerwise.stages import MixedStages, StageQuestion
from tangram.parallelizers.protocols import Capabilities, OptionTable, StageChoice, TableRequest
from tangram.parallelizers.totals import nanoseconds


@dataclass(frozen=True, slots=True)
class LayerwiseOptions(OptionTable):
    """Options of ``exact``, and others.

    Attributes:
        mixed: Per option, which one of ``stages`` it is; -1 for those of ``exact``.
        stages: Whose atoms differ.
    """

    mixed: IntArray = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    stages: MixedStages | None = None


class LayerwiseTable:
    """Single-stage options of a portion: of one configuration each, or of one per atom."""

    name = "layerwise"
    capabilities = Capabilities(seconds_per_query=0.01)

    def options(self, request: TableRequest) -> OptionTable:
        """Returns the options of ``exact``, and those whose atoms differ and that beat these at some window.

        Rows are ordered by start, stop, time and in-flight count. ``counts`` are those of ``exact``, and
        ``mixed``, how many options have atoms that differ.
        """
        # What is an option must not depend on the limit, so the limit comes last.
        alike = ExactStageTable().options(replace(request, max_time_s=float("inf")))
        if not alike.configs or not len(request.atoms):
            return alike
        question = StageQuestion(request)
        return _together(alike, question.contents, question.better_than(alike), request.max_time_ns)

    def choice(self, request: TableRequest, table: OptionTable, idx: int) -> StageChoice:
        """Returns option ``idx`` of the table as a stage."""
        if not isinstance(table, LayerwiseOptions) or table.stages is None or table.mixed[idx] < 0:
            return ExactStageTable().choice(request, table, idx)
        start, stop = int(table.start[idx]), int(table.stop[idx])
        return StageQuestion(request).choice(start, stop, table.stages, int(table.mixed[idx]))


def _together(
    alike: OptionTable, contents: Contents, stages: MixedStages, limit_ns: int | None
) -> LayerwiseOptions:
    """Adds stages, for every slice of their content, to the options of ``exact``, and drops the slow ones."""
    slices, rows = np.nonzero(contents.content_of[:, None] == stages.content[None, :])
    none = np.zeros(len(rows), dtype=np.int64)
    added = {
        "start": contents.start[slices],
        "stop": contents.stop[slices],
        "max_in_flight": stages.max_in_flight[rows],
        "forward_ns": nanoseconds(stages.forward_s)[rows],
        "backward_ns": nanoseconds(stages.backward_s)[rows],
        "step_ns": nanoseconds(stages.step_s)[rows],
        "config": none,
        "num_recomputed": none,
    }
    columns = {name: np.concatenate([getattr(alike, name), added[name]]) for name in TABLE_COLUMNS}
    mixed = np.concatenate([np.full(len(alike.start), -1), rows])
    time_ns = columns["forward_ns"] + columns["backward_ns"]
    order = np.lexsort((mixed, columns["max_in_flight"], time_ns, columns["stop"], columns["start"]))
    order = order[~_beaten(columns, mixed, order)]
    if limit_ns is not None:
        order = order[time_ns[order] <= limit_ns]
    return LayerwiseOptions(
        **{name: column[order] for name, column in columns.items()},
        configs=alike.configs,
        counts={**alike.counts, "options": len(order), "mixed": int((mixed[order] >= 0).sum())},
        mixed=mixed[order],
        stages=stages,
    )


def _beaten(columns: dict[str, IntArray], mixed: IntArray, order: IntArray) -> BoolArray:
    """Returns which rows, in this order, are no better in anything than another one of their slice, where one
    of the two has atoms that differ; of equal rows the first stays.
    """
    slices = (columns["start"] << 32 | columns["stop"])[order]
    ours = np.flatnonzero(mixed[order] >= 0)
    first, last = (np.searchsorted(slices, slices[ours], side) for side in ("left", "right"))
    number = last - first
    a = np.repeat(ours, number)
    b = np.arange(len(a)) - np.repeat(np.cumsum(number) - number, number) + np.repeat(first, number)
    costs = [columns[name][order] for name in ("forward_ns", "backward_ns", "step_ns")]
    costs.append(-columns["max_in_flight"][order])
    a_beats, b_beats = (np.logical_and.reduce([c[x] <= c[y] for c in costs]) for x, y in ((a, b), (b, a)))
    beaten = np.zeros(len(order), dtype=np.bool_)
    beaten[b[a_beats & (~b_beats | (a < b))]] = True
    beaten[a[b_beats & (~a_beats | (b < a))]] = True
    return beaten


def is_mixed(table: OptionTable) -> BoolArray:
    """Returns which options of a table have atoms that differ."""
    if isinstance(table, LayerwiseOptions):
        return table.mixed >= 0
    return np.zeros(len(table.start), dtype=np.bool_)
