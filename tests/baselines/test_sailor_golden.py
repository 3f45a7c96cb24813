"""Sailor on its own files: the plans, and the times to all printed digits, that its program gave.

The figures were measured by running the program (C++ core and Python simulator of eth-easl/sailor at
cf2c8e3).
"""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from sailor_cases import described, needs_sailor_files, published

from tangram.baselines.sailor.search import best_plan, search
from tangram.baselines.sailor.simulator import fits, simulated_s

HERE, THERE, FAR = "us-central1-a", "us-central1-b", "us-west1-b"
OPT, NEO = "OPT-350", "GPT-Neo-2.7"


@dataclass(frozen=True)
class Row:
    """One run of the program: its question, number of plans, best plan, and that plan's time by either
    clock.
    """

    model: str
    a100: int
    v100: int
    batch: int
    num_plans: int
    planner_s: float
    simulator_s: float
    plan: str

    @property
    def zones(self) -> dict[str, dict[str, int]]:
        counts = {"A100-40": self.a100, "V100-16": self.v100}
        return {HERE: {gpu: count for gpu, count in counts.items() if count}}


ROWS = (
    Row(OPT, 8, 0, 256, 12, 7.898, 7.804, "P1 m8 D2: 26: 2xA100/4"),
    Row(OPT, 16, 0, 256, 24, 4.227, 4.117, "P1 m8 D4: 26: 4xA100/4"),
    Row(OPT, 16, 0, 1024, 24, 15.307, 15.156, "P1 m2 D8: 26: 8xA100/2"),
    Row(OPT, 32, 0, 1024, 48, 8.097, 7.993, "P1 m8 D8: 26: 8xA100/4"),
    Row(OPT, 80, 0, 1024, 92, 3.758, 3.673, "P1 m4 D20: 26: 20xA100/4"),
    Row(OPT, 128, 0, 1024, 104, 2.467, 2.395, "P1 m8 D32: 26: 32xA100/4"),
    Row(OPT, 0, 16, 256, 12, 12.625, 12.569, "P1 m4 D4: 26: 4xV100/4"),
    Row(OPT, 16, 16, 256, 59, 3.819, 4.309, "P2 m2 D10: 13: 6xA100/1 + 4xV100/4, 13: 10xA100/1"),
    Row(OPT, 16, 16, 1024, 59, 12.154, 13.005, "P2 m4 D10: 13: 6xA100/1 + 4xV100/4, 13: 10xA100/1"),
    Row(OPT, 4, 4, 64, 15, 3.827, 3.803, "P1 m8 D1: 26: 1xA100/4"),
    Row(NEO, 16, 0, 256, 15, 12.711, 12.761, "P2 m4 D2: 17: 2xA100/4, 17: 2xA100/4"),
    Row(NEO, 16, 0, 2048, 15, 86.997, 89.136, "P2 m1 D4: 17: 4xA100/2, 17: 4xA100/2"),
    Row(NEO, 32, 0, 2048, 31, 45.357, 46.212, "P2 m1 D8: 17: 8xA100/2, 17: 8xA100/2"),
    Row(NEO, 0, 64, 2048, 16, 121.40, 121.82, "P3 m1 D5: 11: 5xV100/4, 11: 5xV100/4, 12: 5xV100/4"),
    Row(
        NEO,
        16,
        16,
        2048,
        36,
        76.92,
        83.30,
        "P5 m1 D4: 6: 4xV100/4, 7: 4xA100/1, 7: 4xA100/1, 7: 4xA100/1, 7: 4xA100/1",
    ),
    Row(NEO, 8, 24, 1024, 14, 73.32, 73.34, "P3 m1 D4: 11: 4xV100/4, 11: 4xA100/1, 12: 4xA100/1"),
)

LARGE_ROWS = (
    Row(
        OPT,
        80,
        240,
        1024,
        106,
        2.760,
        2.771,
        "P7 m1 D20: 3: 20xV100/4, 3: 20xA100/1, 4: 20xA100/1, 4: 20xA100/1, 4: 20xA100/1, "
        "4: 20xV100/4, 4: 20xV100/4",
    ),
    Row(OPT, 32, 96, 1024, 101, 5.260, 5.884, "P2 m2 D27: 13: 3xA100/1 + 24xV100/4, 13: 27xA100/1"),
    Row(
        NEO,
        32,
        96,
        2048,
        79,
        35.64,
        38.08,
        "P6 m1 D9: 5: 9xV100/4, 5: 9xV100/4, 6: 9xA100/1, 6: 9xA100/1, 6: 9xA100/1, 6: 3xA100/1 + 6xV100/4",
    ),
)


