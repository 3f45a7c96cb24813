"""Raises the least of the lower bounds of several problems (one per micro-batch size) by cases.

What no plan of any size beats is the least of the bounds of all sizes. So it is always the size with the
least bound for which a longer time is tried (:mod:`tangram.planner.cases`), by halving the distance to the
least time that could not be shown; the others are left as they are.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tangram.planner.problem import FAR_NS, Problem

if TYPE_CHECKING:
    from tangram.planner.cases import Casework

MOST_CASES = 800
"""For each time to show."""

_ROUGH_SHIFT = 5  # to know where to look, times need not be told apart by less than 1/32 of the gap
_CLOSE_FRAC = 0.0002  # least distance of times to show in the end
_WIDEST_SHIFT = 3  # the next time to show is no more than 1/8 below one that could not be shown


@dataclass(slots=True, eq=False)
class Raiser:
    """Cases of several problems.

    Attributes:
        cases: By problem index.
    """

    cases: dict[int, Casework] = field(default_factory=dict)
    _not_shown_ns: dict[int, int] = field(default_factory=dict)

    def proves(self, idx: int, problem: Problem, below_ns: int) -> bool:
        """Returns whether it is shown that no plan of a problem takes less than a time; notes the problem
        where it is not.

        Args:
            idx: Of the problem.
            problem: It.
            below_ns: The time; when a problem is asked about again, no longer than the first time.
        """
        from tangram.planner.cases import Casework

        if idx not in self.cases:
            self.cases[idx], self._not_shown_ns[idx] = Casework.of(problem, below_ns), FAR_NS
        if self.shows(idx, below_ns):
            del self.cases[idx], self._not_shown_ns[idx]
            return True
        self._not_shown_ns[idx] = min(self._not_shown_ns[idx], below_ns)
        return False

    def shows(self, idx: int, below_ns: int) -> bool:
        """Returns whether it is shown that no plan of a problem that is noted takes less than a time; where
        that is known to fail for a shorter one, it is not tried.
        """
        return below_ns < self._not_shown_ns[idx] and self.cases[idx].proves(below_ns, MOST_CASES)

    def raise_least(
        self,
        bounds_ns: Mapping[int, int],
        best_ns: int,
        raised: Callable[[int, int], None],
        *,
        closely: bool = False,
    ) -> None:
        """Raises the least bound as far as it can be shown, at most to the time of the best plan.

        Ends where the least bound is that of a problem without cases.

        Args:
            bounds_ns: Of all problems, by index; ``raised`` has to change it.
            best_ns: The time of the best plan.
            raised: Called with an index and the bound that was shown.
            closely: Whether it is the last word, not just to know where to look.
        """
        if not self.cases:
            return
        from tangram.planner.cases import FINEST, NARROWEST

        narrowest = FINEST if closely else NARROWEST
        if closely:  # by about so much more may be shown in narrower cases
            self._not_shown_ns = {idx: t + int(NARROWEST * t) for idx, t in self._not_shown_ns.items()}
        while True:
            idx = min(bounds_ns, key=lambda idx: (bounds_ns[idx], idx))
            low = bounds_ns[idx]
            if low >= best_ns or idx not in self.cases:
                return
            failed = min(best_ns, self._not_shown_ns[idx])
            enough = int(_CLOSE_FRAC * failed) if closely else (best_ns - low) >> _ROUGH_SHIFT
            if failed - low <= max(enough, 1):
                return
            if failed < self._not_shown_ns[idx]:
                target = failed  # the time of a plan that was found since
            else:
                target = max((low + failed) // 2, failed - (failed >> _WIDEST_SHIFT))
            if self.cases[idx].proves(target, MOST_CASES, narrowest):
                raised(idx, target)
            else:
                self._not_shown_ns[idx] = target
