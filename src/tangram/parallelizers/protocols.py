"""The narrow API: what Tangram asks of a parallelizer, and what it gets back.

There are three kinds of planner, hence three protocols:

* :class:`SlicePlanner` plans a slice on an island portion and answers with slice plans of one or more stages;
* :class:`StageTable` answers with a table of single-stage options for all slices at once;
* :class:`ClusterPlanner` plans a whole cluster by itself (a baseline).

Every answer is re-costed by :mod:`tangram.cost`: there is one referee. Parallelizers register through the
entry point ``tangram.parallelizers`` and can be tested with :func:`tangram.testing.check_parallelizer`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

import numpy as np

from tangram.cluster.spec import Cluster, Portion, Slot
from tangram.cost.types import IntArray, StageConfig
from tangram.job import Job
from tangram.model.atoms import Atom
from tangram.model.spec import ModelSpec


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What a parallelizer can do; pairs outside of it are pruned as incompatible.

    Attributes:
        gpu_counts: Numbers of GPUs it accepts, or None for all.
        partial_slices: Whether it can plan slices without embedding or head.
        later_positions: Whether it can plan for more micro-batches in flight than its own stages.
        moe: Whether it plans layers with experts.
        deterministic: Whether equal requests get equal answers.
        seconds_per_query: Rough cost of one query, which decides whether a process pool pays, and how long
            the planner lets it take (a minute, or twice this).
    """

    gpu_counts: frozenset[int] | None = None
    partial_slices: bool = True
    later_positions: bool = True
    moe: bool = True
    deterministic: bool = True
    seconds_per_query: float = 0.001


@dataclass(frozen=True, slots=True)
class SliceRequest:
    """One question: plan these atoms on that portion.

    Attributes:
        model: The whole model, for shapes.
        atoms: All atoms of the model.
        start, stop: The slice is ``atoms[start:stop]``.
        portion: The island portion.
        micro_batch: Global micro-batch, in samples.
        num_micro_batches: Per step.
        in_flight: Micro-batches in flight at the last stage of the slice (1 when the slice ends the
            pipeline).
        link_in_bytes_per_s, link_out_bytes_per_s: Links at either end; None at the ends of the model.
        job: The job.
    """

    model: ModelSpec
    atoms: tuple[Atom, ...]
    start: int
    stop: int
    portion: Portion
    micro_batch: int
    num_micro_batches: int
    in_flight: int
    link_in_bytes_per_s: float | None
    link_out_bytes_per_s: float | None
    job: Job

    @property
    def slice(self) -> tuple[Atom, ...]:
        """The atoms to plan."""
        return self.atoms[self.start : self.stop]


@dataclass(frozen=True, slots=True)
class StageChoice:
    """One stage of a slice plan, as the parallelizer chooses it.

    Attributes:
        start, stop: ``atoms[start:stop]`` of the model.
        portion: The GPUs.
        config: Degrees and memory-saving choices.
        recomputed: Per atom of the stage, whether it is recomputed in full.
        atom_configs: Per atom of the stage, its own configuration of the same GPUs, where atoms of one stage
            differ; empty where all have ``config``. ``config`` is then that of the first atom. What is
            offloaded is the same for all atoms, and ends that share a matrix have one configuration.
    """

    start: int
    stop: int
    portion: Portion
    config: StageConfig
    recomputed: tuple[bool, ...]
    atom_configs: tuple[StageConfig, ...] = ()

    @property
    def configs(self) -> tuple[StageConfig, ...]:
        """Configuration of each atom of the stage."""
        return self.atom_configs or (self.config,) * (self.stop - self.start)


@dataclass(frozen=True, slots=True)
class SlicePlan:
    """An answer: stages that cover the slice, first to last, on parts of the portion."""

    stages: tuple[StageChoice, ...]


@dataclass(frozen=True, slots=True)
class TableRequest:
    """Many questions at once: all slices of the model on one portion.

    Attributes:
        max_in_flight: Largest number in flight that matters.
        max_time_s: Options slower than this per micro-batch are of no use; ``inf`` keeps all.
        slices: Pairs ``(start, stop)`` to plan, or None for all slices.
    """

    model: ModelSpec
    atoms: tuple[Atom, ...]
    portion: Portion
    micro_batch: int
    num_micro_batches: int
    max_in_flight: int
    max_time_s: float
    job: Job
    slices: Sequence[tuple[int, int]] | None = None

    @property
    def max_time_ns(self) -> int | None:
        """``max_time_s`` as the largest time in whole nanoseconds; None without a limit."""
        return whole_ns(self.max_time_s)


