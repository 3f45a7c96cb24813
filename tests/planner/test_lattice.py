"""The guide: it never promises too much, and says more with more levels."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from adversarial import adversarial_problem
from instances import all_pipelines, plain_closed_form, random_problem
from prefixes import Prefixes

from tangram.planner.lattice import Lattice, PrefixBound, prefix_bound
from tangram.planner.problem import FAR_NS, Problem

LEVELS = (1, 2, 8)


def problem_of(seed: int) -> Problem:
    return adversarial_problem(seed) if seed % 2 else random_problem(seed, max_atoms=6)


def points(guide: PrefixBound) -> list[tuple[int, ...]]:
    return list(itertools.product(*(range(n) for n in guide.lattice.shape)))


@pytest.mark.parametrize("capacity", [(3,), (2, 0, 4), (1, 1, 1, 1)])
def test_lattice_numbers_every_point_once(capacity: tuple[int, ...]) -> None:
    lattice = Lattice.of(capacity)
    points = itertools.product(*(range(c + 1) for c in capacity))
    codes = [int(np.array(point) @ lattice.strides) for point in points]
    assert codes == list(range(lattice.size))
    assert lattice.shape == tuple(c + 1 for c in capacity)


@pytest.mark.parametrize("levels", LEVELS)
@pytest.mark.parametrize("block", range(4))
def test_guide_is_below_every_sequence_of_pieces(levels: int, block: int) -> None:
    for seed in range(block, 24, 4):
        problem = problem_of(seed)
        guide = prefix_bound(problem, FAR_NS, levels)
        prefixes = Prefixes(problem, problem.edges_at_best)
        classes = range(len(problem.edges.one_way_ns))
        for left in points(guide):
            code = int(np.array(left) @ guide.lattice.strides)
            for cut in range(1, problem.num_atoms):
                for window in (1, 2, 3, 8, 11):
                    level = int(guide.level(np.array([window]))[0])
                    least = [prefixes.least(cut, left, window, behind) for behind in classes]
                    where = (seed, left, cut, window)
                    assert guide.time_ns[level, cut, code] <= min(time for time, _ in least), where
                    assert guide.period_ns[level, cut, code] <= min(pace for _, pace in least), where


@pytest.mark.parametrize("seed", range(12))
def test_guide_with_one_class_and_enough_levels_is_exact(seed: int) -> None:
    """With one link class nothing is relaxed but windows beyond the last level."""
    problem = random_problem(seed, transfers=0.0, max_atoms=6)
    guide = prefix_bound(problem, FAR_NS, levels=10)
    prefixes = Prefixes(problem, problem.edges_at_best)
    for left in points(guide):
        code = int(np.array(left) @ guide.lattice.strides)
        for cut in range(1, problem.num_atoms):
            time, pace = prefixes.least(cut, left, 1, 0)
            assert guide.time_ns[0, cut, code] == time
            assert guide.period_ns[0, cut, code] == pace


@pytest.mark.parametrize("seed", range(30))
def test_guide_grows_with_levels_and_falls_with_gpus(seed: int) -> None:
    problem = problem_of(seed)
    guides = {levels: prefix_bound(problem, FAR_NS, levels) for levels in LEVELS}
    windows = np.arange(1, 12)
    for fewer, more in itertools.pairwise(LEVELS):
        for name in ("time_ns", "period_ns"):
            low = getattr(guides[fewer], name)[guides[fewer].level(windows)]
            high = getattr(guides[more], name)[guides[more].level(windows)]
            assert (low <= high).all()
    guide = guides[8]
    shape = (8, problem.num_atoms + 1, *guide.lattice.shape)
    for values in (guide.time_ns.reshape(shape), guide.period_ns.reshape(shape)):
        assert (np.diff(values, axis=0) >= 0).all()
        for axis in range(2, values.ndim):
            assert (np.diff(values, axis=axis) <= 0).all()


@pytest.mark.parametrize("levels", LEVELS)
def test_leaving_out_slow_pieces_loses_no_pipeline_within_the_period(levels: int) -> None:
    """With a largest pace the guide stays below every sequence of pieces that respect it."""
    for seed in range(10):
        problem = problem_of(seed)
        cap = int(np.median(problem.pieces.period_ns))
        guide = prefix_bound(problem, cap, levels)
        prefixes = Prefixes(problem, problem.edges_at_best, max_period_ns=cap)
        full = int(np.array(problem.capacity) @ guide.lattice.strides)
        for cut in range(1, problem.num_atoms):
            least = [
                prefixes.least(cut, problem.capacity, 1, k) for k in range(len(problem.edges.one_way_ns))
            ]
            assert guide.time_ns[0, cut, full] <= min(time for time, _ in least)
            assert guide.period_ns[0, cut, full] <= min(pace for _, pace in least)


def test_guide_of_nothing() -> None:
    """Where no piece fits the guide says so, and an empty front costs nothing."""
    problem = random_problem(3)
    guide = prefix_bound(problem, 0)
    assert (guide.time_ns[:, 0] == 0).all()
    assert (guide.period_ns[:, 0] == 0).all()
    assert (guide.time_ns[:, 1:] == FAR_NS).all()


@pytest.mark.parametrize("seed", range(20))
def test_guide_says_whether_a_front_exists(seed: int) -> None:
    """The whole model can be planned only if some piece ends it behind a front that the guide allows."""
    problem = problem_of(seed)
    guide = prefix_bound(problem, FAR_NS, 8)
    pieces, strides = problem.pieces, guide.lattice.strides
    everything = int(np.array(problem.capacity) @ strides)
    best = FAR_NS
    for piece in np.flatnonzero(pieces.stop == problem.num_atoms).tolist():
        left = everything - int(strides[pieces.island[piece]] * pieces.gpus[piece])
        best = min(best, int(guide.time_ns[0, pieces.start[piece], left] + pieces.time_ns[piece]))
    pipelines = itertools.islice(all_pipelines(problem), 400)
    fastest = min((plain_closed_form(problem, p) for p in pipelines), default=FAR_NS)
    assert best <= fastest
