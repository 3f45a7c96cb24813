"""The conformance test passes what keeps its promises, and says what is wrong with what does not."""

import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from tangram.parallelizers.exact import ExactStageTable
from tangram.parallelizers.invariants import TABLE_COLUMNS
from tangram.parallelizers.protocols import (
    Capabilities,
    OptionTable,
    SlicePlan,
    SliceRequest,
    StageChoice,
    TableRequest,
)
from tangram.parallelizers.uniform import UniformPlanner
from tangram.testing import check_parallelizer


@pytest.mark.parametrize("parallelizer", [UniformPlanner(), ExactStageTable()])
def test_ours_pass(parallelizer: object) -> None:
    check_parallelizer(parallelizer)


def test_needs_no_test_framework() -> None:
    code = "import sys, tangram.testing; print('pytest' in sys.modules or 'hypothesis' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


class Broken(UniformPlanner):
    """Changes the stages of good plans, or the answer as a whole."""

    name = "broken"

    def stage(self, request: SliceRequest, stage: StageChoice) -> StageChoice:
        return stage

    def plan(self, request: SliceRequest) -> Sequence[SlicePlan]:
        plans = super().plan(request)
        return [SlicePlan(tuple(self.stage(request, s) for s in plan.stages)) for plan in plans]


class DropsAnAtom(Broken):
    def stage(self, request: SliceRequest, stage: StageChoice) -> StageChoice:
        if stage.stop < request.stop:
            return stage
        return replace(stage, stop=stage.stop - 1, recomputed=stage.recomputed[:-1])


class DropsAStage(Broken):
    def plan(self, request: SliceRequest) -> Sequence[SlicePlan]:
        return [SlicePlan(plan.stages[:1]) for plan in super().plan(request)]


class TooManyGpus(Broken):
    """Puts every stage on the whole portion."""

    def stage(self, request: SliceRequest, stage: StageChoice) -> StageChoice:
        factor = request.portion.num_gpus // stage.portion.num_gpus
        config = replace(stage.config, dp=stage.config.dp * factor)
        return replace(stage, portion=request.portion, config=config)


class WrongDegrees(Broken):
    def stage(self, request: SliceRequest, stage: StageChoice) -> StageChoice:
        return replace(stage, config=replace(stage.config, dp=stage.config.dp * 2))


class IgnoresHeads(Broken):
    """Calls every degree tp: eight GPUs share four key-value heads."""

    def stage(self, request: SliceRequest, stage: StageChoice) -> StageChoice:
        return replace(stage, config=replace(stage.config, dp=1, tp=stage.config.num_gpus, zero=0))


class OverMemory(Broken):
    """Plans for one micro-batch in flight, whatever was asked."""

    def plan(self, request: SliceRequest) -> Sequence[SlicePlan]:
        return super().plan(replace(request, in_flight=1))


class ForgetsRecompute(Broken):
    def stage(self, request: SliceRequest, stage: StageChoice) -> StageChoice:
        return replace(stage, recomputed=(False,) * len(stage.recomputed))


class RecomputesTheHead(Broken):
    def stage(self, request: SliceRequest, stage: StageChoice) -> StageChoice:
        return replace(stage, recomputed=(True,) * len(stage.recomputed))


class Undecided(Broken):
    """Says its best plan once or twice, in turn."""

    def __init__(self) -> None:
        self.asked = 0

    def plan(self, request: SliceRequest) -> Sequence[SlicePlan]:
        self.asked += 1
        return list(super().plan(request)[:1]) * (1 + self.asked % 2)


class Silent(Broken):
    def plan(self, request: SliceRequest) -> Sequence[SlicePlan]:
        return []


class Raising(Broken):
    def plan(self, request: SliceRequest) -> Sequence[SlicePlan]:
        raise ZeroDivisionError("no stages")


class NoMoe(Broken):
    """Fails on experts, and promises them."""

    def plan(self, request: SliceRequest) -> Sequence[SlicePlan]:
        return [] if request.model.has_moe else super().plan(request)


class WorseForFewer(Broken):
    """Recomputes everything when asked for one micro-batch in flight, nothing when asked for more."""

    def plan(self, request: SliceRequest) -> Sequence[SlicePlan]:
        if request.in_flight > 1 or request.stop == len(request.atoms):
            return super().plan(request)
        plans = super().plan(request)
        return [
            SlicePlan(
                tuple(
                    replace(s, recomputed=tuple(bool(a.layer_idxs) for a in request.atoms[s.start : s.stop]))
                    for s in plan.stages
                )
            )
            for plan in plans
        ]


class WrongType(Broken):
    def plan(self, request: SliceRequest) -> Sequence[SlicePlan]:
        return ["a plan"]  # type: ignore[list-item]