def whole_ns(max_time_s: float) -> int | None:
    """Returns a limit as the largest time in whole nanoseconds that keeps it; None for ``inf``."""
    return None if np.isinf(max_time_s) else int(np.floor(max_time_s * 1e9 + 0.5))


@dataclass(frozen=True, slots=True)
class OptionTable:
    """Single-stage options; parallel arrays of shape ``(num_options,)``. Times are integer nanoseconds.

    Attributes:
        start, stop: The slice.
        max_in_flight: Largest number in flight that fits.
        forward_ns, backward_ns, step_ns: As in StageCost.
        config: Index into ``configs``.
        num_recomputed: Atoms recomputed in full, along the order of ``recompute_order`` (see ``exact``).
        configs: The configurations.
    """

    start: IntArray
    stop: IntArray
    max_in_flight: IntArray
    forward_ns: IntArray
    backward_ns: IntArray
    step_ns: IntArray
    config: IntArray
    num_recomputed: IntArray
    configs: tuple[StageConfig, ...]
    counts: dict[str, int] = field(default_factory=dict)


@runtime_checkable
class SlicePlanner(Protocol):
    """Plans a slice on a portion: none, one, or a Pareto set of slice plans."""

    name: str
    capabilities: Capabilities

    def plan(self, request: SliceRequest) -> Sequence[SlicePlan]:
        """Returns slice plans that fit at ``request.in_flight``; empty when none does.

        What fits is said by the upper estimate, :attr:`tangram.cost.types.StageCost.peak_bytes`.
        """
        ...


@runtime_checkable
class StageTable(Protocol):
    """Answers with all useful single-stage options of a portion."""

    name: str
    capabilities: Capabilities

    def options(self, request: TableRequest) -> OptionTable:
        """Returns the Pareto set of options per slice, in (forward, backward, step, in-flight)."""
        ...

    def choice(self, request: TableRequest, table: OptionTable, idx: int) -> StageChoice:
        """Returns option ``idx`` of the table as a stage."""
        ...


@dataclass(frozen=True, slots=True)
class ClusterRequest:
    """The whole question at once: train this model on that cluster.

    Attributes:
        model: What to train.
        atoms: All its atoms.
        cluster: On what.
        job: How.
    """

    model: ModelSpec
    atoms: tuple[Atom, ...]
    cluster: Cluster
    job: Job


@dataclass(frozen=True, slots=True)
class Replicas:
    """Data-parallel replicas of a stage that are alike: with the same degrees, and the same samples each.

    Where their GPUs are of several kinds, the slowest and the smallest count for all.

    Attributes:
        slots: The GPUs, in mesh order (dp, cp, tp; the last varies fastest).
        config: Degrees and memory-saving choices; ``dp`` counts these replicas only.
        samples: Of every micro-batch, what these replicas take together; a multiple of ``config.dp``.
        atom_configs: As in :class:`StageChoice`; only where all replicas of the stage are alike.
    """

    slots: tuple[Slot, ...]
    config: StageConfig
    samples: int
    atom_configs: tuple[StageConfig, ...] = ()


@dataclass(frozen=True, slots=True)
class ClusterStage:
    """One stage of a cluster plan; unlike a stage of Tangram's own it may mix kinds of GPUs.

    Attributes:
        start, stop: ``atoms[start:stop]`` of the model.
        replicas: One entry per kind of replica; all of them together hold the slice as often as there are
            replicas, and keep them equal once per step. Replicas with other degrees or other samples are of
            another kind, and so should be those on faster GPUs.
        recomputed: Per atom of the stage, whether it is recomputed in full.
    """

    start: int
    stop: int
    replicas: tuple[Replicas, ...]
    recomputed: tuple[bool, ...]


@dataclass(frozen=True, slots=True)
class ClusterPlan:
    """A cluster planner's answer: a plain 1F1B pipeline, in the planner's own words, right or wrong.

    It may lack layers or not fit into memory: the published planners answer so at times, and the referee
    says it.

    Attributes:
        micro_batch: Samples that enter the pipeline together.
        stages: First to last.
        predicted_s: Iteration time as the planner itself predicts it; None when it predicts none.
        notes: What the planner wants said beside its plan.
    """

    micro_batch: int
    stages: tuple[ClusterStage, ...]
    predicted_s: float | None = None
    notes: tuple[str, ...] = ()


@runtime_checkable
class ClusterPlanner(Protocol):
    """Plans a whole cluster without Tangram's islands (a baseline)."""

    name: str
    capabilities: Capabilities

    def plan_cluster(self, request: ClusterRequest) -> ClusterPlan | None:
        """Returns the planner's best plan; None when it finds none."""
        ...
