"""Faults put into the runtime make plans train something else than one process does."""

from __future__ import annotations

import pytest
from equivalence import TOLERANCE, Rank, assert_copies_are_equal, differences, expected_of, train
from ranks import RankPool
from reference import SETTINGS
from run_plans import Stage, plan_of
from runtime_faults import FAULTS, RuntimeFault, fault_of, put_in

from tangram.plan.schema import PlanDocument
from tangram.runtime.settings import TrainSettings

pytestmark = pytest.mark.slow
STEPS = 2
PLANS: dict[str, PlanDocument] = {
    "tensor, data": plan_of([Stage(2, tp=2), Stage(2, dp=2)]),
    "uneven rows": plan_of([Stage(2, dp=3, rows=(2, 1, 1)), Stage(2, dp=2, rows=(3, 1))]),
    "context, data": plan_of([Stage(2, cp=2), Stage(2, dp=2)]),
    "sharded weights": plan_of([Stage(2, dp=2, zero=3), Stage(2, dp=2, zero=2)]),
    "tied ends": plan_of([Stage(2, dp=2, zero=1), Stage(2, tp=2)], tied=True),
    "experts": plan_of([Stage(2, dp=2, ep=2), Stage(2)], family="mixtral"),
}


def train_with_a_fault(rank: int, name: str, plan: PlanDocument, settings: TrainSettings, steps: int) -> Rank:
    """As :func:`equivalence.train`, with a fault in the code of this process."""
    with put_in(fault_of(name)):
        return train(rank, plan, settings, steps)


def compare(found: list[Rank], plan: PlanDocument) -> None:
    worst = differences(found, expected_of(plan, SETTINGS, STEPS))
    assert all(value <= TOLERANCE for value in worst.values()), worst
    assert_copies_are_equal(found)


@pytest.mark.parametrize("name", PLANS)
def test_equivalence_without_a_fault(name: str, ranks: RankPool) -> None:
    compare(ranks.run(PLANS[name].num_gpus, train, PLANS[name], SETTINGS, STEPS), PLANS[name])


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_a_fault_breaks_equivalence(fault: RuntimeFault, ranks: RankPool) -> None:
    plan = PLANS[fault.plan]
    found = ranks.run(plan.num_gpus, train_with_a_fault, fault.name, plan, SETTINGS, STEPS, wait_s=30.0)
    with pytest.raises(AssertionError):
        compare(found, plan)
