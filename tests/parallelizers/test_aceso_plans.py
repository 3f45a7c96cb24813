"""From Aceso's saved plans to slice plans: reading, rounding, recomputation, and what contradicts."""

import itertools
import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from profile_files import needs_shared, shared_profiles

import tangram
from tangram.cluster.islands import build_islands
from tangram.cluster.spec import Portion
from tangram.job import Job, Pins, Precision, Recompute
from tangram.model.atoms import Granularity, cut_atoms
from tangram.parallelizers.external.aceso_plans import (
    AcesoPlan,
    AcesoStage,
    fastest_first,
    freed_bytes,
    operator_ends,
    read_plan,
    rounded_cuts,
    slice_plan,
)
from tangram.parallelizers.external.aceso_profiles import OperatorRow, Profiled, operator_rows
from tangram.parallelizers.external.process import ProgramError
from tangram.parallelizers.invariants import plan_faults, recost
from tangram.parallelizers.protocols import SlicePlan, SliceRequest, StageChoice
from tangram.units import MIB

ALLOWED = frozenset((tp, dp) for tp in (1, 2, 4, 8) for dp in (1, 2, 4, 8))


def request(
    model: str = "gpt3-1.3b",
    cluster: str = "1x4xV100-32GB-SXM2",
    granularity: str = "layer",
    micro_batch: int = 1,
    pins: Pins = Pins(),
) -> SliceRequest:
    spec = tangram.load_model(model)
    island = build_islands(tangram.load_cluster(cluster), Precision.FP16)[0]
    atoms = cut_atoms(spec, Granularity(granularity))
    portion = Portion(island, island.num_nodes, island.gpus_per_node)
    job = Job(1024, 2048, Precision.FP16, pins=pins)
    num = 1024 // micro_batch
    return SliceRequest(spec, atoms, 0, len(atoms), portion, micro_batch, num, 1, None, None, job)


