"""What the plan says about itself: prediction, bound, idle GPUs, comparisons, and how it was searched for."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from tangram.plan.schema_stage import GpuSlot
from tangram.plan.section import Count, Positive, Section


class Prediction(Section):
    """What the simulator says of the whole plan.

    Attributes:
        iteration_time_s: One optimizer step.
        tokens_per_s, samples_per_s: Throughput.
        model_flop_per_step: Forward and backward, without recomputation.
        mfu: Model FLOP over what the used GPUs' datasheets promise. Attention counts its whole square, of
            which causal kernels compute half, so that long sequences may show more than 1.
        bubble_frac: Idle share of the used GPUs' time, 0 to 1.
        bottleneck_stage: The stage that sets the steady pace.
        basis: What the numbers rest on: ``formula``, ``measured`` or ``mixed``.
        basis_note: What formulas and constants they rest on, in one sentence.
        time_band_frac: Share of ``iteration_time_s`` that 9 of 10 measured runs of this kind were off at
            most, either side; null where the constants are the user's own.
        time_band_note: Which runs these were.
        breakdown: Seconds per phase (``fill``, ``steady``, ``drain``, ``step_end``), for print.
    """

    iteration_time_s: float
    tokens_per_s: float
    samples_per_s: float
    model_flop_per_step: float
    mfu: float
    bubble_frac: float
    bottleneck_stage: Count
    basis: Literal["formula", "measured", "mixed"]
    basis_note: str
    time_band_frac: float | None = None
    time_band_note: str = ""
    breakdown: dict[str, float] = Field(default_factory=dict)


class BoundStep(Section):
    """One stair between the ideal and the plan.

    Attributes:
        name: Short name.
        time_s: Iteration time if only the causes up to here counted.
        explanation: What this stair adds.
    """

    name: str
    time_s: float
    explanation: str


class BoundSection(Section):
    """What no plan can beat under the same cost model.

    Attributes:
        lower_bound_s: No plan within ``scope`` is faster.
        gap_frac: ``iteration_time_s / lower_bound_s - 1``.
        proven_optimal: Whether the search showed that nothing within ``scope`` is faster than this plan.
        staircase: From the ideal to the plan, ascending.
        scope: What the bound (and "optimal") covers.
    """

    lower_bound_s: float
    gap_frac: float
    proven_optimal: bool
    staircase: list[BoundStep] = Field(default_factory=list)
    scope: str


class IdleSection(Section):
    """GPUs of one island that the plan leaves out.

    Attributes:
        island: Name of the island.
        count: How many.
        gpus: Which.
        reason: Why, in one sentence.
    """

    island: str
    count: Count
    gpus: list[GpuSlot]
    reason: str


class Comparison(Section):
    """Another way to use the cluster.

    Attributes:
        name: ``single-island``, ``even-split`` or ``tangram``.
        iteration_time_s: Null when it does not work.
        summary: What it is, in one line.
        reason: Why it does not work; null when it does.
    """

    name: str
    iteration_time_s: float | None
    summary: str
    reason: str | None = None


class SearchSection(Section):
    """How the plan was found; counts only, never wall-clock time.

    Attributes:
        parallelizers: Names of those asked.
        pruning: ``none``, ``paper`` or ``safe``.
        micro_batches_considered: Global micro-batch sizes.
        counts: Pairs, what each rule removed, queries, options, finalists...
    """

    parallelizers: list[str]
    pruning: str
    micro_batches_considered: list[Positive]
    counts: dict[str, Count] = Field(default_factory=dict)
