"""16 bit, loss scaling with an overflow on one rank, clipping on and off, and going on where one stopped."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from equivalence import (
    Rank,
    assert_copies_are_equal,
    assert_equal_to_one_process,
    differences,
    expected_of,
    feed,
    parts_of,
    train,
)
from ranks import RankPool
from reference import SETTINGS
from run_plans import Stage, plan_of
from torch_or_skip import torch

from tangram.job import Precision
from tangram.plan.schema import PlanDocument
from tangram.runtime.engine import Engine, StepResult
from tangram.runtime.settings import TrainSettings

STAGES = [Stage(1, tp=2), Stage(2, dp=2, zero=3), Stage(1)]
OVERFLOW_AT = 2
VICTIM = 3
"""The second dp rank of the second stage."""


def train_with_an_overflow(
    rank: int, plan: PlanDocument, settings: TrainSettings
) -> tuple[list[StepResult], list[Any]]:
    """Five steps; in one of them a single gradient of a single rank is infinite."""
    engine = Engine(plan, rank, torch.device("cpu"), settings)
    if rank == VICTIM:
        scale = engine.module.local_parameters()[-1].parameter
        scale.register_hook(lambda grad: grad * float("inf") if engine.steps == OVERFLOW_AT else grad)
    results, weights = [], []
    for step in range(5):
        results.append(engine.train_step(feed(engine, plan, step)))
        weights.append([value for _, value in parts_of(engine)])
    return results, weights


def test_equivalence_under_fp16_with_an_overflow_on_one_stage(ranks: RankPool) -> None:
    plan = plan_of(STAGES, tied=True, precision=Precision.FP16)
    settings = replace(SETTINGS, initial_loss_scale=1024.0, loss_scale_window=2)
    found = ranks.run(plan.num_gpus, train_with_an_overflow, plan, settings)
    for results, weights in found:
        assert [result.skipped for result in results] == [step == OVERFLOW_AT for step in range(5)]
        assert [result.loss_scale for result in results] == [1024.0, 1024.0, 2048.0, 1024.0, 1024.0]
        # The learning rate warms up over two steps; the step that was left out does not count.
        assert [result.lr for result in results] == [0.015, 0.03, 0.03, 0.03, 0.03]
        changed = [
            any(not torch.equal(a, b) for a, b in zip(weights[step - 1], weights[step], strict=True))
            for step in range(1, 5)
        ]
        assert changed == [True, False, True, True]
        assert results == found[0][0] or any(r.skipped for r in results)
    losses = [result.loss for result in found[0][0] if not result.skipped]
    expected = expected_of(plan_of(STAGES, tied=True), SETTINGS, 2)  # fp32, before the overflow
    assert losses[:2] == pytest.approx(expected.losses, rel=2e-3)


def test_equivalence_under_fp16_from_a_scale_that_overflows(ranks: RankPool) -> None:
    """Steps are left out on all ranks alike, and the scale halved, until it suits."""
    plan = plan_of(STAGES, tied=True, precision=Precision.FP16)
    found = ranks.run(plan.num_gpus, train, plan, replace(SETTINGS, initial_loss_scale=2.0**24), 12)
    assert_copies_are_equal(found)
    skipped = [result.skipped for result in found[0].results]
    assert skipped[0]
    assert 6 <= skipped.count(False) < 12
    for rank in found:
        assert [result.skipped for result in rank.results] == skipped
        scales = [2.0 ** (24 - sum(skipped[:step])) for step in range(12)]
        assert [result.loss_scale for result in rank.results] == scales
        updates = [min(step - sum(skipped[:step]), 1) for step in range(12)]
        assert [result.lr for result in rank.results] == [(0.015, 0.03)[count] for count in updates]


@pytest.mark.parametrize(
    ("precision", "zero_bubble"), [(Precision.FP16, False), (Precision.BF16, False), (Precision.BF16, True)]
)
def test_equivalence_in_16_bit_within_its_rounding(
    precision: Precision, zero_bubble: bool, ranks: RankPool
) -> None:
    stages = [Stage(2, tp=2), Stage(2, dp=2, zero=1, offload=True)]
    plan = plan_of(stages, tied=True, precision=precision)
    settings = replace(SETTINGS, initial_loss_scale=256.0, zero_bubble=zero_bubble)
    found = ranks.run(plan.num_gpus, train, plan, settings, 5)
    assert_copies_are_equal(found)
    worst = differences(found, expected_of(plan_of(stages, tied=True)))
    # Eleven and eight bits of mantissa. In five steps a weight moves by up to half of the largest.
    limit = {Precision.FP16: 1e-2, Precision.BF16: 5e-2}[precision]
    assert worst["loss"] < limit / 10
    assert worst["parameter"] < limit
    assert worst["norm"] < limit


def test_equivalence_with_gradients_of_2_bytes(ranks: RankPool) -> None:
    """Summed and sent in bf16: coarser, but the same run."""
    plan = plan_of([Stage(2, dp=2, zero=2), Stage(2, tp=2)], precision=Precision.BF16)
    optimizer = plan.job.optimizer.model_copy(update={"gradient_bytes": 2})
    halved = plan.model_copy(update={"job": plan.job.model_copy(update={"optimizer": optimizer})})
    found = ranks.run(plan.num_gpus, train, halved, SETTINGS, 5)
    assert_copies_are_equal(found)
    worst = differences(found, expected_of(plan_of([Stage(4)])))
    assert worst["parameter"] < 5e-2


def test_equivalence_without_clipping_and_with_blocking_transfers(ranks: RankPool) -> None:
    plan = plan_of([Stage(2, dp=2, window=4), Stage(2, cp=2, window=3)], num_micro_batches=6, micro_batch=2)
    schedule = plan.pipelines[0].schedule.model_copy(update={"overlap_p2p": False})
    pipeline = plan.pipelines[0].model_copy(update={"schedule": schedule})
    job = plan.job.model_copy(update={"overlap_p2p": False})
    blocking = plan.model_copy(update={"pipelines": [pipeline], "job": job})
    assert_equal_to_one_process(ranks, blocking, replace(SETTINGS, max_grad_norm=0.0))


def train_and_go_on(rank: int, plan: PlanDocument, settings: TrainSettings, steps: int) -> Rank:
    """Stops after two steps and goes on with another engine, whose weights are others at first."""
    first = Engine(plan, rank, torch.device("cpu"), settings)
    results = [first.train_step(feed(first, plan, step)) for step in range(2)]
    second = Engine(plan, rank, torch.device("cpu"), replace(settings, seed=settings.seed + 1))
    second.load_state_dict(first.state_dict())
    results += [second.train_step(feed(second, plan, step)) for step in range(2, steps)]
    return Rank(results, parts_of(second))


@pytest.mark.parametrize("precision", [Precision.FP32, Precision.FP16])
def test_equivalence_of_a_run_that_was_interrupted(precision: Precision, ranks: RankPool) -> None:
    stages = [Stage(1, tp=2), Stage(2, dp=2, zero=3), Stage(1, offload=True)]
    plan = plan_of(stages, tied=True, precision=precision)
    whole = ranks.run(plan.num_gpus, train, plan, SETTINGS, 5)
    parted = ranks.run(plan.num_gpus, train_and_go_on, plan, SETTINGS, 5)
    for one, other in zip(whole, parted, strict=True):
        assert one.results == other.results
        for (part, value), (_, again) in zip(one.parts, other.parts, strict=True):
            assert torch.equal(value, again), part


def train_from_elsewhere(rank: int, plan: PlanDocument, settings: TrainSettings, steps: int) -> Rank:
    """Begins with other weights, and gets the right ones written into it."""
    right = Engine(plan, rank, torch.device("cpu"), settings)
    engine = Engine(plan, rank, torch.device("cpu"), replace(settings, seed=settings.seed + 1))
    with right.gathered(), engine.gathered():
        for new, old in zip(engine.module.local_parameters(), right.module.local_parameters(), strict=True):
            new.parameter.copy_(old.parameter)
    results = [engine.train_step(feed(engine, plan, step)) for step in range(steps)]
    return Rank(results, parts_of(engine))


def test_equivalence_of_weights_that_were_loaded(ranks: RankPool) -> None:
    plan = plan_of([Stage(2, dp=2, zero=3, offload=True), Stage(2, dp=2, zero=1)], tied=True)
    found = ranks.run(plan.num_gpus, train_from_elsewhere, plan, SETTINGS, 3)
    worst = differences(found, expected_of(plan, SETTINGS, 3))
    assert max(worst.values()) <= 1e-5, worst


def precision_of_products(rank: int, plan: PlanDocument) -> str:
    Engine(plan, rank, torch.device("cpu"), SETTINGS)
    return torch.get_float32_matmul_precision()


@pytest.mark.parametrize(("precision", "due"), [(Precision.TF32, "high"), (Precision.FP32, "highest")])
def test_tf32_is_what_the_plan_says(precision: Precision, due: str, ranks: RankPool) -> None:
    plan = plan_of([Stage(2)])
    section = plan.job.model_copy(update={"precision": precision})
    assert ranks.run(1, precision_of_products, plan.model_copy(update={"job": section})) == [due]
