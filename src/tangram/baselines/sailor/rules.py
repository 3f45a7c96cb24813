"""What Sailor decides before it searches: how layers are cut, which tp, which numbers of replicas.

``defects`` reproduces the published program, whatever it does; without it, what is plainly wrong is
repaired. The package's docstring lists the differences.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import pairwise, product

from tangram.baselines.sailor.profile import GpuProfile, SailorProblem
from tangram.job import divisors

WORTH_DOUBLING = 1.5
"""Speed-up for which a larger tp is taken (``SPEEDUP_THRESHOLD``)."""

PUBLISHED_TPS = (1, 2, 4)

STATE_BYTES_PER_PARAM = 24.0
"""Weight 4, gradient 4, Adam's moments 8, buffers of the all-reduce 4, DeepSpeed's copy at the start 4."""

PUBLISHED_FIXED_BYTES = {1: 2.0e9, 2: 3.0e9, 4: 3.0e9}
"""By tp, what the published search takes a process to hold beside its layers."""

_LONG_S = 1000.0

Cuts = list[tuple[int, int]]
Degrees = tuple[tuple[int, ...] | None, ...]
"""Per type of GPU, the tp of every stage; None for a type that cannot hold some stage."""


def even_cuts(num_layers: int, num_stages: int) -> Cuts:
    """Returns stages of equally many layers; the last ones hold one more where they must."""
    size, more = divmod(num_layers, num_stages)
    starts = [idx * size + max(0, idx - (num_stages - more)) for idx in range(num_stages)] + [num_layers]
    return list(pairwise(starts))


def smallest_tp(gpu: GpuProfile, cuts: Cuts, idx: int, micro_batch: int, *, defects: bool) -> int | None:
    """Returns the smallest tp with which stage ``idx`` fits the memory; None when none does."""
    for tp in gpu.tps:
        if not defects and (micro_batch, tp) not in gpu.times:
            continue
        if gpu.memory_bytes(tp, *cuts[idx], micro_batch, len(cuts) - idx) <= gpu.capacity_bytes:
            return tp
    return None


def fast_tp(gpu: GpuProfile, start: int, stop: int, micro_batch: int, *, defects: bool) -> int:
    """Returns the largest tp up to which every step pays: 1.5 times as fast as the one before.

    The published program takes a tp that was not profiled for one that takes no time.
    """
    chosen, before_s = 0, _LONG_S
    for tp in gpu.tps:
        times = gpu.times.get((micro_batch, tp))
        if times is None and not defects:
            continue
        now_s = 0.0 if times is None else stage_time_s(gpu, tp, start, stop, micro_batch)
        pays = before_s > 0 if now_s == 0 else before_s / now_s >= WORTH_DOUBLING
        if not pays and (chosen or defects):
            break
        chosen, before_s = tp, now_s
    return chosen


def stage_time_s(gpu: GpuProfile, tp: int, start: int, stop: int, micro_batch: int) -> float:
    """Returns forward plus backward of a micro-batch; 0 where it was not profiled."""
    times = gpu.times.get((micro_batch, tp))
    if times is None:
        return 0.0
    return sum(
        forward_s + backward_s
        for forward_s, backward_s in zip(
            times.forward_s[start:stop], times.backward_s[start:stop], strict=True
        )
    )


def tensor_degrees(
    problem: SailorProblem, cuts: Cuts, micro_batch: int, *, defects: bool
) -> Iterator[Degrees]:
    """Yields the tp of every type and stage that are worth a search, each once.

    Published: for every type the fast tp, but never one that does not fit; in a mixed cluster the first
    type, by name, gets the smallest that fits. Repaired: every combination of fast and smallest over the
    types.
    """
    choices = [_choices(gpu, cuts, micro_batch, defects=defects) for gpu in problem.gpus]
    if defects:
        there = [any(zone.gpus[g] for zone in problem.zones) for g in range(len(problem.gpus))]
        first = choices[0][-1] if sum(there) == 1 else choices[0][0]
        yield (first, *(choice[-1] for choice in choices[1:]))
        return
    yield from dict.fromkeys(product(*choices))


def _choices(gpu: GpuProfile, cuts: Cuts, micro_batch: int, *, defects: bool) -> list[tuple[int, ...] | None]:
    """The smallest tp of every stage, then the fast ones; None alone for a type that cannot hold some
    stage.
    """
    if not any(size == micro_batch for size, _ in gpu.times):
        return [None]
    smallest = [smallest_tp(gpu, cuts, idx, micro_batch, defects=defects) for idx in range(len(cuts))]
    if any(tp is None for tp in smallest):
        return [None]
    least = tuple(tp for tp in smallest if tp is not None)
    fast = [fast_tp(gpu, start, stop, micro_batch, defects=defects) for start, stop in cuts]
    return [least, tuple(max(pair) for pair in zip(least, fast, strict=True))]


def replica_counts(problem: SailorProblem, micro_batch: int, *, defects: bool) -> list[int]:
    """Returns the numbers of replicas to try, descending.

    Published: the smallest one for every number of micro-batches, rounded up, below the number of GPUs.
    Repaired: those with which the micro-batches add up to the batch, all GPUs as replicas included.
    """
    num_gpus = sum(sum(zone.gpus) for zone in problem.zones)
    batch = problem.global_batch
    if not defects:
        if batch % micro_batch:
            return []
        return [dp for dp in reversed(divisors(batch // micro_batch)) if dp <= num_gpus]
    counts, last = [1], math.ceil(batch / micro_batch)
    for dp in range(2, num_gpus):
        number = math.ceil(batch / (micro_batch * dp))
        if number != last:
            counts.append(dp)
            last = number
    return counts[::-1]
