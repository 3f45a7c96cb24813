"""What the user dictates is what the plan does, or is refused with the legal values."""

from __future__ import annotations

from functools import cache

import pytest

from tangram.cluster.shorthand import parse_shorthand
from tangram.errors import InputError
from tangram.job import Job, Pins, Precision, Recompute
from tangram.model.load import load_model
from tangram.plan.check import check_plan
from tangram.plan.schema import PlanDocument, StageSection
from tangram.planner.planner import plan
from tangram.planner.recost import cost_violations

DENSE, SPARSE = "gpt3-1.3b", "gshard-moe-2.4b"
TWO_NODES = "1x4xA100-40GB-SXM+1x4xV100-32GB-SXM2@100Gbit"
EQUAL_NODES = "2x4xV100-32GB-SXM2@100Gbit"


@cache
def planned(pins: Pins, model: str = DENSE, cluster: str = TWO_NODES) -> PlanDocument:
    job = Job(16, 1024, Precision.FP16, pins=pins)
    return plan(load_model(model), parse_shorthand(cluster), job)


def sound(doc: PlanDocument) -> list[StageSection]:
    """Checks the plan and returns its stages."""
    assert not check_plan(doc)
    assert not cost_violations(doc)
    return doc.stages


def modes(stage: StageSection) -> set[Recompute]:
    """Recomputation of the layers; embedding and head have none."""
    return {row.mode for row in stage.recompute if row.layers}


@pytest.mark.parametrize("tp", [1, 2, 4])
def test_tp(tp: int) -> None:
    assert {stage.tp for stage in sound(planned(Pins(tp=tp)))} == {tp}


def test_tp_spans_nodes_only_when_allowed() -> None:
    stages = sound(planned(Pins(tp=8, allow_cross_node_tp=True), cluster=EQUAL_NODES))
    assert [stage.tp for stage in stages] == [8]
    assert len({slot.node for slot in stages[0].ranks}) == 2


@pytest.mark.parametrize("dp", [1, 2, 4])
def test_dp(dp: int) -> None:
    stages = sound(planned(Pins(dp=dp)))
    assert {stage.dp for stage in stages} == {dp}
    assert all(len(stage.micro_batch_per_dp_rank) == dp for stage in stages)


@pytest.mark.parametrize("cp", [1, 2, 4])
def test_cp(cp: int) -> None:
    assert {stage.cp for stage in sound(planned(Pins(cp=cp)))} == {cp}


@pytest.mark.parametrize("ep", [1, 2, 4])
def test_ep(ep: int) -> None:
    stages = sound(planned(Pins(ep=ep), model=SPARSE))
    assert {stage.ep for stage in stages if stage.expert_mesh is not None} == {ep}


def test_ep_1_is_legal_without_experts() -> None:
    assert all(stage.expert_mesh is None for stage in sound(planned(Pins(ep=1))))


@pytest.mark.parametrize("zero", [0, 1, 2, 3])
def test_zero(zero: int) -> None:
    stages = sound(planned(Pins(zero=zero)))
    assert {stage.zero for stage in stages} == {zero}
    assert all(bool(stage.zero_axes) == (zero > 0) for stage in stages)


@pytest.mark.parametrize("mode", list(Recompute))
def test_recompute(mode: Recompute) -> None:
    stages = sound(planned(Pins(recompute=mode)))
    assert {found for stage in stages for found in modes(stage)} == {mode}


@pytest.mark.parametrize("micro_batch", [1, 2, 16])
def test_micro_batch(micro_batch: int) -> None:
    doc = planned(Pins(micro_batch=micro_batch))
    sound(doc)
    assert doc.pipelines[0].micro_batch == micro_batch
    assert doc.pipelines[0].num_micro_batches == 16 // micro_batch
    assert doc.search.micro_batches_considered == [micro_batch]


@pytest.mark.parametrize("pp", [1, 2, 5, 8])
def test_pp(pp: int) -> None:
    assert len(sound(planned(Pins(pp=pp)))) == pp


@pytest.mark.parametrize("layers", [(24,), (12, 12), (20, 4), (7, 8, 9), (0, 24), (24, 0), (0, 24, 0)])
def test_layers_per_stage(layers: tuple[int, ...]) -> None:
    stages = sound(planned(Pins(layers_per_stage=layers)))
    assert tuple(stage.layers[1] - stage.layers[0] for stage in stages) == layers


