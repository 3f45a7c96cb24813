"""Sailor's dynamic programme against enumeration, its clock against the closed formula, and what plans
keep.
"""

from __future__ import annotations

import math
from collections import Counter
from itertools import pairwise, product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sailor_cases import tiny_gpu, tiny_problem

from tangram.baselines.sailor.clock import Clock, all_reduce_s
from tangram.baselines.sailor.profile import Endpoint, Line, Run, SailorPlan, SailorProblem, paired
from tangram.baselines.sailor.rules import even_cuts, replica_counts, tensor_degrees
from tangram.baselines.sailor.search import Stages, _descend, best_plan, search
from tangram.baselines.sailor.simulator import fits, simulated_s

FEW = settings(max_examples=40, deadline=None)

seconds = st.integers(1, 40).map(lambda number: number / 20)


@st.composite
def problems(draw: st.DrawFn, max_types: int = 3) -> SailorProblem:
    """Two to five layers, up to three types with up to four GPUs each, links of any speed."""
    num_layers = draw(st.integers(2, 5))
    num_types = draw(st.integers(1, max_types))
    gpus = tuple(
        tiny_gpu(
            f"gpu-{idx}",
            tuple(draw(seconds) for _ in range(num_layers)),
            capacity_bytes=draw(st.sampled_from([1.6e8, 3e8, 1e9])),
            scaling=draw(st.sampled_from([0.55, 0.8])),
        )
        for idx in range(num_types)
    )
    counts = tuple(draw(st.integers(1, 4)) for _ in range(num_types))
    lines = {
        (a, b): Line(draw(st.sampled_from([0.0, 1e-3, 0.1])), draw(st.sampled_from([1e8, 1e7])))
        for a in range(num_types)
        for b in range(a, num_types)
    }
    return tiny_problem(gpus, counts, draw(st.sampled_from([4, 6, 8])), lines)


def closed_form_s(
    problem: SailorProblem, clock: Clock, first: int, splits_: list[tuple[int, ...]], dp: int
) -> float:
    """The clock's formula, written down for the stages from ``first`` on as a whole."""
    cuts = clock.cuts[first:]
    runs = [runs_of(clock, first + idx, split) for idx, split in enumerate(splits_)]
    c = [
        max(clock.compute_s(first + idx, run.endpoint.gpu) for run in stage) for idx, stage in enumerate(runs)
    ]
    h = [
        max(problem.network.link(a, b).seconds(1e6 * clock.micro_batch) for a, b in paired(*two))
        for two in pairwise(runs)
    ] + [0.0]
    behind = [0.0, *h]
    pace = max(c[idx] + h[idx] + (behind[idx] if idx else 0.0) for idx in range(len(c)))
    sync = update = 0.0
    for (start, stop), stage in zip(cuts, runs, strict=True):
        slowest = min(
            (problem.network.link(r.endpoint, r.endpoint) for r in stage),
            key=lambda link: link.peak_bytes_per_s,
        )
        sync = max(sync, all_reduce_s(slowest, 4e6 * (stop - start), dp))
        update = max(update, 0.01 * (stop - start))
    number = math.ceil(problem.global_batch / (clock.micro_batch * dp))
    return (number - 1) * pace + sum(c) + 2 * sum(h) + sync + update


def runs_of(clock: Clock, idx: int, split: tuple[int, ...]) -> tuple[Run, ...]:
    """The replicas of a stage in the only zone."""
    return tuple(
        Run(Endpoint(0, gpu, clock.degrees[gpu][idx]), replicas)  # type: ignore[index]
        for gpu, replicas in enumerate(split)
        if replicas
    )


