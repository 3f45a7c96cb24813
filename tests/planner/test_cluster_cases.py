"""What users bring, case by case: odd numbers of layers, nodes, GPUs and experts, whole plans each."""

from __future__ import annotations

from tangram.cluster.shorthand import parse_shorthand
from tangram.job import Job, Pins, Precision
from tangram.model.load import load_model
from tangram.plan.check import check_plan
from tangram.plan.schema import PlanDocument, StageSection
from tangram.planner.planner import plan
from tangram.planner.recost import cost_violations


def sound(doc: PlanDocument) -> PlanDocument:
    assert not check_plan(doc)
    assert not cost_violations(doc)
    return doc


def pace_s(stage: StageSection) -> float:
    return stage.predicted.forward_s + stage.predicted.backward_s


def test_forty_layers_on_sixteen_equal_gpus_in_sixteen_stages() -> None:
    """NVIDIA/Megatron-LM#1303: 40 layers in 16 stages, of which other planners build 32 or refuse."""
    cluster = parse_shorthand("2x8xA100-80GB-SXM@100Gbit")
    job = Job(128, 2048, Precision.BF16, pins=Pins(pp=16, micro_batch=1))
    doc = sound(plan(load_model("gpt3-13b"), cluster, job))
    layers = [stop - start for start, stop in (stage.layers for stage in doc.stages)]
    assert len(layers) == 16
    assert sum(layers) == 40
    assert set(layers) == {2, 3}
    inner = [pace_s(stage) for stage in doc.stages[1:-1]]
    layer_s = min(pace / count for pace, count in zip(inner, layers[1:-1], strict=True))
    for end in (doc.stages[0], doc.stages[-1]):
        assert pace_s(end) <= max(inner) + layer_s
