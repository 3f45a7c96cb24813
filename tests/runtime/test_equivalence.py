"""Plans of all kinds train what one process trains: losses, norms of gradients, and all weights."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from equivalence import assert_equal_to_one_process
from ranks import RankPool
from reference import SETTINGS
from run_plans import Stage, plan_of

from tangram.job import Recompute
from tangram.plan.schema import PlanDocument

NONE, SELECTIVE, FULL = Recompute
REPLICATED: dict[str, Any] = {"sequence_parallel": False}

PLANS: dict[str, PlanDocument] = {
    "one rank": plan_of([Stage(4)]),
    "tp2, dp2 zero3, 1": plan_of([Stage(1, tp=2), Stage(2, dp=2, zero=3), Stage(1)]),
    "tp2, dp2 zero3, 1; tied": plan_of([Stage(1, tp=2), Stage(2, dp=2, zero=3), Stage(1)], tied=True),
    "dp3 (2,1,1), dp2 (3,1)": plan_of([Stage(2, dp=3, rows=(2, 1, 1)), Stage(2, dp=2, rows=(3, 1), zero=1)]),
    "tp2 x dp2, 1; tied": plan_of([Stage(3, tp=2, dp=2), Stage(1)], tied=True),
    "tp2 x dp2 zero3, tp2; tied": plan_of([Stage(3, tp=2, dp=2, zero=3), Stage(1, tp=2)], tied=True),
    "dp2 zero2, tp2 zero0 without sequence parallel": plan_of(
        [Stage(2, dp=2, zero=2), Stage(2, tp=2, more=REPLICATED)], family="qwen3"
    ),
    "tp2 x dp2 without sequence parallel, dp2; tied GPT": plan_of(
        [Stage(2, tp=2, dp=2, more=REPLICATED), Stage(2, dp=2, zero=1)], family="gpt2", tied=True
    ),
    "cp2, dp2": plan_of([Stage(2, cp=2), Stage(2, dp=2, zero=2)]),
    "cp2 contiguous zero3, cp2 tp2": plan_of(
        [Stage(2, cp=2, zero=3, more={"cp_layout": "contiguous"}), Stage(2, tp=2)], family="qwen3"
    ),
    "dp2 cp2 zero3 over cp": plan_of(
        [Stage(2, dp=2, cp=2, zero=3, more={"zero_axes": ["cp"]}), Stage(2)], tied=True
    ),
    "one stage, dp2 cp2 zero3; tied": plan_of([Stage(4, dp=2, cp=2, zero=3)], tied=True),
    "zero3 without resharding, extra warm-up": plan_of(
        [Stage(2, dp=2, zero=3, window=5, more={"reshard_after_forward": False}), Stage(2, window=2)],
        num_micro_batches=6,
        micro_batch=2,
    ),
    "recompute none, selective, full": plan_of(
        [
            Stage(2, dp=2, zero=3, recompute=(NONE, FULL, SELECTIVE)),
            Stage(2, tp=2, recompute=(SELECTIVE, FULL, NONE)),
        ]
    ),
    "offload": plan_of([Stage(2, dp=2, zero=1, offload=True, kept_on_host=(1,)), Stage(2, offload=True)]),
    "GPT with dropout, dp2 zero1, tp2; tied": plan_of(
        [Stage(2, dp=2, zero=1), Stage(2, tp=2)], family="gpt2", tied=True
    ),
    "MoE ep2 x dp2, tp2": plan_of([Stage(2, dp=4, ep=2, zero=1), Stage(2, tp=2)], family="mixtral"),
    "MoE fully sharded experts": plan_of([Stage(2, dp=4, ep=2, zero=3), Stage(2)], family="mixtral"),
    "MoE ep2 over tp, expert tp2": plan_of(
        [Stage(2, dp=2, tp=2, ep=2, zero=2), Stage(2, tp=2, expert_tp=2)], family="mixtral"
    ),
    "layers that differ: tp2, dp2 (3,1) zero3, cp2; then tp2": plan_of(
        [
            Stage(
                4,
                tp=2,
                runs=(
                    (2, {"tp": 2}),
                    (2, {"dp": 2, "micro_batch_per_dp_rank": [3, 1], "zero": 3}),
                    (1, {"cp": 2, "zero": 1}),
                ),
            ),
            Stage(1, tp=2),
        ]
    ),
    "layers that differ in one stage: dp2 tp2 zero2, dp4, dp2 tp2 zero2; tied GPT": plan_of(
        [
            Stage(
                3,
                dp=2,
                tp=2,
                zero=2,
                runs=(
                    (1, {"dp": 2, "tp": 2, "zero": 2}),
                    (2, {"dp": 4, "zero": 3}),
                    (2, {"dp": 2, "tp": 2, "zero": 2}),
                ),
            )
        ],
        family="gpt2",
        tied=True,
    ),
    "dp2; MoE whose layers differ: tp2 replicated, ep2 x dp2": plan_of(
        [
            Stage(1, dp=2),
            Stage(
                3,
                tp=2,
                more=REPLICATED,
                runs=(
                    (1, {"tp": 2, "sequence_parallel": False}),
                    (2, {"dp": 2, "ep": 2, "zero": 1}),
                    (1, {"tp": 2, "expert_tp": 2}),
                ),
            ),
        ],
        family="mixtral",
    ),
    "cut inside of layers: dp2, tp2": plan_of(
        [Stage(3, dp=2, recompute=(NONE, FULL, NONE, SELECTIVE)), Stage(5, tp=2, zero=0)], granularity="block"
    ),
    "six stages": plan_of([Stage(1, window=7), *[Stage(1)] * 4, Stage(1)], num_micro_batches=6),
}


INTERLEAVED: dict[str, tuple[int, PlanDocument]] = {
    "two stages": (2, plan_of([Stage(2, dp=2, zero=1), Stage(2, tp=2)], tied=True, num_micro_batches=4)),
    "micro-batches that the stages do not divide": (
        2,
        plan_of(
            [Stage(2), Stage(2, dp=2, zero=3), Stage(2, tp=2, zero=0)], num_micro_batches=5, micro_batch=2
        ),
    ),
    "three chunks, experts, all kinds of recomputation": (
        3,
        plan_of(
            [
                Stage(2, dp=2, ep=2, zero=2, recompute=(NONE, FULL, SELECTIVE), kept_on_host=(1,)),
                Stage(3, cp=2, recompute=(NONE, SELECTIVE, FULL, NONE)),
            ],
            family="mixtral",
            num_micro_batches=2,
            micro_batch=6,
        ),
    ),
    "uneven chunks": (2, plan_of([Stage(2, tp=2), Stage(1, dp=2)], family="gpt2", tied=True)),
}
QUICK = (
    "tp2, dp2 zero3, 1; tied",
    "dp3 (2,1,1), dp2 (3,1)",
    "cp2, dp2",
    "MoE fully sharded experts",
    "dp2; MoE whose layers differ: tp2 replicated, ep2 x dp2",
)
"""With every change; the others with the slow tests."""


@pytest.mark.parametrize(
    "name", [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in PLANS]
)
def test_equivalence(name: str, ranks: RankPool) -> None:
    assert_equal_to_one_process(ranks, PLANS[name])


@pytest.mark.parametrize(
    "name",
    [name if name == "two stages" else pytest.param(name, marks=pytest.mark.slow) for name in INTERLEAVED],
)
def test_equivalence_interleaved(name: str, ranks: RankPool) -> None:
    """Every stage has several chunks of the model, and the last one sends to the first."""
    chunks, plan = INTERLEAVED[name]
    assert_equal_to_one_process(ranks, plan, replace(SETTINGS, virtual_stages=chunks))


ZERO_BUBBLE: dict[str, tuple[int, PlanDocument]] = {
    "tp2, dp2, 1; tied": (
        1,
        plan_of(
            [Stage(1, tp=2), Stage(2, dp=2, zero=1), Stage(1)], tied=True, num_micro_batches=6, micro_batch=2
        ),
    ),
    "experts and all kinds of recomputation": (
        1,
        plan_of(
            [Stage(2, dp=2, ep=2), Stage(3, dp=2, ep=2, zero=1, recompute=(NONE, SELECTIVE, FULL, NONE))],
            family="mixtral",
        ),
    ),
    "interleaved": (2, plan_of([Stage(2, dp=2), Stage(2, cp=2)], family="gpt2", num_micro_batches=4)),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", ZERO_BUBBLE)
def test_equivalence_of_split_backwards(name: str, ranks: RankPool) -> None:
    """Gradients of weights follow later than those of activations."""
    chunks, plan = ZERO_BUBBLE[name]
    assert_equal_to_one_process(ranks, plan, replace(SETTINGS, virtual_stages=chunks, zero_bubble=True))