def tables(asked: SliceRequest) -> dict[tuple[int, int], tuple[OperatorRow, ...]]:
    profiled = Profiled(asked.model, asked.atoms, asked.portion.island, asked.job)
    degrees = (1, 2, 4)
    return {
        (tp, asked.micro_batch // dp): operator_rows(profiled, tp, asked.micro_batch // dp)
        for tp in degrees
        for dp in degrees
        if asked.micro_batch % dp == 0
    }


def translated(asked: SliceRequest, found: AcesoPlan) -> SlicePlan | None:
    return slice_plan(asked, found, tables(asked), ALLOWED, "x.json")


def stored(name: str) -> AcesoPlan:
    path = shared_profiles() / "aceso-v100" / "plans-rerun" / name
    return read_plan(path.read_text(encoding="utf-8"), name)


@needs_shared
def test_plans_of_the_real_search_are_read() -> None:
    """Figures as published in the notes on these runs."""
    found = stored("gpt_2_6B_8gpu_V100-32_4stages.json")
    assert found.micro_batch == 2
    assert [s.num_ops for s in found.stages] == [104, 106, 111, 98]
    assert [(s.tp, s.dp) for s in found.stages] == [(1, 2)] * 4
    assert [sum(s.recomputed) for s in found.stages] == [16, 14, 4, 0]
    for path in sorted((shared_profiles() / "aceso-v100" / "plans-rerun").glob("*.json")):
        plan = stored(path.name)
        assert f"{len(plan.stages)}stages" in path.name
        assert f"_{sum(s.tp * s.dp for s in plan.stages)}gpu_" in path.name
        assert all(len(s.recomputed) == s.num_ops for s in plan.stages)


@needs_shared
@pytest.mark.parametrize("granularity", ["operator", "block", "layer"])
@pytest.mark.parametrize(
    ("name", "model", "cluster"),
    [
        ("gpt_1_3B_4gpu_V100-32_4stages.json", "gpt3-1.3b", "1x4xV100-32GB-SXM2"),
        ("gpt_2_6B_8gpu_V100-32_4stages.json", "gpt3-2.6b", "1x8xV100-32GB-SXM2"),
        ("gpt_6_7B_16gpu_V100-32_9stages.json", "gpt3-6.7b", "2x8xV100-32GB-SXM2"),
    ],
)
def test_plans_of_the_real_search_become_slice_plans(
    name: str, model: str, cluster: str, granularity: str
) -> None:
    found = stored(name)
    asked = request(model, cluster, granularity, found.micro_batch)
    plan = translated(asked, found)
    assert plan is not None
    assert not plan_faults(asked, plan)
    assert [(s.config.tp, s.config.dp, s.config.zero) for s in plan.stages] == [
        (s.tp, s.dp, 0) for s in found.stages
    ]
    ends = operator_ends(asked.atoms)
    wanted = itertools.accumulate(s.num_ops for s in found.stages)
    widest = max(b - a for a, b in itertools.pairwise(ends))
    for stage, stop in zip(plan.stages[:-1], wanted, strict=False):
        assert abs(ends[stage.stop] - stop) <= widest / 2


@given(st.data())
def test_rounding(data: st.DataObject) -> None:
    """Against all ways to cut: every stage has an atom, and where the nearest ends do so, they are taken."""
    num_atoms = data.draw(st.integers(1, 7))
    widths = data.draw(st.lists(st.integers(1, 6), min_size=num_atoms, max_size=num_atoms))
    ends = [0, *itertools.accumulate(widths)]
    num_stages = data.draw(st.integers(1, min(num_atoms, ends[-1])))
    inner = data.draw(
        st.lists(st.integers(1, ends[-1] - 1), min_size=num_stages - 1, max_size=num_stages - 1, unique=True)
        if num_stages > 1
        else st.just([])
    )
    bounds = [0, *sorted(inner), ends[-1]]
    found = rounded_cuts(bounds, ends)
    assert found[0] == 0
    assert found[-1] == num_atoms
    assert all(a < b for a, b in itertools.pairwise(found))
    nearest = [0, *(min(range(num_atoms + 1), key=lambda i: (abs(ends[i] - b), i)) for b in bounds[1:-1])]
    nearest.append(num_atoms)
    if all(a < b for a, b in itertools.pairwise(nearest)):
        assert found == nearest
    if set(bounds) <= set(ends):
        assert [ends[i] for i in found] == bounds


def test_ends_of_atoms_in_operators() -> None:
    model = tangram.load_model("gpt3-1.3b")
    assert operator_ends(cut_atoms(model))[:4] == [0, 1, 14, 27]
    assert operator_ends(cut_atoms(model))[-2:] == [1 + 13 * 24, 3 + 13 * 24]
    assert operator_ends(cut_atoms(model, Granularity("operator")))[:8] == [0, 1, 3, 7, 9, 11, 14, 16]


def row(name: str, activations: float) -> OperatorRow:
    return OperatorRow(name, 1.0, 2.0, 1.0, 1.0, 1.0, activations, 0.0, 0.0)


ROWS = [
    row("embedding", 1),
    row("enc-1st-layernorm", 2),
    row("b", 4),
    row("c", 8),
    row("n", 16),
    row("h", 32),
]


@pytest.mark.parametrize(
    ("first", "marks", "freed"),
    [
        (0, "0000", 0),
        (1, "010", 0),  # an operator is dropped with the next one only
        (1, "011", 4),
        (1, "111", 2 + 4),
        (1, "0110", 4),
        (2, "1111", 4 + 0 + 2),  # c hands its layer's output to the next layer, which keeps it
        (5, "111", 4 + 8),  # the last layer's goes to the final norm
    ],
)
def test_what_recomputation_frees(first: int, marks: str, freed: float) -> None:
    """One layer has the operators 1st-layernorm, b and c; there are two of them."""
    stage = AcesoStage(len(marks), 1, 1, tuple(mark == "1" for mark in marks))
    assert freed_bytes(stage, ROWS, first, 3 + 2 * 3) == freed * MIB


def even(num_stages: int, layers: int, marks: Sequence[int] = (), tp: int = 1, dp: int = 1) -> AcesoPlan:
    """Equal stages of whole layers; ``marks`` are the layers of each stage that are recomputed throughout."""
    each = layers // num_stages
    stages = []
    for idx in range(num_stages):
        front, rear = int(idx == 0), 2 * int(idx == num_stages - 1)
        number = marks[idx] if marks else 0
        flags = (
            [False] * front + [place < number for place in range(each) for _ in range(13)] + [False] * rear
        )
        stages.append(AcesoStage(len(flags), tp, dp, tuple(flags)))
    return AcesoPlan(dp, tuple(stages))


def recomputed(plan: SlicePlan | None) -> list[int]:
    assert plan is not None
    return [sum(stage.recomputed) for stage in plan.stages]


def test_layers_that_are_recomputed_throughout_stay_so() -> None:
    """Where nothing more is needed, the number of recomputed layers is the one that Aceso chose."""
    asked = request(cluster="1x4xA100-80GB-SXM")
    assert recomputed(translated(asked, even(4, 24))) == [0, 0, 0, 0]
    assert recomputed(translated(asked, even(4, 24, (6, 3, 2, 1)))) == [6, 3, 2, 1]


def cheapest(asked: SliceRequest, stage: StageChoice, freed: float, in_flight: int) -> float:
    """The least time of a stage that fits and frees so much, by trying everything: layers are equal."""
    inner = [place for place, atom in enumerate(asked.atoms[stage.start : stage.stop]) if atom.layer_idxs]
    nothing = (False,) * (stage.stop - stage.start)
    plain = replace(stage, recomputed=nothing, config=replace(stage.config, selective=False))
    most = recost(asked, plain, in_flight).activation_bytes - freed
    times = []
    for selective, number in itertools.product((False, True), range(len(inner) + 1)):
        marks = tuple(place in inner[:number] for place in range(len(nothing)))
        config = replace(stage.config, selective=selective)
        cost = recost(asked, replace(stage, recomputed=marks, config=config), in_flight)
        if cost.peak_bytes <= cost.capacity_bytes and cost.activation_bytes <= most * (1 + 1e-9):
            times.append(cost.time_s)
    return min(times)


@pytest.mark.parametrize("micro_batch", [1, 2, 4])
@pytest.mark.parametrize("marks", [(), (2, 1, 0, 0)])
def test_recomputation_is_the_cheapest(micro_batch: int, marks: tuple[int, ...]) -> None:
    """Of all that fits and frees what Aceso's choice does: attention cores or not, any number of layers."""
    asked = request(micro_batch=micro_batch)
    found = replace(even(4, 24, marks), micro_batch=micro_batch)
    plan = translated(asked, found)
    assert plan is not None
    assert not plan_faults(asked, plan)
    bounds = [0, *itertools.accumulate(stage.num_ops for stage in found.stages)]
    rows = tables(asked)[1, micro_batch]
    for idx, stage in enumerate(plan.stages):
        in_flight = len(plan.stages) - idx
        freed = freed_bytes(found.stages[idx], rows, bounds[idx], bounds[-1])
        best = cheapest(asked, stage, freed, in_flight)
        assert recost(asked, stage, in_flight).time_s == pytest.approx(best, rel=1e-12)
    assert any(stage.config.selective for stage in plan.stages) or micro_batch == 1


def test_a_plan_that_never_fits_is_none() -> None:
    asked = request("gpt3-13b")
    assert translated(asked, even(4, 40)) is None


def test_degrees_that_are_not_allowed_are_none() -> None:
    asked = request(micro_batch=2)
    found = even(2, 24, dp=2)
    assert translated(asked, found) is not None
    assert slice_plan(asked, found, tables(asked), ALLOWED - {(1, 2)}, "x.json") is None


@pytest.mark.parametrize(
    ("mode", "marks", "selective"),
    [(Recompute.FULL, 6, False), (Recompute.NONE, 0, False), (Recompute.SELECTIVE, 0, True)],
)
def test_dictated_recomputation(mode: Recompute, marks: int, selective: bool) -> None:
    asked = request(cluster="1x4xA100-80GB-SXM", pins=Pins(recompute=mode, zero=1))
    plan = translated(asked, even(4, 24, (6, 6, 6, 6) if mode is Recompute.FULL else ()))
    assert plan is not None
    assert recomputed(plan) == [marks] * 4
    assert {(s.config.selective, s.config.zero) for s in plan.stages} == {(selective, 1)}
    assert not plan_faults(asked, plan)


def test_the_fastest_comes_first() -> None:
    asked = request(cluster="1x4xA100-80GB-SXM")
    slow, fast = (translated(asked, even(4, 24, marks)) for marks in ((6, 6, 6, 6), (0, 0, 0, 0)))
    assert slow is not None
    assert fast is not None
    assert fastest_first(asked, [slow, fast, slow]) == [fast, slow]


SAVED: dict[str, Any] = {
    "micro_batch_size": 1,
    "num_ops_in_each_stage": [2, 1],
    "model_parallel_size_of_each_op": [[2, 2], [1]],
    "data_parallel_size_of_each_op": [[1, 1], [1]],
    "recompute_ops": [[1, 0], [0]],
}


def test_reading() -> None:
    expected = AcesoPlan(1, (AcesoStage(2, 2, 1, (True, False)), AcesoStage(1, 1, 1, (False,))))
    assert read_plan(json.dumps(SAVED), "x.json") == expected


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"num_ops_in_each_stage": None}, "num_ops_in_each_stage is missing"),
        ({"num_ops_in_each_stage": []}, "num_ops_in_each_stage is missing"),
        ({"num_ops_in_each_stage": [2, 0]}, "num_ops_in_each_stage is missing, or holds no counts"),
        ({"num_ops_in_each_stage": [2, 2]}, "model_parallel_size_of_each_op is missing, or does not match"),
        ({"micro_batch_size": "1"}, "micro_batch_size is missing, or holds no counts"),
        ({"recompute_ops": [[1, 0]]}, "recompute_ops is missing, or does not match"),
        ({"recompute_ops": [[1, 0], 0]}, "recompute_ops is missing, or does not match"),
        ({"recompute_ops": [[1, True], [0]]}, "recompute_ops is missing, or does not match"),
        ({"data_parallel_size_of_each_op": [[1, 0], [1]]}, "stage 0 mixes degrees"),
        ({"data_parallel_size_of_each_op": [[1, 1], [0]]}, "stage 1 has a degree below 1"),
        ({"model_parallel_size_of_each_op": [[1, 2], [1]]}, "stage 0 mixes degrees"),
    ],
)
def test_what_cannot_be_read(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(ProgramError, match=f"^Aceso's plan x.json: {said}"):
        read_plan(json.dumps(SAVED | changes), "x.json")


@pytest.mark.parametrize("text", ["", "[]", "{", "nonsense", '{"a": NaN}'])
def test_what_is_no_json(text: str) -> None:
    with pytest.raises(ProgramError, match=r"^Aceso's plan x\.json"):
        read_plan(text, "x.json")


def stretched(plan: AcesoPlan, by: int) -> AcesoPlan:
    """One more operator in the first stage."""
    first = plan.stages[0]
    longer = replace(first, num_ops=first.num_ops + by, recomputed=(*first.recomputed, *[False] * by))
    return replace(plan, stages=(longer, *plan.stages[1:]))


@pytest.mark.parametrize(
    ("found", "said"),
    [
        (replace(even(4, 24), micro_batch=2), "it is for a micro-batch of 2, not 1"),
        (stretched(even(4, 24), 1), "it has 316 operators, the model 315"),
        (even(2, 24), "it uses 2 GPUs, the portion has 4"),
        (even(1, 24, tp=4, dp=2), "it uses 8 GPUs, the portion has 4"),
    ],
)
def test_what_is_no_answer_to_the_question(found: AcesoPlan, said: str) -> None:
    found = replace(found, micro_batch=1) if "GPUs" in said else found
    with pytest.raises(ProgramError, match=f"^Aceso's plan x.json is no answer: {said}$"):
        translated(request(), found)
