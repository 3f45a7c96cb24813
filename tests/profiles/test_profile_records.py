from __future__ import annotations

import math
from dataclasses import replace

import pytest

from tangram.errors import InputError
from tangram.job import Precision
from tangram.profiles.records import CollectiveTime, LayerTime, LinkRate, Op, Scope
from tangram.profiles.shapes import LayerKind, LayerShape

SHAPE = LayerShape(LayerKind.EMBEDDING, 128, 64, vocab_size=1024)
LAYER = LayerTime("T4", "test", Precision.FP16, SHAPE, 2, 4, True, 0.5, 1.0, "a test")
REDUCE = CollectiveTime("T4", "nccl", "", Scope.INTRA_NODE, Op.ALL_REDUCE, 4, 4, 800, 2.0, "a test")
RATE = LinkRate("T4", "nccl", "", Scope.INTER_NODE, Op.SEND, 2, 1, 1e9, "a test")


def test_totals() -> None:
    assert LAYER.total_s == 1.5
    assert replace(LAYER, backward_s=None).total_s is None
    assert replace(LAYER, forward_s=None, backward_s=None, forward_backward_s=2.0).total_s == 2.0


def test_bus_bandwidth_is_that_of_nccl_tests() -> None:
    assert REDUCE.bus_bytes_per_s == 800 / 2.0 * 2 * 3 / 4
    assert replace(REDUCE, op=Op.ALL_GATHER).bus_bytes_per_s == 800 / 2.0 * 3 / 4
    send = replace(REDUCE, op=Op.SEND, ranks=2, ranks_per_node=2)
    assert send.bus_bytes_per_s == 400.0


@pytest.mark.parametrize(
    ("values", "wrong"),
    [
        ({"gpu": " "}, "gpu: is empty"),
        ({"source": ""}, "source: is empty"),
        ({"tp": 0}, "tp: 0"),
        ({"forward_s": 0.0}, "forward_s: 0.0 was"),
        ({"backward_s": math.inf}, "backward_s: inf"),
        ({"recompute_s": math.nan}, "recompute_s: nan"),
        ({"activation_bytes": -1}, "activation_bytes: -1"),
        ({"forward_s": None, "backward_s": None}, "no figure"),
        ({"tp": 1}, "includes_tp_comm"),
        ({"forward_backward_s": 2.0}, "the sum of both"),
        ({"forward_backward_s": 2.0, "forward_s": None}, "the sum of both"),
    ],
)
def test_what_cannot_have_been_measured_is_refused(values: dict[str, object], wrong: str) -> None:
    with pytest.raises(InputError, match=wrong):
        replace(LAYER, **values)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "values",
    [
        {"ranks": 1, "ranks_per_node": 1},
        {"ranks_per_node": 2},
        {"scope": Scope.INTER_NODE},
        {"scope": Scope.INTER_NODE, "ranks_per_node": 3},
        {"seconds": 0.0},
        {"num_bytes": -1},
    ],
)
def test_impossible_groups_are_refused(values: dict[str, object]) -> None:
    with pytest.raises(InputError):
        replace(REDUCE, **values)  # type: ignore[arg-type]


def test_rates_obey_the_same_rules() -> None:
    assert RATE.bus_bytes_per_s == 1e9
    with pytest.raises(InputError, match="ranks_per_node"):
        replace(RATE, ranks_per_node=2)
    with pytest.raises(InputError, match="bus_bytes_per_s"):
        replace(RATE, bus_bytes_per_s=0.0)
