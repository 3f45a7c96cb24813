"""What Metis knows of one stage: its GPUs, its degrees, and from them its speed, samples and memory.

A stage is a range of ranks and may mix kinds of GPUs; then every data-parallel replica gets samples in
proportion to the speed of its first GPU, and is timed as the profiled powers of two that add up to them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tangram.baselines.metis.profile import LayerProfile, MetisProfile, Point
from tangram.baselines.metis.question import Layout, Question

MEMORY_FACTOR = 5.0
"""By which Metis multiplies the profiled memory of a stage's layers."""

_LEAST_DEMAND_MB = 0.001


@dataclass(frozen=True, slots=True)
class ReplicaForm:
    """One data-parallel replica, or all of a stage on equal GPUs.

    Attributes:
        samples: Per micro-batch and replica.
        parts: The profiles whose sum its time is; empty without samples.
    """

    samples: int
    parts: tuple[LayerProfile, ...]

    def time_ms(self, start: int, stop: int) -> float:
        """Returns the time of layers ``start`` to ``stop - 1``."""
        return sum(part.time_before[stop] - part.time_before[start] for part in self.parts)


@dataclass(frozen=True, slots=True)
class StageForm:
    """A stage without its layers.

    Attributes:
        dp, tp: Degrees.
        replicas: One for a stage of equal GPUs, else one per replica.
        speed: One over the time of the whole model, in 1/ms.
        held: The profiles whose memory Metis adds up.
        sync_ms: Per micro-batch, beyond the layers; None where no profile says it.
    """

    dp: int
    tp: int
    replicas: tuple[ReplicaForm, ...]
    speed: float
    held: tuple[LayerProfile, ...]
    sync_ms: float | None

    def time_ms(self, start: int, stop: int) -> float:
        """Returns forward and backward of one micro-batch: the slowest replica's."""
        return max(replica.time_ms(start, stop) for replica in self.replicas)

    def demand_mb(self, start: int, stop: int) -> float:
        """Returns what Metis compares with the memory of all GPUs of the stage together."""
        held = sum(part.memory_before[stop] - part.memory_before[start] for part in self.held)
        return _LEAST_DEMAND_MB + MEMORY_FACTOR * held

    @property
    def least_demand_mb(self) -> float:
        """What any layer between the ends adds to that, at least."""
        return MEMORY_FACTOR * sum(part.least_memory_mb for part in self.held)


class StageForms:
    """Makes stage forms, and remembers them."""

    def __init__(self, question: Question) -> None:
        self._question = question
        self._known: dict[tuple[object, ...], StageForm | None] = {}

    def form(
        self, layout: Layout, start: int, stop: int, degrees: tuple[int, int], micro_batch: int
    ) -> StageForm | None:
        """Returns the form of a stage; None where a profile is missing.

        Args:
            layout: Of all ranks.
            start, stop: The stage's ranks.
            degrees: dp and tp.
            micro_batch: Global, in samples.
        """
        kinds = layout.kinds(start, stop)
        lead = layout.order[0] if self._question.defects.first_kind_memory else -1
        key = (kinds if kinds[0] != kinds[-1] else kinds[0], degrees, micro_batch, lead)
        if key not in self._known:
            self._known[key] = self._made(layout, kinds, degrees, micro_batch)
        return self._known[key]

    def _made(
        self, layout: Layout, kinds: tuple[int, ...], degrees: tuple[int, int], micro_batch: int
    ) -> StageForm | None:
        (dp, tp), points = degrees, self._question.profile.points
        even = micro_batch // dp
        first_only = self._question.defects.first_kind_memory
        sync_ms = self._sync_ms(kinds, tp, even)
        if kinds[0] == kinds[-1]:
            part = points.get(Point(kinds[0], tp, even))
            held = points.get(Point(layout.order[0], tp, even)) if first_only else part
            if part is None or held is None:
                return None
            replica = ReplicaForm(even, (part,))
            return StageForm(dp, tp, (replica,), 1.0 / part.total_ms, (held,), sync_ms)
        replicas = mixed_replicas(self._question.profile, kinds, degrees, micro_batch)
        holders = replicas
        if first_only:
            # Split as for the whole cluster, but looked up for the first kind.
            split = mixed_replicas(self._question.profile, layout.kind_of, degrees, micro_batch)
            holders = _of_kind(self._question.profile, layout.order[0], tp, split)
        if replicas is None or holders is None:
            return None
        slowest = max(replica.time_ms(0, self._question.profile.num_layers) for replica in replicas)
        held_parts = tuple(part for holder in holders for part in holder.parts)
        return StageForm(dp, tp, replicas, 1.0 / slowest, held_parts, sync_ms)

    def _sync_ms(self, kinds: tuple[int, ...], tp: int, batch: int) -> float | None:
        points = self._question.profile.points
        profiles = [points.get(Point(kind, tp, batch)) for kind in dict.fromkeys(kinds)]
        if any(p is None or (self._question.defects.zero_sync and p.sync_ms == 0.0) for p in profiles):
            return None
        return max(p.sync_ms for p in profiles if p is not None)

    def capacity_mb(self, layout: Layout, start: int, stop: int) -> float:
        """Returns the memory of all GPUs of a stage."""
        return sum(self._question.kinds[kind].memory_mb for kind in layout.kinds(start, stop))


def mixed_replicas(
    profile: MetisProfile, kinds: Sequence[int], degrees: tuple[int, int], micro_batch: int
) -> tuple[ReplicaForm, ...] | None:
    """Shares a micro-batch out to replicas of different kinds; None where a profile is missing.

    Shares are proportional to speed at one sample, rounded down; what is left goes to the largest remainders,
    first come, first served.
    """
    dp, tp = degrees
    leads = [kinds[replica * (len(kinds) // dp)] for replica in range(dp)]
    single = {kind: profile.points.get(Point(kind, tp, 1)) for kind in dict.fromkeys(leads)}
    speeds = {kind: 1.0 / one.total_ms for kind, one in single.items() if one is not None}
    if len(speeds) < len(single):
        return None
    total = sum(speeds[kind] for kind in leads)
    wanted = [micro_batch * (speeds[kind] / total) for kind in leads]
    samples = [int(want) for want in wanted]
    by_rest = sorted(range(dp), key=lambda i: samples[i] - wanted[i])
    for replica in by_rest[: micro_batch - sum(samples)]:
        samples[replica] += 1
    forms = []
    for kind, count in zip(leads, samples, strict=True):
        parts = _binary_parts(profile, kind, tp, count)
        if parts is None:
            return None
        forms.append(ReplicaForm(count, parts))
    return tuple(forms)


def _of_kind(
    profile: MetisProfile, kind: int, tp: int, replicas: tuple[ReplicaForm, ...] | None
) -> tuple[ReplicaForm, ...] | None:
    """Returns the same samples, profiled on one kind of GPU."""
    parts = [_binary_parts(profile, kind, tp, replica.samples) for replica in replicas or ()]
    if replicas is None or any(part is None for part in parts):
        return None
    return tuple(ReplicaForm(r.samples, p or ()) for r, p in zip(replicas, parts, strict=True))


def _binary_parts(profile: MetisProfile, kind: int, tp: int, samples: int) -> tuple[LayerProfile, ...] | None:
    """Returns the profiles of the powers of two that add up to so many samples, largest first."""
    sizes = [1 << bit for bit in range(samples.bit_length() - 1, -1, -1) if samples >> bit & 1]
    parts = [profile.points.get(Point(kind, tp, size)) for size in sizes]
    return None if any(part is None for part in parts) else tuple(part for part in parts if part is not None)