def all_splits(
    clock: Clock, idx: int, left: tuple[int, ...], dp: int
) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
    """Every way to staff a stage, with the GPUs left afterwards; fewest of the first type first."""
    tps = [0 if of_type is None else of_type[idx] for of_type in clock.degrees]
    most = [have // tp if tp else 0 for have, tp in zip(left, tps, strict=True)]
    found = [split for split in product(*(range(number + 1) for number in most)) if sum(split) == dp]
    return [
        (split, tuple(have - n * tp for have, n, tp in zip(left, split, tps, strict=True))) for split in found
    ]


def naive(
    problem: SailorProblem, clock: Clock, idx: int, left: tuple[int, ...], dp: int
) -> tuple[float, list[tuple[int, ...]]] | None:
    """The same decisions as the programme, without its memory and with the formula as a whole."""
    best: tuple[float, list[tuple[int, ...]]] | None = None
    is_last = idx == len(clock.cuts) - 1
    before = None
    for split, after in all_splits(clock, idx, left, dp):
        answer: list[tuple[int, ...]] = [split]
        if not is_last:
            if not all_splits(clock, idx + 1, after, dp):
                continue
            own = clock.alone(idx, runs_of(clock, idx, split), dp).total_s
            if own == before:
                continue
            before = own
            rest = naive(problem, clock, idx + 1, after, dp)
            if rest is None:
                continue
            answer += rest[1]
        total = closed_form_s(problem, clock, idx, answer, dp)
        if best is None or total < best[0] * (1 - 1e-12):
            best = total, answer
    return best


def brute_force_s(
    problem: SailorProblem,
    clock: Clock,
    idx: int,
    left: tuple[int, ...],
    dp: int,
    chosen: list[tuple[int, ...]],
) -> float:
    """The fastest of all pipelines."""
    if idx == len(clock.cuts):
        return closed_form_s(problem, clock, 0, chosen, dp)
    return min(
        (
            brute_force_s(problem, clock, idx + 1, after, dp, [*chosen, split])
            for split, after in all_splits(clock, idx, left, dp)
        ),
        default=math.inf,
    )


@FEW
@given(problems(), st.integers(1, 3), st.integers(1, 3), st.sampled_from([1, 2]))
def test_programme_against_enumeration(problem: SailorProblem, depth: int, dp: int, micro_batch: int) -> None:
    cuts = even_cuts(problem.num_layers, min(depth, problem.num_layers))
    left = problem.zones[0].gpus
    for degrees in tensor_degrees(problem, cuts, micro_batch, defects=False):
        clock = Clock(problem, cuts, micro_batch, degrees, defects=False)
        if all(tps is None for tps in degrees):
            continue
        found = Stages(clock, ((0,),), dp).best()
        expected = naive(problem, clock, 0, left, dp)
        best_s = brute_force_s(problem, clock, 0, left, dp, [])
        assert (found is None) == (expected is None)
        if found is None or expected is None:
            assert clock.at_least_s(dp, 0, left) <= best_s
            continue
        assert list(found.stages()) == [runs_of(clock, idx, split) for idx, split in enumerate(expected[1])]
        assert found.total_s == pytest.approx(expected[0], rel=1e-12)
        assert clock.at_least_s(dp, 0, left) <= best_s <= found.total_s * (1 + 1e-12)
        if len(cuts) == 1 or len(problem.gpus) == 1:
            assert found.total_s == pytest.approx(best_s, rel=1e-12)


def test_a_faster_pipeline_that_the_programme_misses() -> None:
    """Only the fastest pipeline of the stages behind is kept, though it may pair badly with those in
    front.
    """
    gpus = tiny_gpu("a", (1.0, 1.0, 1.0)), tiny_gpu("b", (1.0, 1.0, 3.0))
    lines = {(0, 0): Line(0, 1e9), (1, 1): Line(0, 1e9), (0, 1): Line(0.5, 1e9)}
    problem = tiny_problem(gpus, (4, 4), 8, lines)
    clock = Clock(problem, even_cuts(3, 3), 1, ((1, 1, 1), (1, 1, 1)), defects=False)
    found = Stages(clock, ((0,),), 1).best()
    assert found is not None
    assert brute_force_s(problem, clock, 0, (4, 4), 1, []) < found.total_s * (1 - 1e-9)


@FEW
@given(problems(max_types=2), st.booleans())
def test_plans_keep_layers_gpus_and_replicas(problem: SailorProblem, defects: bool) -> None:
    for plan in search(problem, defects=defects):
        assert [stage.start for stage in plan.stages] == [0, *(stage.stop for stage in plan.stages[:-1])]
        assert plan.stages[-1].stop == problem.num_layers
        used: Counter[int] = Counter()
        for stage in plan.stages:
            assert sum(run.replicas for run in stage.runs) == plan.dp
            for run in stage.runs:
                used[run.endpoint.gpu] += run.replicas * run.endpoint.lanes
        assert all(used[gpu] <= have for gpu, have in enumerate(problem.zones[0].gpus))
        assert fits(problem, plan)
        if not defects:
            assert problem.global_batch % (plan.micro_batch * plan.dp) == 0


@FEW
@given(problems(max_types=2))
def test_what_is_left_out_could_not_win(problem: SailorProblem) -> None:
    """Against the same loops without a bound."""
    found = best_plan(problem, defects=False)
    times = [simulated_s(problem, plan, defects=False) for plan in unbounded(problem) if fits(problem, plan)]
    assert (found is None) == (not times)
    if found is not None:
        assert simulated_s(problem, found, defects=False) <= min(times) * (1 + 1e-12)


def unbounded(problem: SailorProblem) -> list[SailorPlan]:
    """What the outer loops find when nothing is cut off."""
    found = []
    for num_stages in range(1, problem.num_layers + 1):
        cuts = even_cuts(problem.num_layers, num_stages)
        for micro_batch in problem.micro_batches:
            counts = replica_counts(problem, micro_batch, defects=False)
            for degrees in tensor_degrees(problem, cuts, micro_batch, defects=False):
                if any(tps is not None for tps in degrees):
                    clock = Clock(problem, cuts, micro_batch, degrees, defects=False)
                    found += _descend(clock, ((0,),), counts, math.inf)
    return found
