"""Plans that random walks go on from: which of them, how far, and by what they are judged.

An estimate takes some ten microseconds, a simulation several times as long. With many micro-batches both
agree, and the estimate leads. With few, plans that the estimate takes for quick are not; then a walk that is
simulated all the way gets further in a quarter of the steps.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from tangram.planner.walk import Place, Stage, Walk

_CLOSE_SHIFT = 8  # estimates are good enough where simulations are no more than 1/256 above them
_STEPS_PER_PAIR = 8  # most steps of a walk, per slice on a portion


@dataclass(frozen=True, slots=True)
class Round:
    """Some walks of equal effort.

    Attributes:
        walks: How many at most.
        steps: Of each that is judged by estimates.
        tasks: Micro-batches times stages to simulate, of each that is judged by simulation.
    """

    walks: int
    steps: int
    tasks: int


@dataclass(frozen=True, slots=True)
class Contender:
    """A plan that walks may go on from. Build it with :meth:`of`.

    Attributes:
        problem_idx: Of its micro-batch size.
        walk: Over the plans of that.
        place: The plan.
        time_ns: Simulated.
        is_simulated: Whether walks from it are judged by simulation, as its estimate is too good to be true.
    """

    problem_idx: int
    walk: Walk
    place: Place
    time_ns: int
    is_simulated: bool

    @staticmethod
    def of(problem_idx: int, walk: Walk, place: Place) -> Contender:
        """Judges a plan with its estimated time."""
        time_ns = walk.simulated_ns(place)
        return Contender(problem_idx, walk, place, time_ns, time_ns - place.time_ns > time_ns >> _CLOSE_SHIFT)

    def steps(self, round_: Round) -> int:
        """Returns how many steps a walk from here takes in a round."""
        tasks = self.walk.problem.num_micro_batches * len(self.place.stages)
        steps = round_.tasks // tasks if self.is_simulated else round_.steps
        return min(steps, _STEPS_PER_PAIR * self.walk.num_pairs)

    def or_better(self, place: Place) -> Contender:
        """Returns a plan to which a walk from here led, if it is quicker, else this one."""
        other = Contender.of(self.problem_idx, self.walk, place)
        if other.time_ns >= self.time_ns:
            return self
        return replace(other, is_simulated=self.is_simulated or other.is_simulated)


def promising(contenders: Iterable[Contender], best_ns: int, bound_ns: int, count: int) -> list[Contender]:
    """Returns the quickest few, each once: none that is half as far behind the best as the bound is ahead.

    Args:
        contenders: To choose from.
        best_ns: A plan that is known, not quicker than all of these perhaps.
        bound_ns: No plan is quicker.
        count: How many at most.
    """
    chosen: dict[tuple[int, tuple[Stage, ...]], Contender] = {}
    for contender in sorted(contenders, key=lambda contender: contender.time_ns):
        chosen.setdefault((contender.problem_idx, contender.place.stages), contender)
    best = min([best_ns, *(contender.time_ns for contender in chosen.values())])
    limit = best + (best - bound_ns) // 2
    return [contender for contender in chosen.values() if contender.time_ns <= limit][:count]


def distinct(places: Iterable[Place]) -> list[Place]:
    """Returns the quickest plan of each set of stages, but for their warm-ups; the quickest first."""
    found: dict[tuple[tuple[int, int, int], ...], Place] = {}
    for place in sorted(places, key=lambda place: (place.time_ns, place.stages)):
        found.setdefault(tuple((stage.stop, stage.island, stage.gpus) for stage in place.stages), place)
    return list(found.values())