def check(row: Row) -> None:
    """Number of plans, best plan, both times."""
    problem = published(row.model, row.zones, row.batch)
    assert len(search(problem, defects=True)) == row.num_plans
    plan = best_plan(problem, defects=True)
    assert plan is not None
    assert described(problem, plan) == row.plan
    assert plan.estimate_s == pytest.approx(row.planner_s, rel=2e-4)
    judge = published(row.model, row.zones, row.batch, of_simulator=True)
    assert simulated_s(judge, plan, defects=True) == pytest.approx(row.simulator_s, rel=2e-4)


@needs_sailor_files
@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row.model}-{row.a100}+{row.v100}-{row.batch}")
def test_published_plans(row: Row) -> None:
    check(row)


@needs_sailor_files
@pytest.mark.slow
@pytest.mark.parametrize("row", LARGE_ROWS, ids=lambda row: f"{row.model}-{row.a100}+{row.v100}-{row.batch}")
def test_published_plans_of_large_mixed_clusters(row: Row) -> None:
    check(row)


@needs_sailor_files
def test_gh200_whose_planner_and_simulator_have_other_profiles() -> None:
    zones = {HERE: {"GH-96": 64}}
    problem = published(OPT, zones, 1024)
    assert len(search(problem, defects=True)) == 116
    plan = best_plan(problem, defects=True)
    assert plan is not None
    assert described(problem, plan) == "P2 m2 D32: 13: 32xGH/1, 13: 32xGH/1"
    assert plan.estimate_s == pytest.approx(1.638, rel=4e-4)
    judge = published(OPT, zones, 1024, of_simulator=True)
    assert simulated_s(judge, plan, defects=True) == pytest.approx(1.652, rel=4e-4)


@needs_sailor_files
def test_a_stage_may_span_zones_but_not_regions() -> None:
    """The zone that the program happens to list first comes first here, too."""
    near = published(OPT, {THERE: {"A100-40": 16}, HERE: {"A100-40": 16}}, 1024)
    plan = best_plan(near, defects=True)
    assert plan is not None
    assert described(near, plan) == "P1 m8 D8: 26: 4xA100/4 + 4xA100/4"
    assert plan.estimate_s == pytest.approx(8.075, rel=2e-4)
    assert simulated_s(near, plan, defects=True) == pytest.approx(7.996, rel=2e-4)
    far = published(OPT, {HERE: {"A100-40": 16}, FAR: {"A100-40": 16}}, 1024)
    plan = best_plan(far, defects=True)
    assert plan is not None
    assert described(far, plan) == "P2 m2 D8: 13: 8xA100/2, 13: 8xA100/2"
    assert {stage.runs[0].endpoint.zone for stage in plan.stages} == {0, 1}
    assert plan.estimate_s == pytest.approx(10.13, rel=1e-3)
    assert simulated_s(far, plan, defects=True) == pytest.approx(12.13, rel=1e-3)


@needs_sailor_files
@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row.model}-{row.a100}+{row.v100}-{row.batch}")
def test_repaired_answers_divide_the_batch_fit_and_do_not_get_worse(row: Row) -> None:
    """Under the repaired clock and memory, no published plan that can be executed is faster."""
    problem = published(row.model, row.zones, row.batch, defects=False)
    plan = best_plan(problem, defects=False)
    assert plan is not None
    assert row.batch % (plan.micro_batch * plan.dp) == 0
    assert fits(problem, plan)
    old = best_plan(published(row.model, row.zones, row.batch), defects=True)
    assert old is not None
    if row.batch % (old.micro_batch * old.dp) == 0 and fits(problem, old):
        old_s = simulated_s(problem, old, defects=False)
        assert simulated_s(problem, plan, defects=False) <= old_s * (1 + 1e-12)


@needs_sailor_files
def test_more_gpus_no_longer_make_the_answer_worse() -> None:
    """The program's plan for 16 A100 and 16 V100 is slower, in its own simulator, than for the A100 alone."""
    times = {}
    for defects in (True, False):
        for v100 in (0, 16):
            zones = {HERE: {"A100-40": 16, **({"V100-16": v100} if v100 else {})}}
            problem = published(OPT, zones, 256, defects=defects)
            plan = best_plan(problem, defects=defects)
            assert plan is not None
            times[defects, v100] = simulated_s(problem, plan, defects=defects)
    assert times[True, 16] > times[True, 0]
    assert times[False, 16] < times[False, 0]
