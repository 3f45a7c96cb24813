"""The clock that Sailor searches by: how long stages take alone, and joined to those behind them.

With M micro-batches, compute c of a stage (its slowest type), and transfer h one way over the edge behind it:

    T = (M - 1) S + sum c + 2 sum h + the longest gradient all-reduce (+ the longest update)

where S is the largest of c + h of any stage with the edge behind it, and of c with the edges on either
side of it. The published clock counts the update only for pipelines of one stage.

A ring all-reduce over n replicas takes 2 (n - 1) messages of a share of a bucket, one after the other,
buckets one after the other, and nothing overlaps. It runs over the slowest connection among the stage's
types, each to its own.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from tangram.baselines.sailor.profile import Endpoint, Link, Run, SailorProblem, paired
from tangram.baselines.sailor.rules import Cuts, Degrees, stage_time_s

BUCKET_BYTES = 500_000_000
"""Gradients that are reduced at once (DeepSpeed's default)."""


class Tail(NamedTuple):
    """The last stages of a pipeline, and what the clock knows of them.

    Attributes:
        total_s: Iteration time of these stages alone.
        straggler_s: The pace that the slowest of them sets.
        compute_s: Sum over the stages.
        first_s: The first stage, with the transfer behind it.
        transfer_s: Sum over the edges, both ways.
        sync_s, update_s: The longest at the step's end.
        runs: Replicas of the first stage.
        rest: The stages behind it.
    """

    total_s: float
    straggler_s: float
    compute_s: float
    first_s: float
    transfer_s: float
    sync_s: float
    update_s: float
    runs: tuple[Run, ...]
    rest: Tail | None

    def stages(self) -> Iterator[tuple[Run, ...]]:
        """Yields the replicas of the stages, first to last."""
        tail: Tail | None = self
        while tail is not None:
            yield tail.runs
            tail = tail.rest


def all_reduce_s(link: Link, num_bytes: float, replicas: int) -> float:
    """Returns the time of a ring all-reduce, bucket after bucket."""
    if replicas <= 1:
        return 0.0
    whole, rest = divmod(num_bytes, BUCKET_BYTES)
    seconds = whole * link.seconds(BUCKET_BYTES / replicas)
    if rest:
        seconds += link.seconds(rest / replicas)
    return 2 * (replicas - 1) * seconds


@dataclass(slots=True)
class Clock:
    """Of one way to cut the layers, one micro-batch, one choice of tp.

    Attributes:
        problem: Profiles, network, batch.
        cuts: The stages.
        micro_batch: Samples per replica.
        degrees: The tp of every type and stage.
        defects: Whether to do as the published program does.
    """

    problem: SailorProblem
    cuts: Cuts
    micro_batch: int
    degrees: Degrees
    defects: bool
    _leasts: dict[int, tuple[float, float, list[tuple[float, int, int]]]] = field(default_factory=dict)
    _compute: dict[tuple[int, int], float] = field(default_factory=dict)
    _ends: dict[tuple[int, tuple[Endpoint, ...], int], tuple[float, float]] = field(default_factory=dict)
    _hops: dict[tuple[Endpoint, Endpoint, int], float] = field(default_factory=dict)

    def num_micro_batches(self, dp: int) -> int:
        """Returns the micro-batches per step."""
        return math.ceil(self.problem.global_batch / (self.micro_batch * dp))

    def compute_s(self, idx: int, gpu: int) -> float:
        """Returns forward plus backward of one micro-batch in stage ``idx`` on one type."""
        key = idx, gpu
        if key not in self._compute:
            tps = self.degrees[gpu]
            assert tps is not None, "a type that cannot hold every stage gets none"
            self._compute[key] = stage_time_s(
                self.problem.gpus[gpu], tps[idx], *self.cuts[idx], self.micro_batch
            )
        return self._compute[key]

    def at_least_s(self, dp: int, first: int, left: Sequence[int]) -> float:
        """Returns what no pipeline of the stages from ``first`` on undercuts; ``inf`` where GPUs are missing.

        Every stage runs on its fastest type, without transfers; and the pace is that of the slowest type
        that is needed for as many replicas as there are in all these stages together.

        Args:
            dp: Replicas of every stage.
            first: Index of the first of the stages.
            left: GPUs that they may have, per type.
        """
        slowest_s, total_s, types = self._least(first)
        pace_s, missing = slowest_s, dp * (len(self.cuts) - first)
        for least_s, gpu, tp in types:
            if missing <= 0:
                break
            pace_s = max(pace_s, least_s)
            missing -= left[gpu] // tp
        if missing > 0:
            return math.inf
        return (self.num_micro_batches(dp) - 1) * pace_s + total_s

    def _least(self, first: int) -> tuple[float, float, list[tuple[float, int, int]]]:
        """Of the stages from ``first`` on, each on its fastest type: the slowest, and the sum; and per type,
        fastest first, its least time and tp.
        """
        if first not in self._leasts:
            stages = range(first, len(self.cuts))
            types = [(g, tps) for g, tps in enumerate(self.degrees) if tps is not None]
            fastest = [min(self.compute_s(idx, g) for g, _ in types) for idx in stages]
            by_type = [
                (min(self.compute_s(idx, g) for idx in stages), g, min(tps[first:])) for g, tps in types
            ]
            self._leasts[first] = max(fastest), sum(fastest), sorted(by_type)
        return self._leasts[first]

    def alone(self, idx: int, runs: tuple[Run, ...], dp: int) -> Tail:
        """Returns stage ``idx`` by itself."""
        compute_s = max(self.compute_s(idx, run.endpoint.gpu) for run in runs)
        sync_s, update_s = self._step_end(idx, tuple(run.endpoint for run in runs), dp)
        total_s = self.num_micro_batches(dp) * compute_s + sync_s + update_s
        return Tail(total_s, compute_s, compute_s, compute_s, 0.0, sync_s, update_s, runs, None)

    def joined(self, idx: int, front: Tail, rest: Tail, dp: int) -> Tail:
        """Returns stage ``idx`` with the stages behind it."""
        hop_s = max(self._hop_s(idx, a, b) for a, b in paired(front.runs, rest.runs))
        straggler_s = max(front.compute_s + hop_s, rest.first_s + hop_s, rest.straggler_s)
        compute_s = front.compute_s + rest.compute_s
        transfer_s = rest.transfer_s + hop_s + hop_s
        sync_s = max(front.sync_s, rest.sync_s)
        update_s = 0.0 if self.defects else max(front.update_s, rest.update_s)
        paces_s = (self.num_micro_batches(dp) - 1) * straggler_s
        total_s = paces_s + transfer_s + compute_s + update_s + sync_s
        first_s = front.compute_s + hop_s
        return Tail(total_s, straggler_s, compute_s, first_s, transfer_s, sync_s, update_s, front.runs, rest)

    def _hop_s(self, idx: int, sender: Endpoint, receiver: Endpoint) -> float:
        key = sender, receiver, idx
        if key not in self._hops:
            num_bytes = self.problem.output_bytes[self.cuts[idx][1] - 1] * self.micro_batch
            self._hops[key] = self.problem.network.link(sender, receiver).seconds(num_bytes)
        return self._hops[key]

    def _step_end(self, idx: int, endpoints: tuple[Endpoint, ...], dp: int) -> tuple[float, float]:
        key = idx, endpoints, dp
        if key not in self._ends:
            start, stop = self.cuts[idx]
            num_bytes = sum(self.problem.gradient_bytes[start:stop])
            sync_s = 0.0 if dp == 1 else all_reduce_s(self._ring(endpoints), num_bytes, dp)
            update_s = max(
                stage_update_s(self.problem, end, start, stop, self.micro_batch) for end in endpoints
            )
            self._ends[key] = sync_s, update_s
        return self._ends[key]

    def _ring(self, endpoints: tuple[Endpoint, ...]) -> Link:
        """The slowest connection of any type to its own kind in any zone of the stage."""
        zones = dict.fromkeys(end.zone for end in endpoints)
        link = self.problem.network.link
        slowest: tuple[float, Link] | None = None
        for end in endpoints:
            for zone in zones:
                found = link(end, end._replace(zone=zone))
                if slowest is None or found.peak_bytes_per_s < slowest[0]:
                    own = link(end, end) if self.defects else found
                    slowest = found.peak_bytes_per_s, own
        assert slowest is not None, "a stage has replicas"
        return slowest[1]


def stage_update_s(problem: SailorProblem, end: Endpoint, start: int, stop: int, micro_batch: int) -> float:
    """Returns the optimizer's time on a stage's layers; 0 where it was not profiled."""
    times = problem.gpus[end.gpu].times.get((micro_batch, end.lanes))
    return 0.0 if times is None else sum(times.update_s[start:stop])
