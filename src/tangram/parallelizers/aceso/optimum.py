"""The best pipeline of Aceso's space, by dynamic programming: what a search in it is measured against.

An iteration takes ``sum t + (m - 1) max t``. For a cap on ``max t`` the least sum follows from a recursion
from the last stage to the first, over atoms left, GPUs left and stages behind (on which recomputation
depends); then the caps are searched: between two of them the least sum of the larger and the longest time of
the smaller bound everything, and intervals that cannot hold anything better are dropped. So the result is
exact.

Layers are equal: what a stage costs is computed for the starts in one layer and laid out for all.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from math import inf

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from tangram.cost.types import FloatArray
from tangram.parallelizers.aceso.accounting import AcesoSpace
from tangram.parallelizers.aceso.degrees import size
from tangram.parallelizers.aceso.operators import OPS_PER_LAYER
from tangram.parallelizers.aceso.space import Degrees, Judged, Pipeline, judge

MAX_STAGES = 16
_EQUAL = 1e-9  # Relative: sums in another order.

_Key = tuple[int, int, bool, bool]  # Stages behind, GPUs, whether transfers in and out are between nodes.


@dataclass(slots=True, eq=False)
class StageTimes:
    """Times of all stages of one micro-batch size; ``inf`` for what does not fit or takes longer than a cap.

    Attributes:
        space: Where.
        micro_batch: Global micro-batch.
        cap: Longest time of interest.
    """

    space: AcesoSpace
    micro_batch: int
    cap: float
    _tables: dict[_Key, FloatArray] = field(default_factory=dict)
    _inner: dict[tuple[int, int, int], FloatArray] = field(default_factory=dict)

    def table(self, key: _Key) -> FloatArray:
        """Returns the times with the quickest degrees; ``[start, length - 1]`` is ``[start, start +
        length)``.
        """
        if key not in self._tables:
            behind, gpus, crosses_in, crosses_out = key
            num = self.space.num_atoms
            options = []
            for tp, dp in self.space.degrees(self.micro_batch, gpus):
                batch = self.micro_batch // dp
                inner = self.inner(batch, tp, behind)
                received = [
                    self.space.received_ms(batch, tp, i, between_nodes=crosses_in) for i in range(num)
                ]
                sent = [self.space.sent_ms(batch, tp, i + 1, between_nodes=crosses_out) for i in range(num)]
                options.append(inner + np.array(received)[:, None] + shifted(np.array(sent), inner.shape[1]))
            best = np.full((num, max([o.shape[1] for o in options], default=1)), np.inf)
            for option in options:
                part = best[:, : option.shape[1]]
                np.minimum(part, option, out=part)
            best[best > self.cap] = np.inf
            self._tables[key] = best
        return self._tables[key]

    def inner(self, batch: int, tp: int, behind: int) -> FloatArray:
        """Returns compute and recomputation of all stages, without transfers."""
        key = (batch, tp, behind)
        if key not in self._inner:
            num, tail = self.space.num_atoms, self.space.num_atoms - 2
            rows = [self._row(batch, tp, behind, start, num) for start in range(OPS_PER_LAYER + 1)]
            longest = max(map(len, rows))
            found = np.full((num, longest), np.inf)
            for start in range(num):
                row = rows[start if start == 0 else 1 + (start - 1) % OPS_PER_LAYER]
                if start <= OPS_PER_LAYER:
                    found[start, : len(row)] = row
                    continue
                inside = max(0, min(len(row), tail - start))
                found[start, :inside] = row[:inside]
                ends = self._row(batch, tp, behind, start, num, first=max(start, tail) + 1)
                at = max(start, tail) - start
                found[start, at : at + len(ends)] = ends[: max(0, longest - at)]
            self._inner[key] = found
        return self._inner[key]

    def _row(
        self, batch: int, tp: int, behind: int, start: int, num: int, first: int | None = None
    ) -> list[float]:
        """Returns the times of stages from one start, up to the cap, with ends from ``first``."""
        found: list[float] = []
        for stop in range(first or start + 1, num + 1):
            if self.space.compute_ms(batch, tp, start, stop) > self.cap:
                break
            compute, recompute, memory = self.space.inner(batch, tp, start, stop, behind)
            found.append(compute + recompute if memory <= self.space.limit_mib else inf)
        return found


def shifted(values: FloatArray, width: int) -> FloatArray:
    """Returns ``values[start + i]`` as ``[start, i]``; ``inf`` beyond the end."""
    padded = np.append(values, np.full(width, np.inf))
    found: FloatArray = sliding_window_view(padded, width)[: len(values)]
    return found


@dataclass(frozen=True, slots=True, eq=False)
class _Sums:
    """Least sums of stage times: ``of[stages][gpus][start]`` for the atoms from ``start`` on."""

    times: StageTimes
    cap: float
    of: tuple[dict[int, FloatArray], ...]

    def best(self) -> tuple[float, int]:
        """Returns the least sum of whole pipelines, and its number of stages."""
        whole = self.times.space.num_gpus
        return min((float(gpus[whole][0]), number) for number, gpus in enumerate(self.of) if whole in gpus)

    def pipeline(self) -> Pipeline:
        """Returns a pipeline with the least sum."""
        space = self.times.space
        left, number = self.best()
        start, gpus, stops, degrees = 0, space.num_gpus, [], []
        while number:
            number -= 1
            stop, chosen, left = self._step(start, gpus, number, left)
            stops.append(stop)
            degrees.append(chosen)
            start, gpus = stop, gpus - size(chosen)
        return Pipeline(self.times.micro_batch, tuple(stops), tuple(degrees))

    def _step(self, start: int, gpus: int, behind: int, left: float) -> tuple[int, Degrees, float]:
        """Returns a stage that begins here on the way to a sum, and what is left of the sum behind it."""
        space, micro_batch = self.times.space, self.times.micro_batch
        first_gpu = space.num_gpus - gpus
        for after, rest in self.of[behind].items():
            if gpus - after not in space.sizes:
                continue
            for stop in np.flatnonzero(np.isfinite(rest)).tolist():
                for chosen in space.degrees(micro_batch, gpus - after) if stop > start else ():
                    value = space.value(micro_batch, start, stop, chosen, behind, first_gpu)
                    off = abs(value.time + rest[stop] - left)
                    if (
                        value.memory <= value.limit
                        and value.time <= self.cap * (1 + _EQUAL)
                        and off <= _EQUAL * left
                    ):
                        return stop, chosen, float(rest[stop])
        raise AssertionError("no stage leads to the sum")


def least_sums(times: StageTimes, cap: float, max_stages: int) -> _Sums:
    """Returns the least sums of stage times with no stage above a cap."""
    space, num = times.space, times.space.num_atoms
    end = np.full(num + 1, np.inf)
    end[num] = 0.0
    of: list[dict[int, FloatArray]] = [{0: end}]
    for behind in range(max_stages):
        found: dict[int, FloatArray] = {}
        masked: dict[_Key, FloatArray] = {}
        for after, rest in of[-1].items():
            for gpus, key in _placed(space, after, behind):
                if key not in masked:
                    table = times.table(key)
                    masked[key] = np.where(table <= cap, table, np.inf)
                table = masked[key]
                sums = (table + shifted(rest[1:], table.shape[1])).min(axis=1)
                if np.isfinite(sums).any():
                    sums = np.append(sums, np.inf)
                    np.minimum(sums, found.get(gpus, sums), out=sums)
                    found[gpus] = sums
        of.append(found)
    return _Sums(times, cap, tuple(of))


def _placed(space: AcesoSpace, after: int, behind: int) -> Iterator[tuple[int, _Key]]:
    """Yields what can stand in front of the last ``after`` GPUs: GPUs then used, and its table."""
    stop, per_node = space.num_gpus - after, space.gpus_per_node
    for gpus in space.sizes:
        start = stop - gpus
        if start >= 0 and start // per_node == (stop - 1) // per_node:
            yield after + gpus, (behind, gpus, start > 0 and start % per_node == 0, stop % per_node == 0)


def best_pipeline(
    space: AcesoSpace, micro_batch: int, below: float = inf, max_stages: int = MAX_STAGES
) -> Judged | None:
    """Returns the best pipeline of one micro-batch size; None when none is better than ``below``.

    Args:
        space: Where.
        micro_batch: Global micro-batch.
        below: An iteration time that is known to be reached, in milliseconds; the smaller, the quicker.
        max_stages: Most stages of a pipeline.
    """
    repeats = space.num_micro_batches(micro_batch) - 1
    times = StageTimes(space, micro_batch, below / max(1, repeats))
    stages = min(max_stages, space.num_gpus)
    found: Judged | None = None

    def solved(cap: float) -> float:
        """Returns the least sum under a cap; notes the pipeline where it is the best."""
        nonlocal found, below
        sums = least_sums(times, cap, stages)
        least, _ = sums.best() if any(space.num_gpus in gpus for gpus in sums.of) else (inf, 0)
        if least < inf:
            judged = judge(space, sums.pipeline())
            if judged.iteration < below:
                found, below = judged, judged.iteration
        return least

    solved(inf)
    caps = _caps(times)
    pending = [(-1, len(caps) - 1)]  # The best cap is in (low, high]; the least sum at high is not yet known.
    while pending:
        low, high = pending.pop()
        if low >= high or caps[low + 1] * repeats >= below:
            continue
        least = solved(float(caps[high]))
        if least + repeats * caps[low + 1] >= below:
            continue
        middle = (low + high) // 2
        pending += [(middle, high - 1), (low, middle)]
    return found


def _caps(times: StageTimes) -> FloatArray:
    """Returns all times that the slowest stage of a pipeline may have, ascending."""
    finite = [t[np.isfinite(t)] for t in times._tables.values()]
    return np.unique(np.concatenate(finite)) if finite else np.zeros(0)
