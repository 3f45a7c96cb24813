"""What Sailor decides before it searches, its links, and regions; each defect beside its repair."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sailor_cases import tiny_gpu, tiny_problem

from tangram.baselines.sailor.clock import BUCKET_BYTES, all_reduce_s
from tangram.baselines.sailor.profile import Curve, Endpoint, Line, Run, Zone, paired
from tangram.baselines.sailor.rules import (
    even_cuts,
    fast_tp,
    replica_counts,
    smallest_tp,
    tensor_degrees,
)
from tangram.baselines.sailor.search import best_plan, region_orders, splits


@given(st.integers(1, 130), st.data())
def test_cuts_are_even_and_the_longer_ones_last(num_layers: int, data: st.DataObject) -> None:
    num_stages = data.draw(st.integers(1, num_layers))
    cuts = even_cuts(num_layers, num_stages)
    sizes = [stop - start for start, stop in cuts]
    assert len(cuts) == num_stages
    assert cuts[0][0] == 0
    assert cuts[-1][1] == num_layers
    assert sum(sizes) == num_layers
    assert sizes == sorted(sizes)
    assert sizes[-1] - sizes[0] <= 1


def test_splits_start_with_the_fewest_of_the_first_type() -> None:
    assert list(splits([2, 3], 3)) == [(0, 3), (1, 2), (2, 1)]
    assert list(splits([1, 1, 2], 3)) == [(0, 1, 2), (1, 0, 2), (1, 1, 1)]
    assert list(splits([1, 1], 3)) == []


def test_replicas_are_paired_one_by_one() -> None:
    a, b, c, d = (Endpoint(0, gpu, 1) for gpu in range(4))
    assert paired((Run(a, 3), Run(b, 1)), (Run(c, 2), Run(d, 2))) == [(a, c), (a, d), (b, d)]
    assert paired((Run(a, 2),), (Run(a, 2),)) == [(a, a)]


def test_tp_by_speed_and_by_memory() -> None:
    layers = (1.0,) * 4
    eager, lazy = tiny_gpu("a", layers, scaling=0.6), tiny_gpu("b", layers, scaling=0.8)
    assert fast_tp(eager, 0, 4, 1, defects=False) == 2
    assert fast_tp(lazy, 0, 4, 1, defects=False) == 1
    assert smallest_tp(eager, even_cuts(4, 2), 0, 1, defects=False) == 1
    # 2 layers of 18 MB states, 2 micro-batches of 40 MB, 10 MB beside: 126 MB on one GPU, 68 MB on two.
    assert eager.memory_bytes(1, 0, 2, 1, 2) == pytest.approx(126e6)
    assert smallest_tp(replace(eager, capacity_bytes=125e6), even_cuts(4, 2), 0, 1, defects=False) == 2
    assert smallest_tp(replace(eager, capacity_bytes=67e6), even_cuts(4, 2), 0, 1, defects=False) is None


def test_the_first_type_of_a_mixed_cluster_is_special_where_published() -> None:
    gpus = tiny_gpu("a", (1.0,) * 4), tiny_gpu("b", (1.0,) * 4)
    mixed, alone = tiny_problem(gpus, (2, 2), 8), tiny_problem(gpus, (2, 0), 8)
    cuts = even_cuts(4, 1)
    assert list(tensor_degrees(mixed, cuts, 1, defects=True)) == [((1,), (2,))]
    assert list(tensor_degrees(alone, cuts, 1, defects=True)) == [((2,), (2,))]
    repaired = [((1,), (1,)), ((1,), (2,)), ((2,), (1,)), ((2,), (2,))]
    assert list(tensor_degrees(mixed, cuts, 1, defects=False)) == repaired


def test_a_missing_profile_takes_no_time_where_published() -> None:
    whole = tiny_gpu("a", (1.0,) * 4, scaling=0.9)
    partial = replace(whole, times={(1, 1): whole.times[1, 1]})
    assert fast_tp(whole, 0, 4, 1, defects=True) == 1
    assert fast_tp(partial, 0, 4, 1, defects=True) == 2
    assert fast_tp(partial, 0, 4, 1, defects=False) == 1
    free = best_plan(tiny_problem((partial,), (4,), 8), defects=True)
    fair = best_plan(tiny_problem((partial,), (4,), 8), defects=False)
    assert free is not None
    assert fair is not None
    assert free.estimate_s < 1.0 < fair.estimate_s


def test_numbers_of_replicas() -> None:
    problem = tiny_problem((tiny_gpu("a", (1.0,)),), (8,), 12)
    assert replica_counts(problem, 1, defects=False) == [6, 4, 3, 2, 1]
    assert replica_counts(problem, 2, defects=False) == [6, 3, 2, 1]
    assert replica_counts(problem, 8, defects=False) == []
    assert replica_counts(problem, 1, defects=True) == [6, 4, 3, 2, 1]
    assert replica_counts(replace(problem, global_batch=8), 1, defects=False) == [8, 4, 2, 1]
    assert replica_counts(replace(problem, global_batch=8), 1, defects=True) == [4, 3, 2, 1]  # not 8 of 8


def test_pipelines_of_several_types_together_are_not_searched_where_published() -> None:
    """What fits takes six GPUs or more."""
    gpus = tuple(tiny_gpu(name, (1.0,) * 4, capacity_bytes=60e6) for name in "ab")
    problem = tiny_problem(gpus, (2, 4), 4)
    assert best_plan(problem, defects=True) is None
    plan = best_plan(problem, defects=False)
    assert plan is not None
    assert {run.endpoint.gpu for stage in plan.stages for run in stage.runs} == {0, 1}


def test_fitted_rates_end_where_they_were_measured() -> None:
    falling = (0.0, 1.0, 2.0)  # GB/s: 2 at 1 MB, one less for every halving.
    free, ended = Curve(falling, 8e9, None), Curve(falling, 8e9, (0.5e6, 4e6))
    assert free.seconds(1e6) == ended.seconds(1e6) == pytest.approx(0.5e-3)
    assert free.seconds(0.125e6) < 0
    assert ended.seconds(0.125e6) == pytest.approx(0.125e-3)
    assert ended.seconds(16e6) == pytest.approx(4e-3)
    assert Curve((0.0, 1.0, -1.0), 8e9, (0.5e6, 4e6)).seconds(0.5e6) == pytest.approx(0.5 / 8 * 1e-3)


@given(st.integers(1, 40), st.integers(0, 5 * 10**9))
def test_ring_all_reduce_bucket_by_bucket(replicas: int, num_bytes: int) -> None:
    line = Line(1e-3, 1e9)
    messages = 2 * (replicas - 1) * math.ceil(num_bytes / BUCKET_BYTES)
    moved_s = 2 * (replicas - 1) * num_bytes / replicas / 1e9
    assert all_reduce_s(line, num_bytes, replicas) == pytest.approx(messages * 1e-3 + moved_s, rel=1e-9)


def test_regions_in_the_order_of_the_widest_bottleneck() -> None:
    problem = tiny_problem((tiny_gpu("a", (1.0,) * 4),), (2,), 8)

    class Apart:
        """Region 0 is far from region 2, both are near region 1."""

        def link(self, sender: Endpoint, receiver: Endpoint) -> Line:
            far = {sender.zone, receiver.zone} == {0, 2}
            return Line(0.0, 1e6 if far else 1e9)

    zones = tuple(Zone(f"z{idx}", f"r{idx}", (2,)) for idx in range(3))
    orders = region_orders(replace(problem, zones=zones, network=Apart()))
    assert orders[:3] == [((0,),), ((1,),), ((2,),)]
    assert ((0,), (1,), (2,)) in orders
    assert orders[-1] == ((0,), (2,))


def test_a_region_is_left_when_it_cannot_hold_the_next_stage() -> None:
    tight = tiny_gpu("a", (1.0,) * 4, capacity_bytes=1.2e8)
    problem = tiny_problem((tight,), (2,), 8)
    zones = (Zone("a1", "a", (2,)), Zone("b1", "b", (1,)), Zone("b2", "b", (1,)))
    plan = best_plan(replace(problem, zones=zones), defects=False)
    assert plan is not None
    regions = [{zones[run.endpoint.zone].region for run in stage.runs} for stage in plan.stages]
    assert all(len(names) == 1 for names in regions)
    assert set.union(*regions) == {"a", "b"}
