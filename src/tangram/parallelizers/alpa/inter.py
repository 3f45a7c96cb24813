"""The inter-operator pass: which layers run on which part of the GPUs.

Alpa's dynamic programme over layers and submeshes minimises ``sum t_i + (m - 1) max t_i``. It bounds ``max
t``, minimises the sum under the bound, and sweeps the bound over all stage times. Here a label carries both,
and one is dropped only when another of the same slice on as many GPUs is no worse whatever stages come in
front (:func:`useful`): the labels that are left hold what the sweep finds for all bounds, at once.

A third entry takes the place of Alpa's memory test. Under 1F1B a stage with ``s`` stages behind it holds
``s`` micro-batches more than the last one, so a label also carries the most that the last stage may hold with
every stage of it fitting. Thus one table answers for every position of the slice in a longer pipeline.

Rows of labels are arrays: all labels of all slices on so many GPUs are extended in a few operations. A
stage's ``t`` is forward and backward, and its step end divided by the number of micro-batches, as in Alpa;
transfers between stages are left to the referee, as in Alpa. At most the GPUs of the portion are used; Alpa
uses all.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from tangram.cost.types import BoolArray, FloatArray, IntArray
from tangram.parallelizers.alpa.runs import Runs

UNLIMITED = 1 << 40
"""Micro-batches in flight: all that a step can have."""

_FAR = 1e30  # GPU time of what no stage can hold.

TOLERANCE = 1.0
"""Of Alpa's filter, in its benchmarks: shares may differ by a factor of two."""


def rounded_down(limit: IntArray) -> IntArray:
    """Rounds limits above eight down to steps of a quarter of their power of two (10, 12, 14, 16, 20, ...).

    Fewer limits are fewer labels. What rounding hides of a plan comes back when the referee says what it
    really holds; only where a long pipeline asks for a number between two steps may a slower plan answer.
    """
    _, exponent = np.frexp(np.maximum(limit, 1).astype(np.float64))  # limit < 2 ** exponent
    step = np.left_shift(1, np.maximum(exponent.astype(np.int64) - 3, 0))
    rounded: IntArray = limit // step * step
    return rounded


@dataclass(frozen=True, slots=True, eq=False)
class Options:
    """Single stages on one submesh; parallel arrays ordered by run, of shape ``(num_options,)``.

    Attributes:
        num_gpus: Of the submesh.
        run: What the stage holds.
        time_ns: Its ``t``.
        held: Micro-batches whose activations fit, rounded; ``UNLIMITED`` for all of a step.
        choice: For the caller.
    """

    num_gpus: int
    run: IntArray
    time_ns: IntArray
    held: IntArray
    choice: IntArray


@dataclass(frozen=True, slots=True, eq=False)
class Labels:
    """Pipelines of runs on some number of GPUs; parallel arrays ordered by run.

    Attributes:
        run: What the pipeline holds.
        stages: How many.
        sum_ns, max_ns: Of the times of its stages.
        limit: Most micro-batches that its last stage may hold.
        submesh, option: Of the first stage: index of its options, and row in them.
        rest: Row of the pipeline behind it in the labels of the GPUs that are left; -1 for none.
    """

    run: IntArray
    stages: IntArray
    sum_ns: IntArray
    max_ns: IntArray
    limit: IntArray
    submesh: IntArray
    option: IntArray
    rest: IntArray

    def __len__(self) -> int:
        return len(self.run)

    def take(self, rows: IntArray) -> Labels:
        """Returns some of the rows."""
        return Labels(*(getattr(self, name)[rows] for name in Labels.__slots__))


