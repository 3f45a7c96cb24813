"""Runs of atoms of a stage with the same degrees: one per stage, unless the plan has ``layer_configs``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tangram.plan.schema import LayerConfig, PlanDocument, StageSection
from tangram.runtime.boundary import Holding, Interval, Layout, context_share, stage_layout
from tangram.runtime.groups import GroupMaker, StageGroups


@dataclass(frozen=True, slots=True)
class StageRun:
    """A run of atoms, as one rank of the stage sees it.

    Attributes:
        atoms: Which.
        degrees: The stage itself, or the entry of its ``layer_configs``.
        layout: How activations lie between these atoms.
        groups: Of this rank.
        holding: What of a micro-batch this rank holds there.
    """

    atoms: range
    degrees: StageSection | LayerConfig
    layout: Layout
    groups: StageGroups
    holding: Holding

    @property
    def context_tokens(self) -> tuple[Interval, ...]:
        """The tokens of this rank's cp index, which all its tp ranks need of a micro-batch."""
        layout = self.layout
        return context_share(layout.seq_len, layout.cp, self.groups.cp.index, zigzag=layout.zigzag)

    @property
    def is_first_of_tp(self) -> bool:
        """Whether this rank speaks for its tp group."""
        return self.groups.tp.index == 0


def run_degrees(stage: StageSection) -> Sequence[StageSection | LayerConfig]:
    """Returns the degrees of a stage's runs, in order; each says its atoms."""
    return stage.layer_configs or [stage]


def run_layouts(plan: PlanDocument, stage: StageSection) -> list[Layout]:
    """Returns how activations lie in each run of a stage."""
    ranks, zigzag = tuple(slot.rank for slot in stage.ranks), stage.cp_layout == "zigzag"
    return [stage_layout(run, ranks, zigzag, plan.job.seq_len) for run in run_degrees(stage)]


def stage_runs(plan: PlanDocument, stage: StageSection, maker: GroupMaker) -> list[StageRun]:
    """Makes the groups of a stage, and returns its runs; none where this process is not in the stage.

    All processes call it for all stages in the same order.
    """
    found = []
    for degrees, layout in zip(run_degrees(stage), run_layouts(plan, stage), strict=True):
        groups = maker.stage(degrees, layout.ranks)
        if groups is not None:
            holding = layout.holdings[maker.rank]
            found.append(StageRun(range(*degrees.atoms), degrees, layout, groups, holding))
    return found


def plain_run(plan: PlanDocument, stage: StageSection, groups: StageGroups) -> StageRun:
    """Returns the one run of a stage without ``layer_configs``, for groups that are there already."""
    (layout,) = run_layouts(plan, stage)
    holding = layout.holdings[groups.stage.ranks[groups.stage.index]]
    return StageRun(range(*stage.atoms), stage, layout, groups, holding)


def all_rows(runs: Sequence[StageRun]) -> Interval:
    """Returns the rows of a micro-batch of which a rank needs anything in any of its runs."""
    return min(run.holding.rows[0] for run in runs), max(run.holding.rows[1] for run in runs)
