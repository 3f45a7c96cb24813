"""Plans near what bounds leave open: legal ones, some of them the best there is."""

from __future__ import annotations

from listed_plans import listed
from test_walk import formula_ns

from tangram.planner.cases import Casework
from tangram.planner.starts import starts
from tangram.planner.walk import Walk


def test_starts_are_legal_plans_and_some_are_the_best() -> None:
    some = best_found = known = 0
    for _, problem, plans in listed(80):
        best = min(time_ns for time_ns, _ in plans)
        work = Casework.of(problem, 2 * best)
        left = []
        for share in (0.95, 1.0, 1.02, 1.1, 1.3):
            work.proves(int(share * best), 60)
            left += work.left
        walk = Walk(problem, 2 * best)
        found = starts(walk, left)
        known += 1
        some += bool(found)
        assert [place.time_ns for place in found] == sorted(place.time_ns for place in found)
        assert found == starts(Walk(problem, 2 * best), left)
        for place in found[:4]:
            assert place.stages[-1].stop == problem.num_atoms
            used = [0] * len(problem.capacity)
            for stage in place.stages:
                used[stage.island] += stage.gpus
            assert all(a <= b for a, b in zip(used, problem.capacity, strict=True))
            assert place.time_ns >= formula_ns(problem, place)
        best_found += bool(found) and walk.simulated_ns(found[0]) <= best
    assert some > 0.8 * known
    assert best_found > 0.2 * known
