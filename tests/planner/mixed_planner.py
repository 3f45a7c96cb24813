"""A parallelizer whose stages have layers of two kinds, for the tests of what comes behind it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tangram.cost.configs import legal_configs
from tangram.cost.types import StageConfig
from tangram.parallelizers.invariants import plan_faults
from tangram.parallelizers.protocols import Capabilities, SlicePlan, SliceRequest, StageChoice
from tangram.parallelizers.uniform import UniformPlanner


class MixedPlanner:
    """The uniform planner's plans, with a middle part of every stage in another legal configuration."""

    name = "mixed"
    capabilities = Capabilities(seconds_per_query=0.001)

    def plan(self, request: SliceRequest) -> Sequence[SlicePlan]:
        found = []
        for plan in UniformPlanner().plan(request):
            mixed = SlicePlan(tuple(self._mixed(request, stage) for stage in plan.stages))
            found.append(plan if plan_faults(request, mixed) else mixed)
        return found

    def _mixed(self, request: SliceRequest, stage: StageChoice) -> StageChoice:
        num = stage.stop - stage.start
        if num < 3:
            return stage
        legal = legal_configs(request.model, stage.portion, request.micro_batch, request.job)
        others = [
            c for c in legal if (c.dp, c.tp, c.cp) != (stage.config.dp, stage.config.tp, stage.config.cp)
        ]
        if not others:
            return stage
        other: StageConfig = others[len(others) // 2]
        configs = [stage.config, *[other] * (num - 2), stage.config]
        return replace(stage, atom_configs=tuple(configs))
