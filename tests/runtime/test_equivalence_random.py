"""Small legal plans drawn at random train what one process trains."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import pytest
from equivalence import assert_equal_to_one_process
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from ranks import RankPool
from reference import SETTINGS
from run_plans import Stage, plan_of

from tangram.job import Recompute
from tangram.plan.schema import PlanDocument
from tangram.runtime.settings import TrainSettings

BATCH = 12
GPUS = (4, 2)  # of the two islands; a stage never leaves one


@st.composite
def plans(draw: st.DrawFn) -> PlanDocument:
    family = draw(st.sampled_from(["mixtral", "gpt2", "qwen3", "llama"]))
    micro_batch = draw(st.sampled_from([2, 3, 4, 6]))
    counts = draw(st.lists(st.integers(0, 2), min_size=1, max_size=3).filter(lambda c: 2 <= sum(c) <= 4))
    windows: list[int] = []
    for _ in counts:
        windows.insert(0, (windows[0] if windows else 0) + draw(st.integers(1, 2)))
    stages = []
    free, island = list(GPUS), 0
    for idx, layers in enumerate(counts):
        if layers == 0 and 0 < idx < len(counts) - 1:
            layers = 1
        left = len(counts) - idx - 1  # stages to come need a GPU each
        island = island if free[island] else 1
        most = free[island] - (max(0, left - free[1]) if island == 0 else left)
        shape = draw(st.sampled_from(shapes(most, micro_batch)))
        free[island] -= shape[0] * shape[1] * shape[2]
        stages.append(draw(stage_of(layers, shape, micro_batch, family, windows[idx])))
    return plan_of(
        stages,
        family=family,
        tied=draw(st.booleans()),
        micro_batch=micro_batch,
        num_micro_batches=BATCH // micro_batch,
    )


def shapes(most: int, micro_batch: int) -> list[tuple[int, int, int]]:
    """(dp, cp, tp) on so many GPUs at most; what is first is drawn most often."""
    found = itertools.product((2, 3, 4, 1), (2, 1), (2, 1))
    return [shape for shape in found if shape[0] * shape[1] * shape[2] <= most and shape[0] <= micro_batch]


@st.composite
def stage_of(
    draw: st.DrawFn, layers: int, shape: tuple[int, int, int], micro_batch: int, family: str, window: int
) -> Stage:
    dp, cp, tp = shape
    cuts = draw(st.permutations(range(1, micro_batch)))[: dp - 1]
    rows = tuple(b - a for a, b in itertools.pairwise([0, *sorted(cuts), micro_batch]))
    ep = expert_tp = 1
    if family == "mixtral" and layers:
        sizes = [(e, t) for e in (4, 2, 1) for t in (2, 1) if dp * cp * tp % (e * t) == 0]
        ep, expert_tp = draw(st.sampled_from(sizes))
    more: dict[str, Any] = {
        "sequence_parallel": tp > 1 and draw(st.booleans()),
        "cp_layout": draw(st.sampled_from(["zigzag", "contiguous"])),
        "reshard_after_forward": draw(st.booleans()),
    }
    zero = draw(st.integers(0, 3))
    if zero:
        more["zero_axes"] = draw(st.sampled_from([["dp", "cp"], ["dp"], ["cp"]]))
        if family == "mixtral" and layers:
            more["expert_zero_axes"] = draw(st.sampled_from([["expert_dp"], []]))
    return Stage(
        layers,
        dp=dp,
        cp=cp,
        tp=tp,
        ep=ep,
        expert_tp=expert_tp,
        zero=zero,
        rows=rows,
        window=window,
        recompute=draw(st.sampled_from(list(Recompute))),
        offload=draw(st.booleans()),
        kept_on_host=draw(st.sampled_from([(), (0,), tuple(range(layers))])) if layers else (),
        more=more,
    )


@st.composite
def runs(draw: st.DrawFn) -> tuple[PlanDocument, TrainSettings]:
    """A plan, and how it is run: by its own schedule, interleaved, with split backwards."""
    plan = draw(plans())
    atoms = min(stage.atoms[1] - stage.atoms[0] for stage in plan.stages)
    chunks = draw(st.sampled_from(range(min(atoms, 3), 0, -1))) if len(plan.stages) > 1 else 1
    splits = max(stage.zero for stage in plan.stages) < 2 and draw(st.booleans())
    clip = draw(st.sampled_from([0.5, 0.0]))
    return plan, replace(SETTINGS, virtual_stages=chunks, zero_bubble=splits, max_grad_norm=clip)


def check(ranks: RankPool, run: tuple[PlanDocument, TrainSettings]) -> None:
    assert_equal_to_one_process(ranks, *run, steps=3)


@given(run=runs())
@settings(max_examples=4, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
def test_equivalence_of_a_few_random_plans(ranks: RankPool, run: tuple[PlanDocument, TrainSettings]) -> None:
    check(ranks, run)


@pytest.mark.slow
@given(run=runs())
@settings(max_examples=60, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
def test_equivalence_of_random_plans(ranks: RankPool, run: tuple[PlanDocument, TrainSettings]) -> None:
    check(ranks, run)
