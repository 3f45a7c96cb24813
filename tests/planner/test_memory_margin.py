"""What fits, fits by the upper estimate; and the margin between the two estimates is the user's to choose."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from small_jobs import Outcome, outcome, random_world, small_cluster, small_model, small_node

from tangram.basis import CostBasis, Override
from tangram.cluster.readers import load_cluster
from tangram.cost.constants import stack_constants
from tangram.errors import InfeasibleError
from tangram.job import Job, Pins, Precision
from tangram.model.load import load_model
from tangram.plan.check import check_plan
from tangram.plan.json_io import read_plan, to_json
from tangram.plan.schema import PlanDocument
from tangram.planner.options import PlanOptions, Pruning
from tangram.planner.planner import plan
from tangram.planner.recost import cost_violations
from tangram.units import GB

ROUNDING = 1 + 1e-9
JOB = Job(8, 2048, Precision.FP16)
SHIPPED = stack_constants().upper_memory_ratio - 1
TIGHT = "1x2xV100-16GB-SXM2+1x4xT4@50Gbit"


def with_margin(job: Job, frac: float | None) -> Job:
    return replace(job, basis=CostBasis(memory_margin_frac=frac))


def tight_plan(frac: float | None = None, parallelizer: str = "exact") -> PlanDocument:
    job = with_margin(JOB, frac)
    return plan(load_model("gpt3-2.6b"), load_cluster(TIGHT), job, PlanOptions(parallelizers=(parallelizer,)))


def state_bytes(doc: PlanDocument, idx: int) -> int:
    return sum(doc.stages[idx].predicted.memory[item] for item in ("weights", "gradients", "optimizer"))


def estimated_bytes(doc: PlanDocument, idx: int) -> int:
    return sum(doc.stages[idx].predicted.memory[item] for item in ("activations", "workspace", "reserve"))


@pytest.mark.parametrize("parallelizer", ["exact", "uniform"])
@pytest.mark.parametrize("frac", [None, 0.0, 0.12])
def test_every_stage_fits_with_its_margin(frac: float | None, parallelizer: str) -> None:
    doc = tight_plan(frac, parallelizer)
    for stage in doc.stages:
        states, estimated = state_bytes(doc, stage.index), estimated_bytes(doc, stage.index)
        due = SHIPPED if frac is None else frac
        assert stage.predicted.memory["margin"] == pytest.approx(due * estimated, abs=4)
        assert states + (1 + due) * estimated <= stage.predicted.capacity_bytes + 8
        assert stage.predicted.headroom_bytes == stage.predicted.capacity_bytes - stage.predicted.peak_bytes
    assert not check_plan(doc)
    assert not cost_violations(doc)


def test_the_margin_decides_on_this_cluster() -> None:
    """Some stage of the plan without margin would not fit with it: the tests above test something."""
    doc = tight_plan(0.0)
    over = [
        state_bytes(doc, s.index) + (1 + SHIPPED) * estimated_bytes(doc, s.index) > s.predicted.capacity_bytes
        for s in doc.stages
    ]
    assert any(over)
    assert tight_plan().prediction.iteration_time_s > doc.prediction.iteration_time_s
    fits = plan(load_model("gpt3-2.6b"), load_cluster("1x4xT4"), with_margin(JOB, 0.0))
    assert fits.stages
    with pytest.raises(InfeasibleError, match="a margin of 100 %"):
        plan(load_model("gpt3-2.6b"), load_cluster("1x4xT4"), with_margin(JOB, 1.0))


def test_a_calibrated_ratio_counts_where_no_margin_is_chosen() -> None:
    override = Override("stack", "tangram-runtime", "upper_memory_ratio", 1.05)
    doc = plan(
        load_model("gpt3-2.6b"),
        load_cluster(TIGHT),
        replace(JOB, basis=CostBasis(overrides=(override,))),
    )
    for stage in doc.stages:
        due = 0.05 * estimated_bytes(doc, stage.index)
        assert stage.predicted.memory["margin"] == pytest.approx(due, abs=4)
    assert not cost_violations(doc)


@settings(max_examples=15, deadline=None, derandomize=True)
@given(st.integers(0, 2**32 - 1))
def test_a_smaller_margin_never_hurts(seed: int) -> None:
    """As more memory does not: every plan with the larger margin is one with the smaller margin too."""
    world = random_world(seed)
    found: list[Outcome | None] = [
        outcome(world.model, world.cluster, with_margin(world.job, frac)) for frac in (0.4, 0.1, 0.0)
    ]
    for larger, smaller in pairwise(found):
        if larger is None:
            continue
        assert smaller is not None
        assert smaller.bound_s <= larger.time_s * ROUNDING
        if smaller.proven:
            assert smaller.time_s <= larger.time_s * ROUNDING


@settings(max_examples=10, deadline=None, derandomize=True)
@given(st.integers(0, 2**32 - 1), st.sampled_from([0.0, 0.3, 1.0]))
@example(7, 1.0)
def test_pruning_on_model_states_stays_safe_with_any_margin(seed: int, frac: float) -> None:
    world = random_world(seed)
    job = with_margin(world.job, frac)
    done = [
        outcome(world.model, world.cluster, job, PlanOptions(pruning=pruning))
        for pruning in (Pruning.NONE, Pruning.SAFE)
    ]
    assert (done[0] is None) == (done[1] is None)
    if done[0] is not None and done[1] is not None:
        assert done[0].found.pipeline == done[1].found.pipeline


@pytest.mark.parametrize("frac", [0.0, 0.1, 0.6])
def test_the_smallest_gpu_that_holds_a_large_vocabulary_is_not_pruned(frac: float) -> None:
    """States are most of what it holds, so a bound a little too high would remove the only plan."""
    model = small_model(2, vocab_size=1_000_000)
    job = with_margin(Job(4, 128, Precision.FP16, pins=Pins(micro_batch=1)), frac)

    def found(memory_mb: int, pruning: Pruning) -> Outcome | None:
        cluster = small_cluster([small_node("a", "V100-16GB-SXM2", 1, memory_mb * GB / 1000)])
        return outcome(model, cluster, job, PlanOptions(pruning=pruning))

    too_small, enough = 30_000, 90_000
    while enough - too_small > 20:
        middle = (too_small + enough) // 2
        if found(middle, Pruning.NONE) is None:
            too_small = middle
        else:
            enough = middle
    pruned = found(enough, Pruning.SAFE)
    assert pruned is not None
    of = pruned.search.sizes[0].reference
    assert 0.75 < of.total_state_bytes / of.usable_bytes[0] < 1


def test_more_pairs_are_infeasible_by_their_states_with_a_margin() -> None:
    cluster = small_cluster([small_node("a", "V100-16GB-SXM2", 4, 4.4 * GB)])
    job = Job(4, 128, Precision.FP16, pins=Pins(micro_batch=1))
    counts = []
    for frac in (0.0, 0.3):
        done = outcome(small_model(8, vocab_size=100_000), cluster, with_margin(job, frac))
        assert done is not None
        counts.append(done.search.counts["removed_infeasible"])
    assert counts[0] < counts[1]


def test_a_plan_keeps_the_margin_it_was_made_with(tmp_path: Path) -> None:
    doc = tight_plan(0.12)
    file = tmp_path / "plan.json"
    file.write_text(to_json(doc), encoding="utf-8")
    read = read_plan(file)
    assert read.job.to_job().basis == CostBasis(memory_margin_frac=0.12)
    assert not check_plan(read)
    assert not cost_violations(read)
    assert doc.prediction.time_band_frac == tight_plan().prediction.time_band_frac  # Times rest on the same.


def without_margins(doc: PlanDocument) -> PlanDocument:
    """The plan as one writes it who knows best estimates only."""
    data = doc.model_dump(mode="json")
    for stage in data["pipelines"][0]["stages"]:
        predicted = stage["predicted"]
        size = predicted["memory"].pop("margin")
        predicted["peak_bytes"] -= size
        predicted["headroom_bytes"] += size
    return PlanDocument.model_validate(data)


def test_a_plan_without_margins_is_held_to_them_all_the_same() -> None:
    fits = without_margins(tight_plan())
    assert not check_plan(fits)
    assert not cost_violations(fits)
    tight = tight_plan(0.0)
    data = without_margins(tight).model_dump(mode="json")
    data["job"]["basis"] = None
    doc = PlanDocument.model_validate(data)
    assert not check_plan(doc)
    found = cost_violations(doc)
    over = [
        s.index
        for s in doc.stages
        if s.predicted.peak_bytes + SHIPPED * estimated_bytes(doc, s.index) > s.predicted.capacity_bytes
    ]
    assert over
    assert {(v.code, v.where) for v in found} == {
        ("memory-over-capacity", f"pipelines[0].stages[{idx}].predicted.peak_bytes") for idx in over
    }


def test_a_changed_margin_is_reported() -> None:
    data = tight_plan().model_dump(mode="json")
    predicted = data["pipelines"][0]["stages"][0]["predicted"]
    predicted["memory"]["margin"] -= 2**20
    predicted["memory"]["workspace"] += 2**20
    doc = PlanDocument.model_validate(data)
    assert not check_plan(doc)
    found = [(violation.code, violation.where) for violation in cost_violations(doc)]
    assert found == [("stage-cost-differs", "pipelines[0].stages[0].predicted.memory.margin")]