@pytest.mark.parametrize(
    ("offload", "optimizer", "activations"),
    [("none", False, False), ("optimizer", True, False), ("activations", False, True), ("both", True, True)],
)
def test_offload(offload: str, optimizer: bool, activations: bool) -> None:
    for stage in sound(planned(Pins(offload=offload, micro_batch=4))):
        assert stage.offload_optimizer == optimizer
        assert bool(stage.offload_activation_atoms) == activations
        assert (stage.predicted.memory["optimizer"] == 0) == optimizer


def test_offload_auto_offloads_nothing_where_memory_is_ample() -> None:
    auto, none = planned(Pins(offload="auto", micro_batch=4)), planned(Pins(offload="none", micro_batch=4))
    assert auto.prediction.iteration_time_s <= none.prediction.iteration_time_s
    assert not any(stage.offload_optimizer for stage in sound(auto))


def test_pins_hold_together() -> None:
    pins = Pins(micro_batch=2, tp=2, zero=1, recompute=Recompute.FULL, layers_per_stage=(8, 8, 8), pp=3, cp=1)
    doc = planned(pins)
    stages = sound(doc)
    assert doc.pipelines[0].micro_batch == 2
    assert {(stage.tp, stage.cp, stage.zero) for stage in stages} == {(2, 1, 1)}
    assert [stage.layers for stage in stages] == [(0, 8), (8, 16), (16, 24)]
    assert {mode for stage in stages for mode in modes(stage)} == {Recompute.FULL}
    assert doc.job.to_job().pins == pins


def test_no_pin_beats_the_bound_of_the_free_search() -> None:
    bound_s = planned(Pins()).bound.lower_bound_s
    for pins in (Pins(tp=1), Pins(dp=4), Pins(zero=1), Pins(pp=2), Pins(micro_batch=16)):
        assert planned(pins).prediction.iteration_time_s >= bound_s * (1 - 1e-9)


@pytest.mark.parametrize(
    ("pins", "where", "hint"),
    [
        (Pins(tp=3), "--tp", "legal: 1, 2, 4"),
        (Pins(tp=8), "--tp", "legal: 1, 2, 4"),
        (Pins(cp=3), "--cp", "legal: 1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024"),
        (Pins(cp=512, tp=4), "--cp", "legal: 1, 2, 4, 8, 16, 32, 64, 128, 256"),
        (Pins(ep=2), "--ep", "legal: 1"),
        (Pins(dp=3), "--dp", "legal: 1, 2, 4, 8, 16"),
        (Pins(dp=4, micro_batch=2), "--dp", "legal: 1, 2"),
        (Pins(pp=9), "--pp", "legal: 1 to 8"),
        (Pins(pp=25), "--pp", "legal: 1 to 8"),
        (Pins(layers_per_stage=(12, 11)), "--layers-per-stage", "they must be 0 or more and sum to 24"),
        (Pins(layers_per_stage=(25, -1)), "--layers-per-stage", "they must be 0 or more and sum to 24"),
        (Pins(layers_per_stage=(12, 12), pp=3), "--layers-per-stage", "list pp numbers"),
        (Pins(layers_per_stage=(2,) * 12), "--layers-per-stage", "legal: 1 to 8"),
    ],
)
def test_illegal_pins_are_refused_with_the_legal_values(pins: Pins, where: str, hint: str) -> None:
    with pytest.raises(InputError) as caught:
        planned(pins)
    assert caught.value.where == where
    assert caught.value.hint == hint


def test_ep_that_does_not_divide_the_experts_is_refused() -> None:
    with pytest.raises(InputError, match="ep 3 does not divide 8 experts") as caught:
        planned(Pins(ep=3), model="mixtral-8x7b")
    assert caught.value.hint == "legal: 1, 2, 4, 8"


def test_tp_that_suits_the_nodes_but_not_the_model_is_refused() -> None:
    with pytest.raises(InputError, match="32 heads, 4 key/value heads") as caught:
        planned(Pins(tp=8), model="qwen3-30b-a3b", cluster="1x8xA100-80GB-SXM")
    assert caught.value.hint == "legal: 1, 2, 4"


@pytest.mark.parametrize(
    ("field", "value"), [("micro_batch", 3), ("micro_batch", 0), ("tp", 0), ("zero", 4), ("offload", "disk")]
)
def test_pins_that_are_illegal_everywhere_never_make_a_job(field: str, value: object) -> None:
    with pytest.raises(InputError) as caught:
        Job(16, 1024, Precision.FP16, pins=Pins(**{field: value}))  # type: ignore[arg-type]
    assert caught.value.where == f"--{field.replace('_', '-')}"
