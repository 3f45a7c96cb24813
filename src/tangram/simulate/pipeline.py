"""What the simulator executes: stages, the edges between them, and the number of micro-batches.

The schedule is 1F1B in a static order: stage ``i`` runs ``w_i`` forwards, then backward, forward, backward
..., then the backwards that are left, and at last its step end. ``w_i`` is the stage's window: the
micro-batches whose activations it holds.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Protocol

from tangram.errors import InputError
from tangram.units import NS_PER_S


class StageSeconds(Protocol):
    """What is known of a stage in seconds, whoever costed or stated it."""

    @property
    def forward_s(self) -> float:
        """Of one micro-batch."""
        ...

    @property
    def backward_s(self) -> float:
        """Of one micro-batch."""
        ...

    @property
    def step_s(self) -> float:
        """After the last backward."""
        ...


@dataclass(frozen=True, slots=True)
class SimStage:
    """One stage, as the simulator sees it.

    Attributes:
        forward_ns, backward_ns: Per micro-batch.
        step_ns: After the stage's last backward: gradient synchronisation and optimizer.
        in_flight: Window, in micro-batches; may exceed the number of micro-batches.

    Raises:
        InputError: A time is below zero, or the window below one.
    """

    forward_ns: int
    backward_ns: int
    step_ns: int
    in_flight: int

    @staticmethod
    def of(times: StageSeconds, in_flight: int) -> SimStage:
        """Returns a stage of times in seconds, rounded to nanoseconds; errors as above."""
        forward, backward, step = (
            round(seconds * NS_PER_S) for seconds in (times.forward_s, times.backward_s, times.step_s)
        )
        return SimStage(forward, backward, step, in_flight)

    def __post_init__(self) -> None:
        _set_ints(self, ("forward_ns", "backward_ns", "step_ns"), low=0)
        _set_ints(self, ("in_flight",), low=1)


@dataclass(frozen=True, slots=True)
class SimEdge:
    """The link behind a stage. Each direction sends one tensor at a time, first in, first out.

    A transfer holds its direction of the edge, and every resource that it names, for its occupancy; the
    tensor arrives a latency after that: ``arrival = start + occupancy + latency``.

    Attributes:
        latency_ns: Of one message, in either direction.
        forward_occupancy_ns, backward_occupancy_ns: Bytes over bandwidth, of activations and of their
            gradients.
        forward_resources, backward_resources: Names of serial things that edges share, such as
            ``node-a:egress``.

    Raises:
        InputError: A time is below zero.
    """

    latency_ns: int = 0
    forward_occupancy_ns: int = 0
    backward_occupancy_ns: int = 0
    forward_resources: tuple[str, ...] = ()
    backward_resources: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        _set_ints(self, ("latency_ns", "forward_occupancy_ns", "backward_occupancy_ns"), low=0)
        object.__setattr__(self, "forward_resources", tuple(self.forward_resources))
        object.__setattr__(self, "backward_resources", tuple(self.backward_resources))

    @property
    def forward_ns(self) -> int:
        """Time of one forward transfer without queueing."""
        return self.latency_ns + self.forward_occupancy_ns

    @property
    def backward_ns(self) -> int:
        """Time of one backward transfer without queueing."""
        return self.latency_ns + self.backward_occupancy_ns

    @property
    def round_trip_ns(self) -> int:
        """Both directions: the X of the formulas."""
        return self.forward_ns + self.backward_ns


@dataclass(frozen=True, slots=True)
class SimPipeline:
    """A pipeline: what one optimizer step executes.

    Attributes:
        stages: First to last.
        edges: ``edges[i]`` sits between stages ``i`` and ``i + 1``; one fewer than stages.
        num_micro_batches: Per step.
        blocking_p2p: Whether sending keeps the sender from computing until the tensor has arrived. The
            receiver waits anyway, since its order is fixed. Without shared resources that is exactly
            :meth:`folded`.

    Raises:
        InputError: No stage, a wrong number of edges, no micro-batch, or windows that do not fall by at least
            one per stage (a stage that holds no more than the next one cannot keep it busy).
    """

    stages: tuple[SimStage, ...]
    edges: tuple[SimEdge, ...]
    num_micro_batches: int
    blocking_p2p: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "stages", tuple(self.stages))
        object.__setattr__(self, "edges", tuple(self.edges))
        _set_ints(self, ("num_micro_batches",), low=1)
        if not self.stages:
            raise InputError("a pipeline needs at least one stage", where="stages")
        if len(self.edges) != len(self.stages) - 1:
            raise InputError(
                f"{len(self.stages)} stages have {len(self.edges)} edges between them",
                where="edges",
                hint=f"legal: {len(self.stages) - 1}",
            )
        for i, (stage, following) in enumerate(pairwise(self.stages)):
            if stage.in_flight <= following.in_flight:
                raise InputError(
                    f"stage {i} holds {stage.in_flight} micro-batches in flight, "
                    f"stage {i + 1} holds {following.in_flight}",
                    where=f"stage {i}: in_flight",
                    hint=f"legal: {following.in_flight + 1} or more, so that the next stage can run",
                )

    @property
    def num_stages(self) -> int:
        """Number of stages."""
        return len(self.stages)

    @property
    def windows(self) -> tuple[int, ...]:
        """Forwards that each stage runs before its first backward: its window, cut at all micro-batches."""
        return tuple(min(stage.in_flight, self.num_micro_batches) for stage in self.stages)

    def folded(self) -> SimPipeline:
        """Returns the pipeline whose stages send in their own time, over links that take none.

        This is what blocking point-to-point means without contention: ``f_i += x_i`` of the edge behind the
        stage, ``b_i += x_(i-1)`` of the edge before it, ``x = 0``. One that overlaps is returned as it is.
        """
        if not self.blocking_p2p:
            return self
        forward = [edge.forward_ns for edge in self.edges] + [0]
        backward = [0] + [edge.backward_ns for edge in self.edges]
        stages = tuple(
            replace(s, forward_ns=s.forward_ns + forward[i], backward_ns=s.backward_ns + backward[i])
            for i, s in enumerate(self.stages)
        )
        return SimPipeline(stages, (SimEdge(),) * len(self.edges), self.num_micro_batches)


def _set_ints(target: object, names: Iterable[str], *, low: int) -> None:
    """Turns fields into plain integers (numpy's overflow silently, and are slow) and tests their range."""
    for name in names:
        given = getattr(target, name)
        try:
            value = operator.index(given)
        except TypeError:
            raise InputError(f"{given!r} is not an integer", where=name) from None
        if value < low:
            raise InputError(f"{value} is out of range", where=name, hint=f"legal: {low} or more")
        if value is not given:
            object.__setattr__(target, name, value)