@dataclass(slots=True, eq=False)
class Pipelines:
    """Labels for every number of GPUs, made when they are asked for.

    Attributes:
        runs: Of the model.
        options: By submesh, ascending by GPUs.
        num_micro_batches: Per step.
        all_lengths: Whether a pipeline of more stages is of interest even if one of fewer is no worse.
        balanced: Whether a first stage has to have its share: Alpa's filter, with its tolerance.
    """

    runs: Runs
    options: dict[int, Options]
    num_micro_batches: int
    all_lengths: bool = False
    balanced: bool = False
    _labels: dict[int, Labels] = field(default_factory=dict)

    def labels(self, num_gpus: int) -> Labels:
        """Returns the pipelines that use exactly so many GPUs."""
        if num_gpus not in self._labels:
            parts = [part for idx, part in enumerate(self._extended(num_gpus)) if len(part) or not idx]
            self._labels[num_gpus] = useful(
                _joined(parts), self.num_micro_batches, all_lengths=self.all_lengths
            )
        return self._labels[num_gpus]

    def stages(self, num_gpus: int, row: int) -> list[tuple[int, int]]:
        """Returns the stages of a label, first to last: (index of the submesh, row of its options)."""
        found = []
        while row >= 0:
            labels = self.labels(num_gpus)
            submesh, option = int(labels.submesh[row]), int(labels.option[row])
            found.append((submesh, option))
            row = int(labels.rest[row])
            num_gpus -= self.options[submesh].num_gpus
        return found

    def _extended(self, num_gpus: int) -> list[Labels]:
        """A first stage on every submesh, alone or in front of what fits on the rest of the GPUs."""
        found = [_joined([])]
        for submesh, options in self.options.items():
            left = num_gpus - options.num_gpus
            if left == 0:
                found.append(_alone(submesh, options))
            elif left > 0 and len(options.run):
                found.append(self._in_front(submesh, options, self.labels(left), num_gpus))
        return found

    def _in_front(self, submesh: int, options: Options, rest: Labels, num_gpus: int) -> Labels:
        runs = self.runs
        num_runs = len(runs.start)
        own_first, own_count = _grouped(options.run, num_runs)
        rest_first, rest_count = _grouped(rest.run, num_runs)
        number = own_count[runs.front] * rest_count[runs.rear]
        if self.balanced:
            number = number * self._has_its_share(options.num_gpus, num_gpus)
        cut = np.repeat(np.arange(len(number)), number)
        place = np.arange(len(cut)) - np.repeat(np.cumsum(number) - number, number)
        width = rest_count[runs.rear][cut]
        option = own_first[runs.front][cut] + place // np.maximum(width, 1)
        behind = rest_first[runs.rear][cut] + place % np.maximum(width, 1)
        held = options.held[option]
        # The first stage holds one micro-batch more per stage behind it.
        own = np.where(held >= UNLIMITED, UNLIMITED, held - rest.stages[behind])
        limit = rounded_down(np.minimum(own, rest.limit[behind]))
        able = np.flatnonzero(limit >= 1)
        cut, option, behind = cut[able], option[able], behind[able]
        time_ns = options.time_ns[option]
        return Labels(
            run=runs.cut[cut],
            stages=rest.stages[behind] + 1,
            sum_ns=rest.sum_ns[behind] + time_ns,
            max_ns=np.maximum(rest.max_ns[behind], time_ns),
            limit=limit[able],
            submesh=np.full(len(able), submesh, dtype=np.int64),
            option=option,
            rest=behind,
        )

    def _has_its_share(self, own_gpus: int, num_gpus: int) -> BoolArray:
        """Returns per cut whether the front's shares of work and GPUs differ by no more than a factor."""
        work = self._work(num_gpus)
        ratio = work[self.runs.front] * num_gpus / (work[self.runs.cut] * own_gpus)
        near: BoolArray = (ratio <= 1 + TOLERANCE) & (ratio * (1 + TOLERANCE) >= 1)
        return near

    def _work(self, num_gpus: int) -> FloatArray:
        """Returns the least GPU time of every run, as one stage or as several."""
        runs = self.runs
        work = np.full(len(runs.start), _FAR)
        for options in self.options.values():
            if options.num_gpus <= num_gpus:
                np.minimum.at(work, options.run, options.time_ns * float(options.num_gpus))
        while True:
            before = work.copy()
            np.minimum.at(work, runs.cut, work[runs.front] + work[runs.rear])
            if np.array_equal(work, before):
                return work


def _alone(submesh: int, options: Options) -> Labels:
    num = len(options.run)
    return Labels(
        run=options.run,
        stages=np.ones(num, dtype=np.int64),
        sum_ns=options.time_ns,
        max_ns=options.time_ns,
        limit=options.held,
        submesh=np.full(num, submesh, dtype=np.int64),
        option=np.arange(num),
        rest=np.full(num, -1, dtype=np.int64),
    )


def _joined(parts: Sequence[Labels]) -> Labels:
    empty: IntArray = np.zeros(0, dtype=np.int64)
    return Labels(*(np.concatenate([empty, *(getattr(p, name) for p in parts)]) for name in Labels.__slots__))


def _grouped(run: IntArray, num_runs: int) -> tuple[IntArray, IntArray]:
    """Returns the first row of every run, and its number of rows."""
    count = np.bincount(run, minlength=num_runs).astype(np.int64)
    return np.cumsum(count) - count, count


def useful(labels: Labels, num_micro_batches: int, *, all_lengths: bool = False) -> Labels:
    """Drops what another label of the same run is no worse than, and orders the rest by run.

    No worse: in sum, in limit, in the number of stages, and in ``sum + (m - 1) max``, which is all that the
    maximum matters for: behind a front whose own maximum is anything from nothing to the larger of both, the
    other label is then no worse in what the whole is judged by. Of equal ones the first stays. With
    ``all_lengths`` only labels of as many stages are compared.
    """
    if not len(labels):
        return labels
    value = labels.sum_ns + (num_micro_batches - 1) * labels.max_ns
    by_stages = np.argsort(labels.stages, kind="stable")
    begins = np.flatnonzero(np.diff(labels.stages[by_stages], prepend=0))
    kept: IntArray = np.zeros(0, dtype=np.int64)
    for fresh in np.split(by_stages, begins[1:]):
        rows = fresh if all_lengths else np.concatenate([kept, fresh])
        order = np.lexsort((labels.sum_ns[rows], labels.run[rows]))
        fixed, rows = order < len(rows) - len(fresh), rows[order]
        found = rows[_undominated(labels.run[rows], value[rows], labels.limit[rows], fixed)]
        kept = np.concatenate([kept, found]) if all_lengths else found
    return labels.take(kept[np.argsort(labels.run[kept], kind="stable")])


def _undominated(run: IntArray, value: IntArray, limit: IntArray, fixed: BoolArray) -> IntArray:
    """Returns the useful rows of labels that are ordered by run and sum, and those that are fixed.

    Looks at one limit after the other, the largest first: the rows in front have no larger sums, so a row
    with no larger limit goes when the least value in front of it, among limits as large, is no larger than
    its own.
    """
    far = int(value.max()) + 1
    group = np.cumsum(np.diff(run, prepend=run[0]) != 0)
    shifted = value - group * far  # Later runs lie below earlier ones: they start anew.
    rows = np.arange(len(value))
    for level in np.unique(limit)[::-1]:
        values, limits = shifted[rows], limit[rows]
        least = np.minimum.accumulate(np.where(limits >= level, values, far))
        in_front = np.concatenate([[far], least[:-1]])
        rows = rows[(limits > level) | (in_front > values) | fixed[rows]]
    return rows
