"""What Aceso's search looks at: a space of pipelines and what their stages cost, whoever counts it.

The search knows neither models nor GPUs. It asks a :class:`Space` which degrees a stage may have and what a
stage costs, so it runs alike on Tangram's cost model (:mod:`tangram.parallelizers.aceso.costs`) and on
Aceso's own accounting of its profiles (:mod:`tangram.parallelizers.aceso.accounting`). Times may be in any
one unit, memory likewise.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import NamedTuple, Protocol

Degrees = tuple[int, int]
"""Tensor and data parallel degree of a stage; their product is its number of GPUs."""


class StageValue(NamedTuple):
    """What one stage costs, with the least recomputation that makes it fit.

    Attributes:
        time: Forward, backward and recomputation of one micro-batch, and transfers where the space has them.
        step: Once per step, after the last backward.
        memory, limit: Peak of one GPU, and what it may be; more does not fit.
        ideal: Of ``time``, what the work would take with perfect scaling of one GPU's time.
        recompute: Of ``time``, what recomputation takes.
    """

    time: float
    step: float
    memory: float
    limit: float
    ideal: float
    recompute: float


class Pipeline(NamedTuple):
    """One point of the space. What is recomputed is not part of it: that follows from the rest.

    Attributes:
        micro_batch: Global micro-batch, in samples.
        stops: Where each stage ends, in atoms; the last one is the number of atoms.
        degrees: Of each stage.
    """

    micro_batch: int
    stops: tuple[int, ...]
    degrees: tuple[Degrees, ...]

    @property
    def sizes(self) -> tuple[int, ...]:
        """GPUs of each stage."""
        return tuple([tp * dp for tp, dp in self.degrees])


class Space(Protocol):
    """Where to search, and what stages cost.

    Attributes:
        num_atoms, num_gpus: Of the pipeline; every GPU is used.
        micro_batches: Sizes to choose from, ascending.
        sizes: GPUs that a stage may have, ascending.
    """

    num_atoms: int
    num_gpus: int
    micro_batches: tuple[int, ...]
    sizes: tuple[int, ...]

    def __hash__(self) -> int:
        """Spaces are told apart by identity."""
        ...

    def num_micro_batches(self, micro_batch: int) -> int:
        """Returns the number of micro-batches of one step."""
        ...

    def degrees(self, micro_batch: int, size: int) -> tuple[Degrees, ...]:
        """Returns the degrees that a stage of ``size`` GPUs may have; tp ascending."""
        ...

    def lays_out(self, sizes: tuple[int, ...]) -> bool:
        """Returns whether stages of these sizes, in this order, can stand on the nodes."""
        ...

    def value(
        self, micro_batch: int, start: int, stop: int, degrees: Degrees, behind: int, first_gpu: int
    ) -> StageValue:
        """Returns what a stage costs.

        Args:
            micro_batch: Global micro-batch.
            start, stop: Its atoms.
            degrees: One of :meth:`degrees`.
            behind: Stages behind it: it holds so many more micro-batches than the last stage.
            first_gpu: GPUs of the stages in front of it.
        """
        ...


@dataclass(frozen=True, slots=True, eq=False)
class Judged:
    """A pipeline and what it costs.

    Attributes:
        pipeline: The pipeline.
        values: Of its stages.
        iteration: ``sum t + (m - 1) max t + max step``.
        over: Memory that the worst stage lacks; 0 where all fit.
    """

    pipeline: Pipeline
    values: tuple[StageValue, ...]
    iteration: float
    over: float

    @property
    def rank(self) -> tuple[float, float]:
        """The smaller, the better: what fits before what does not."""
        return self.over, self.iteration


def judge(space: Space, pipeline: Pipeline) -> Judged:
    """Returns what a pipeline costs."""
    last = len(pipeline.stops) - 1
    values = []
    start = gpus = 0
    value, micro_batch = space.value, pipeline.micro_batch
    for idx, (stop, degrees) in enumerate(zip(pipeline.stops, pipeline.degrees, strict=True)):
        values.append(value(micro_batch, start, stop, degrees, last - idx, gpus))
        start = stop
        gpus += degrees[0] * degrees[1]
    times, steps = [v.time for v in values], [v.step for v in values]
    return Judged(
        pipeline=pipeline,
        values=tuple(values),
        iteration=iteration_time(times, steps, space.num_micro_batches(micro_batch)),
        over=max(0.0, *[v.memory - v.limit for v in values]),
    )


def iteration_time(times: Sequence[float], steps: Sequence[float], num_micro_batches: int) -> float:
    """Returns what a pipeline is judged by: ``sum t + (m - 1) max t + max step``."""
    return sum(times) + (num_micro_batches - 1) * max(times) + max(steps)


def first_gpus(pipeline: Pipeline) -> list[int]:
    """Returns per stage the number of GPUs in front of it."""
    return [0, *accumulate([tp * dp for tp, dp in pipeline.degrees[:-1]])]
