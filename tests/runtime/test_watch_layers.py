"""Which measured times become records, with which keys, and what is left out."""

from __future__ import annotations

import pytest
from samples import dense_plan, mixed_plan, moe_plan

from tangram.plan.schema import PlanDocument
from tangram.profiles.shapes import LayerKind
from tangram.runtime.watch.layers import AtomTimes, layer_records


def times(plan: PlanDocument, gpu: str = "FAST-40GB") -> list[AtomTimes]:
    return [
        AtomTimes(slot.rank, gpu, atom, 2, 0.01 * (atom + 1), 0.02 * (atom + 1))
        for stage in plan.stages
        for slot in stage.ranks
        for atom in range(*stage.atoms)
    ]


def test_records_of_a_dense_plan() -> None:
    """Stage 0 has tp 2; its atoms recompute nothing, all, and the attention core."""
    plan = dense_plan()
    records, notes = layer_records(plan, times(plan), "a test")
    by_key = {(r.shape.kind, r.tp): r for r in records}
    assert set(by_key) == {
        (LayerKind.EMBEDDING, 2),
        (LayerKind.LAYER, 2),
        (LayerKind.LAYER, 1),
        (LayerKind.HEAD, 1),
    }
    embedding, layers = by_key[LayerKind.EMBEDDING, 2], by_key[LayerKind.LAYER, 2]
    assert (embedding.forward_s, embedding.backward_s) == pytest.approx((0.01, 0.02))
    assert embedding.includes_tp_comm
    assert not by_key[LayerKind.HEAD, 1].includes_tp_comm
    assert layers.forward_s == pytest.approx(0.03)  # the median of atoms 1 to 3
    assert layers.backward_s is None  # all of them recompute
    assert notes == ["stage 0: backward passes that recompute"]
    assert {(r.gpu, r.stack, r.precision, r.micro_batch, r.source) for r in records} == {
        ("FAST-40GB", "tangram-runtime", plan.job.precision, 2, "a test")
    }


def test_what_would_mean_something_else_is_left_out() -> None:
    plan = moe_plan()
    records, notes = layer_records(plan, times(plan), "a test")
    assert notes == ["stage 0: weights are gathered in every pass (zero 3)"]
    assert {r.tp for r in records} == {2}
    stages = plan.pipelines[0].stages
    whole = stages[0].model_copy(update={"zero": 0})
    pipeline = plan.pipelines[0].model_copy(update={"stages": [whole, stages[1]]})
    _, notes = layer_records(plan.model_copy(update={"pipelines": [pipeline]}), times(plan), "a test")
    assert notes == ["stage 0: sequences are cut (cp 2)"]
    parted = whole.model_copy(update={"cp": 1, "dp": 4})
    pipeline = plan.pipelines[0].model_copy(update={"stages": [parted, stages[1]]})
    records, notes = layer_records(plan.model_copy(update={"pipelines": [pipeline]}), times(plan), "a test")
    assert notes == ["stage 0: experts on several ranks"]
    assert {(r.shape.num_experts, r.tp) for r in records if r.tp == 1} == {(0, 1)}


def test_layers_with_degrees_of_their_own() -> None:
    plan = mixed_plan()
    records, notes = layer_records(plan, times(plan), "a test")
    assert records == []
    assert notes == ["stage 0: layers with degrees of their own"]


def test_a_group_that_spans_nodes() -> None:
    plan = dense_plan()
    stages = plan.pipelines[0].stages
    ranks = [slot.model_copy(update={"node": f"n{slot.rank}"}) for slot in stages[0].ranks]
    split = stages[0].model_copy(update={"ranks": ranks})
    pipeline = plan.pipelines[0].model_copy(update={"stages": [split, stages[1]]})
    records, notes = layer_records(plan.model_copy(update={"pipelines": [pipeline]}), times(plan), "a test")
    assert notes == ["stage 0: a tp group spans nodes"]
    assert {r.tp for r in records} == {1}
