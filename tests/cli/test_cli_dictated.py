from __future__ import annotations

import pytest

from tangram.cli.dictated import parse_stages, uniform_stages
from tangram.cluster.islands import build_islands
from tangram.cluster.shorthand import parse_shorthand
from tangram.cluster.spec import Island
from tangram.errors import InputError, UnknownNameError
from tangram.job import Pins, Precision, Recompute
from tangram.planner.estimate import DictatedStage

CLUSTER = parse_shorthand("1x4xA100-80GB-SXM+2x8xV100-32GB-SXM2@100Gbit")


def islands() -> tuple[Island, ...]:
    return build_islands(CLUSTER, Precision.FP16)


def parse(text: str) -> list[DictatedStage]:
    return parse_stages(text, CLUSTER, islands())


def test_two_stages() -> None:
    first, second = parse("A100-80GB-SXM:4:tp4:24 + V100-32GB-SXM2:8:tp2dp4z1:16:full8")
    assert first == DictatedStage(
        nodes=None, island="A100-80GB-SXM", num_gpus=4, num_layers=24, dp=1, tp=4, cp=1, ep=1, zero=0
    )
    assert (second.island, second.num_gpus, second.num_layers) == ("V100-32GB-SXM2", 8, 16)
    assert (second.tp, second.dp, second.zero) == (2, 4, 1)
    assert (second.recompute, second.num_recomputed_layers) == (Recompute.FULL, 8)


def test_dp_is_what_is_left() -> None:
    (stage,) = parse("V100-32GB-SXM2:16:tp2,cp2,zero2:40:selective")
    assert (stage.dp, stage.tp, stage.cp, stage.zero) == (4, 2, 2, 2)
    assert (stage.recompute, stage.num_recomputed_layers) == (Recompute.SELECTIVE, None)


def test_nodes_by_name() -> None:
    (stage,) = parse("v100-32gb-sxm2-0,v100-32gb-sxm2-1:16:tp8:40")
    assert (stage.island, stage.nodes) == (None, ("v100-32gb-sxm2-0", "v100-32gb-sxm2-1"))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "does not follow the form"),
        ("A100-80GB-SXM:4:tp4", "does not follow the form"),
        ("A100-80GB-SXM:4:tp4:24+", "stage 1: '' does not follow the form"),
        ("A100-80GB-SXM:four:tp4:24", "'four' is no number of GPUs"),
        ("A100-80GB-SXM:0:tp4:24", "'0' is no number of GPUs"),
        ("A100-80GB-SXM:4:tp4:-1", "'-1' is no number of layers"),
        ("A100-80GB-SXM:4::24", "'' is no list of degrees"),
        ("A100-80GB-SXM:4:pp2:24", "'pp2' is no list of degrees"),
        ("A100-80GB-SXM:4:tp2tp2:24", "'tp2tp2' is no list of degrees"),
        ("A100-80GB-SXM:4:tp3:24", "tp x cp = 3 does not divide 4 GPUs"),
        ("A100-80GB-SXM:4:tp0:24", "tp 0 is out of range"),
        ("A100-80GB-SXM:4:tp4:24:none3", "says nothing about recomputation"),
        ("A100-80GB-SXM:4:tp4:24:all", "says nothing about recomputation"),
    ],
)
def test_refusals(text: str, message: str) -> None:
    with pytest.raises(InputError) as caught:
        parse(text)
    assert message in str(caught.value)
    assert (caught.value.where or "").startswith("--stages")


def test_unknown_place() -> None:
    with pytest.raises(UnknownNameError, match=r"(?i)did you mean 'a100-80gb-sxm'"):
        parse("A100-80GB:4:tp4:40")


def test_uniform_stages_fill_the_islands_in_order() -> None:
    stages = uniform_stages(Pins(pp=5, tp=4), 42, islands())
    assert [s.island for s in stages] == ["A100-80GB-SXM"] + ["V100-32GB-SXM2"] * 4
    assert [s.num_layers for s in stages] == [9, 9, 8, 8, 8]
    assert {(s.tp, s.dp, s.num_gpus) for s in stages} == {(4, 1, 4)}


def test_uniform_dp_is_as_large_as_fits() -> None:
    stages = uniform_stages(Pins(pp=2, tp=2), 40, islands())
    assert {(s.tp, s.dp) for s in stages} == {(2, 4)}
    assert {s.island for s in stages} == {"V100-32GB-SXM2"}


def test_uniform_layers_as_given() -> None:
    stages = uniform_stages(
        Pins(layers_per_stage=(30, 10), tp=4, recompute=Recompute.FULL, zero=1), 40, islands()
    )
    assert [s.num_layers for s in stages] == [30, 10]
    assert {(s.recompute, s.zero) for s in stages} == {(Recompute.FULL, 1)}


@pytest.mark.parametrize(
    ("pins", "message"),
    [
        (Pins(pp=50), "50 stages for 40 layers"),
        (Pins(pp=3, layers_per_stage=(20, 20)), "2 numbers of layers for 3 stages"),
        (Pins(pp=2, tp=8, dp=4), "2 stages of 32 GPUs do not fit"),
        (Pins(pp=6, tp=4), "6 stages of 4 GPUs do not fit"),
    ],
)
def test_uniform_refusals(pins: Pins, message: str) -> None:
    with pytest.raises(InputError, match=message):
        uniform_stages(pins, 40, islands())
