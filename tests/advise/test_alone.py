"""A parallelizer alone on a mixed cluster: it plans for the slowest GPU, the referee runs it on all."""

from __future__ import annotations

from dataclasses import replace

import pytest
from test_referee import ATOMS, JOB, MODEL, node, request_on

from tangram.advise.alone import AlonePlanner, as_if_equal
from tangram.advise.referee import judge
from tangram.baselines.nodes import equal_parts
from tangram.cluster.spec import Node
from tangram.job import Precision
from tangram.parallelizers.protocols import SlicePlanner
from tangram.parallelizers.registry import get_parallelizer
from tangram.planner.options import PlanOptions
from tangram.planner.planner import plan
from tangram.testing import check_parallelizer


def alone(fastest_first: bool = True) -> AlonePlanner:
    planner = get_parallelizer("uniform")
    assert isinstance(planner, SlicePlanner)
    return AlonePlanner(planner, fastest_first)


def seconds(*nodes: Node) -> float:
    request = request_on(*nodes)
    answer = alone().plan_cluster(request)
    assert answer is not None
    verdict = judge(request, answer)
    assert verdict.iteration_time_s is not None
    assert verdict.faults == ()
    return verdict.iteration_time_s


def test_it_is_a_cluster_planner() -> None:
    check_parallelizer(alone())


def test_on_equal_gpus_it_is_believed_and_true() -> None:
    request = request_on(node("a"), node("b"))
    answer = alone().plan_cluster(request)
    assert answer is not None
    assert judge(request, answer).iteration_time_s == answer.predicted_s


def test_on_one_island_it_is_no_better_than_tangram_with_it() -> None:
    request = request_on(node("a"), node("b"))
    answer = alone().plan_cluster(request)
    assert answer is not None
    doc = plan(MODEL, request.cluster, JOB, PlanOptions(parallelizers=("uniform",)))
    assert answer.predicted_s is not None
    assert doc.prediction.iteration_time_s <= answer.predicted_s * (1 + 1e-9)


def test_every_gpu_counts_as_the_slowest_and_the_smallest() -> None:
    fast_small, slow_large = node("a", speed=2.0, memory=0.5), node("b", speed=1.0, memory=1.0)
    request = request_on(fast_small, slow_large)
    seen = as_if_equal(request.cluster, equal_parts(request.cluster), Precision.BF16)
    for made in seen.nodes:
        assert made.gpu.name == slow_large.gpu.name
        assert made.gpu.usable_memory_bytes == fast_small.gpu.usable_memory_bytes


def test_a_faster_node_helps_no_more_than_tangram_lets_it() -> None:
    slow = seconds(node("a"), node("b"))
    mixed = seconds(node("a", speed=3.0), node("b"))
    fast = seconds(node("a", speed=3.0), node("b", speed=3.0))
    assert fast < mixed <= slow


@pytest.mark.parametrize("fastest_first", [True, False])
def test_the_order_of_nodes_is_a_choice(fastest_first: bool) -> None:
    request = request_on(node("a"), node("b", speed=2.0))
    request = replace(request, job=replace(JOB, pins=replace(JOB.pins, pp=2)))
    answer = alone(fastest_first).plan_cluster(request)
    assert answer is not None
    first = answer.stages[0].replicas[0].slots[0].node.name
    assert first == ("b" if fastest_first else "a")
    assert answer.stages[-1].stop == len(ATOMS)
