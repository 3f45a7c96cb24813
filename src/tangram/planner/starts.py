"""Plans near what a bound leaves open: where walks begin.

A case that cannot be refuted (:mod:`tangram.planner.cases`) has a solution: how often each island has each
job, in the mean, and when it is to be done. Rounded to whole jobs, or with one pattern per island, that is a
set of stages. They are put in order in two ways, by the times at which they are to be done, and from the
back, where a stage goes as soon as it could not hold the micro-batches any further in front. Most of what
comes out is no plan, or a slow one; but it has the right sizes of stages, and some are quicker than any plan
that is built up by rules.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from tangram.planner.covering import Mixture
from tangram.planner.jobs import Timed
from tangram.planner.problem import Problem
from tangram.planner.walk import Draws, Place, Stage, Walk

_DRAWN = 3  # times that patterns are drawn, per mixture
_SOON = 3  # places further in front at which a stage still fits: more are not told apart


@dataclass(frozen=True, slots=True)
class _Part:
    """A stage without a place: so many atoms on a portion, and when it is to be done."""

    atoms: int
    island: int
    units: int
    release_ns: float
    due_ns: float


def starts(walk: Walk, left: Iterable[tuple[Timed, Mixture]]) -> list[Place]:
    """Returns distinct plans near these solutions, the quickest first.

    Args:
        walk: Over the plans of the problem.
        left: Jobs with their times, and mixtures of patterns of them.
    """
    problem, found = walk.problem, dict[tuple[tuple[int, int, int], ...], Place]()
    draws = Draws(1)
    for timed, mixture in left:
        kinds = [_rounded(problem, timed, mixture), _drawn(timed, mixture, None)]
        kinds += [_drawn(timed, mixture, draws) for _ in range(_DRAWN)]
        for parts in kinds:
            _try(walk, _with_all_atoms(parts, problem.num_atoms), found)
    return sorted(found.values(), key=lambda place: (place.time_ns, place.stages))


def halved(walk: Walk, places: Iterable[Place]) -> list[Place]:
    """Returns these plans with all stages on one size of portion of one island split along with their GPUs.

    A walk does not get there: as long as one of the stages is as slow as before, each split of another only
    makes the pipeline longer.
    """
    found = []
    for place in places:
        for island, gpus in dict.fromkeys((stage.island, stage.gpus) for stage in place.stages):
            stages, start = list[Stage](), 0
            for stage in place.stages:
                if (stage.island, stage.gpus) == (island, gpus) and stage.stop - start > 1:
                    middle = (start + stage.stop + 1) // 2
                    stages.append(Stage(middle, island, gpus - gpus // 2, stage.extra))
                    stages.append(Stage(stage.stop, island, gpus // 2, stage.extra))
                else:
                    stages.append(stage)
                start = stage.stop
            for extra in range(walk.problem.max_extra_in_flight + 1) if gpus > 1 else ():
                widened = [stage._replace(extra=extra) for stage in stages[:-1]] + stages[-1:]
                other = walk.place(tuple(widened))
                found += [other] if other is not None else []
    return found


def _try(walk: Walk, parts: list[_Part], found: dict[tuple[tuple[int, int, int], ...], Place]) -> None:
    """Notes the plans that these parts make in some order; of the same stages the quickest."""
    orders: list[list[_Part]] = [
        sorted(parts, key=lambda part: part.due_ns),
        sorted(parts, key=lambda part: part.release_ns + part.due_ns),
        _from_the_back(walk, parts),
    ]
    for order in orders:
        for extra in range(walk.problem.max_extra_in_flight + 1) if order else ():
            place = walk.place(_stages(order, extra))
            known = found.get(key := tuple((part.atoms, part.island, part.units) for part in order))
            if place is not None and (known is None or place.time_ns < known.time_ns):
                found[key] = place


def _rounded(problem: Problem, timed: Timed, mixture: Mixture) -> list[_Part]:
    """Rounds how often each job is there in the mean, the most frequent first, as far as there is room."""
    numbers: dict[int, float] = {}
    for share, pattern in (known for patterns in mixture for known in patterns):
        for job, number in pattern.jobs:
            numbers[job] = numbers.get(job, 0.0) + share * number
    left, parts = list(problem.capacity), list[_Part]()
    for job in sorted(numbers, key=lambda job: (-numbers[job], job)):
        part = _part(timed, job)
        times = min(round(numbers[job]), left[part.island] // part.units)
        left[part.island] -= times * part.units
        parts += times * [part]
    return parts


def _drawn(timed: Timed, mixture: Mixture, draws: Draws | None) -> list[_Part]:
    """Takes one pattern of each island: the one of the greatest share, or one drawn by their shares."""
    parts = list[_Part]()
    for patterns in mixture:
        if not patterns:
            continue
        at = draws.share() if draws else 0.0
        chosen = max(patterns, key=lambda known: known[0])[1]
        for share, pattern in patterns if draws else ():
            at -= share
            if at <= 0:
                chosen = pattern
                break
        for job, number in chosen.jobs:
            parts += number * [_part(timed, job)]
    return parts


def _part(timed: Timed, job: int) -> _Part:
    jobs = timed.jobs
    atoms, island, units = int(jobs.counts[job].sum()), int(jobs.island[job]), int(jobs.units[job])
    return _Part(atoms, island, units, float(timed.release_ns[job]), float(timed.due_ns[job]))


def _with_all_atoms(parts: list[_Part], num_atoms: int) -> list[_Part]:
    """Adds or takes away atoms until there are as many as the model has, one of each part in turn, the
    largest parts first; of no part the last one.
    """
    atoms = [part.atoms for part in parts]
    missing = num_atoms - sum(atoms)
    order = sorted(range(len(atoms)), key=lambda i: -atoms[i])
    while missing and order:
        step = 1 if missing > 0 else -1
        able = [i for i in order if atoms[i] + step > 0]
        for i in able[: abs(missing)]:
            atoms[i] += step
            missing -= step
        if not able:
            return []
    return [replace(part, atoms=number) for part, number in zip(parts, atoms, strict=True)]


def _stages(parts: list[_Part], extra: int) -> tuple[Stage, ...]:
    """Parts in order, each with the same extra warm-up behind it."""
    stages, stop = [], 0
    for idx, part in enumerate(parts):
        stop += part.atoms
        stages.append(Stage(stop, part.island, part.units, extra if idx + 1 < len(parts) else 0))
    return tuple(stages)


def _from_the_back(walk: Walk, parts: list[_Part]) -> list[_Part]:
    """Puts parts in order so that each can hold what it must; nothing where that fails.

    The last stage holds one micro-batch, the one in front two, and so on. Of the parts that can be next, the
    one that fits least far in front is, or else the one that may be done last.
    """
    left, order = list(parts), list[_Part]()
    stop, m = walk.problem.num_atoms, walk.problem.num_micro_batches
    while left:
        window = min(len(order) + 1, m)
        best: tuple[tuple[int, float], int] | None = None
        for idx, part in enumerate(left):
            start = stop - part.atoms
            if (start > 0) != (len(left) > 1):
                continue
            longest = walk.longest(start, stop, part.island, part.units)
            if longest >= window:
                later = _SOON if longest >= m else min(longest - window, _SOON)
                rank = (later, -part.due_ns)
                if best is None or rank < best[0]:
                    best = (rank, idx)
        if best is None:
            return []
        order.append(left.pop(best[1]))
        stop -= order[-1].atoms
    return order[::-1]