@pytest.mark.parametrize(
    ("parallelizer", "said"),
    [
        (DropsAnAtom(), "stages end at atom"),
        (DropsAStage(), "stages end at atom"),
        (TooManyGpus(), "the portion has"),
        (WrongDegrees(), "but it has"),
        (IgnoresHeads(), "does not divide 4 key-value heads"),
        (OverMemory(), "more than a GPU has with"),
        (ForgetsRecompute(), "more than a GPU has with"),
        (RecomputesTheHead(), "embedding or the head"),
        (Undecided(), "different answers"),
        (Silent(), "promise one"),
        (Raising(), "ZeroDivisionError: no stages"),
        (NoMoe(), "tiny-moe.*promise one"),
        (WorseForFewer(), "asked for 1 in flight"),
        (WrongType(), "no SlicePlan"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Broken) else "",
)
def test_broken_planners_fail(parallelizer: Broken, said: str) -> None:
    with pytest.raises(AssertionError, match=said) as caught:
        check_parallelizer(parallelizer)
    assert "'broken'" in str(caught.value)


def test_only_what_is_promised_is_asked() -> None:
    class Modest(NoMoe):
        capabilities = Capabilities(
            gpu_counts=frozenset({1, 4}), partial_slices=False, later_positions=False, moe=False
        )

        def plan(self, request: SliceRequest) -> Sequence[SlicePlan]:
            assert request.portion.num_gpus in (1, 4)
            assert (request.start, request.stop) == (0, len(request.atoms))
            assert request.in_flight == 1
            assert not request.model.has_moe
            return super().plan(request)

    check_parallelizer(Modest())


class BrokenTable(ExactStageTable):
    name = "broken"

    def options(self, request: TableRequest) -> OptionTable:
        return self.change(super().options(request))

    def change(self, table: OptionTable) -> OptionTable:
        return table


def taken(table: OptionTable, idx: object) -> OptionTable:
    return replace(table, **{name: getattr(table, name)[idx] for name in TABLE_COLUMNS})


class TooFast(BrokenTable):
    def change(self, table: OptionTable) -> OptionTable:
        return replace(table, backward_ns=table.backward_ns - 10)


class TooMany(BrokenTable):
    """Claims one more micro-batch in flight than fits."""

    def change(self, table: OptionTable) -> OptionTable:
        more = np.where(table.max_in_flight < 5, table.max_in_flight + 1, table.max_in_flight)
        return replace(table, max_in_flight=more)


class Repeats(BrokenTable):
    def change(self, table: OptionTable) -> OptionTable:
        return taken(table, np.repeat(np.arange(len(table.start)), 2))


class IgnoresSlices(BrokenTable):
    def options(self, request: TableRequest) -> OptionTable:
        return super().options(replace(request, slices=None))


class IgnoresCap(BrokenTable):
    def options(self, request: TableRequest) -> OptionTable:
        return super().options(replace(request, max_time_s=float("inf")))


class LosesOptions(BrokenTable):
    """Finds less when asked for less."""

    def options(self, request: TableRequest) -> OptionTable:
        table = super().options(request)
        return table if request.slices is None else taken(table, slice(1, None))


class LosesASlice(BrokenTable):
    """Has nothing for the embedding alone."""

    def change(self, table: OptionTable) -> OptionTable:
        return taken(table, (table.start > 0) | (table.stop > 1))


class UndecidedTable(BrokenTable):
    """Gives every other time only the first option of each slice."""

    def __init__(self) -> None:
        self.asked = 0

    def change(self, table: OptionTable) -> OptionTable:
        self.asked += 1
        again = np.zeros(len(table.start), dtype=np.bool_)
        again[1:] = (np.diff(table.start) == 0) & (np.diff(table.stop) == 0)
        return taken(table, ~again) if self.asked % 2 else table


class OtherStage(BrokenTable):
    def choice(self, request: TableRequest, table: OptionTable, idx: int) -> StageChoice:
        stage = super().choice(request, table, idx)
        return replace(stage, config=replace(stage.config, dp=stage.config.dp + 1))


class RaisingTable(BrokenTable):
    def change(self, table: OptionTable) -> OptionTable:
        raise KeyError("lost")


@pytest.mark.parametrize(
    ("parallelizer", "said"),
    [
        (TooFast(), "re-costed"),
        (TooMany(), "more than a GPU has with"),
        (Repeats(), "no better than another"),
        (IgnoresSlices(), "asked for two slices only"),
        (IgnoresCap(), "with a cap on time"),
        (LosesOptions(), "asked for two slices only"),
        (LosesASlice(), "1 slices have no option"),
        (UndecidedTable(), "different answers"),
        (OtherStage(), "but it has|does not divide the micro-batch"),
        (RaisingTable(), "KeyError"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, BrokenTable) else "",
)
def test_broken_tables_fail(parallelizer: BrokenTable, said: str) -> None:
    with pytest.raises(AssertionError, match=said) as caught:
        check_parallelizer(parallelizer)
    assert "'broken'" in str(caught.value)


class Nameless:
    capabilities = Capabilities()


class Incapable:
    name = "incapable"


class Useless:
    name = "useless"
    capabilities = Capabilities()


class WholeCluster:
    """A cluster planner whose answer is no plan."""

    name = "broken"
    capabilities = Capabilities()

    def plan_cluster(self, request: object) -> object:
        return {"stages": []}


@pytest.mark.parametrize(
    ("parallelizer", "said"),
    [
        (Nameless(), "has no name"),
        (Incapable(), "declares no Capabilities"),
        (Useless(), "implements none of"),
        (WholeCluster(), "no ClusterPlan"),
    ],
)
def test_not_a_parallelizer(parallelizer: object, said: str) -> None:
    with pytest.raises(AssertionError, match=said):
        check_parallelizer(parallelizer)
