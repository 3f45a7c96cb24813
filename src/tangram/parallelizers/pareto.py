"""The Pareto set of stage options, per slice content, in (forward, backward, step, largest window).

A smaller forward time does not make up for a larger backward time, even where the sum is smaller: only so is
no plan quicker with an option that was dropped than with the one that stays.

A *row* is one configuration of one content: its forward and step-end times do not depend on the window, its
backward time never falls as the window grows (more is recomputed). An option is the last window of a run of
equal times. Dominance is transitive, so a row that is itself dominated may still be used to drop others: a
few rows per content drop most options in cheap passes over all of them, and only what survives is compared
pair by pair.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np

from tangram.cost.types import BoolArray, IntArray

FAR_NS = 1 << 60
"""The backward time of a window that does not fit, or is too slow to matter."""

_MAX_CELLS = 1 << 20  # Of a pair-by-pair comparison at once: bounds memory.


@dataclass(frozen=True, slots=True, eq=False)
class Rows:
    """Configurations of contents; parallel arrays ``(num_rows,)``, grouped by content, ascending.

    Attributes:
        content: The content.
        forward_ns, step_ns: Of the row.
        rank, config: Among equal options the smaller rank wins, then fewer recomputed atoms, then the smaller
            config.
        num_recomputed: Atoms recomputed in full at each window; ``(num_rows, num_windows)``.
        backward_ns: At each window, ``FAR_NS`` where it does not fit; ``(num_rows, num_windows)``.
    """

    content: IntArray
    forward_ns: IntArray
    step_ns: IntArray
    rank: IntArray
    config: IntArray
    num_recomputed: IntArray
    backward_ns: IntArray

    def take(self, idx: IntArray) -> Rows:
        """Returns the rows at these positions."""
        return Rows(**{field.name: getattr(self, field.name)[idx] for field in fields(self)})

    def preference(self, idx: IntArray) -> IntArray:
        """Returns a number per row of ``idx`` and window: the smaller one wins among equal options."""
        shift = 1 << 20  # Above any number of configurations or of atoms.
        first = (self.rank[idx] * shift)[:, None] + self.num_recomputed[idx]
        return first * shift + self.config[idx][:, None]


def pareto_options(rows: Rows) -> BoolArray:
    """Returns which windows of which rows are options that no other option of the content makes useless.

    An option is useless when another one has no larger forward, backward and step time, and no smaller
    largest window; of equal ones the preferred one stays. Shape ``(num_rows, num_windows)``.
    """
    kept = _run_ends(rows.backward_ns)
    if not len(rows.content):
        return kept
    _drop_obvious(rows, kept)
    alive = np.flatnonzero(kept.any(axis=1))
    kept_alive = kept[alive]
    _drop_pairwise(rows.take(alive), kept_alive)
    kept[alive] = kept_alive
    return kept


def _run_ends(backward_ns: IntArray) -> BoolArray:
    """Marks the last window of every run of equal, feasible times."""
    ends = backward_ns < FAR_NS
    ends[:, :-1] &= backward_ns[:, :-1] != backward_ns[:, 1:]
    return ends


def _drop_obvious(rows: Rows, kept: BoolArray) -> None:
    """Drops what four outstanding rows of each content dominate strictly; changes ``kept``."""
    firsts = np.flatnonzero(np.diff(rows.content, prepend=-1))
    group = np.repeat(np.arange(len(firsts)), np.diff(firsts, append=len(rows.content)))
    last, first = rows.backward_ns[:, -1], rows.backward_ns[:, 0]
    ends = rows.forward_ns + rows.step_ns
    for key in (last + ends, first + ends, rows.forward_ns, rows.step_ns):
        lowest = np.minimum.reduceat(key, firsts)
        hits = np.flatnonzero(key == lowest[group])
        best = hits[np.searchsorted(group[hits], np.arange(len(firsts)))][group]
        forward, step = rows.forward_ns[best] - rows.forward_ns, rows.step_ns[best] - rows.step_ns
        # Added to the best row's time: out of reach where it cannot dominate, 1 where equal times are a tie.
        handicap = np.where(
            (forward > 0) | (step > 0), FAR_NS, ((forward == 0) & (step == 0)).astype(np.int64)
        )
        kept &= rows.backward_ns[best] + handicap[:, None] > rows.backward_ns


def _drop_pairwise(rows: Rows, kept: BoolArray) -> None:
    """Drops what any row of the same content dominates; changes ``kept``."""
    by, other = _pairs_within(rows.content)
    useful = (rows.forward_ns[by] <= rows.forward_ns[other]) & (rows.step_ns[by] <= rows.step_ns[other])
    by, other = by[useful], other[useful]
    step = max(1, _MAX_CELLS // rows.backward_ns.shape[1])
    for begin in range(0, len(by), step):
        _drop_by(rows, kept, by[begin : begin + step], other[begin : begin + step])


def _drop_by(rows: Rows, kept: BoolArray, by: IntArray, other: IntArray) -> None:
    equal_ends = (rows.forward_ns[by] == rows.forward_ns[other]) & (rows.step_ns[by] == rows.step_ns[other])
    theirs, ours = rows.backward_ns[by], rows.backward_ns[other]
    dominated = theirs <= ours
    tied = np.flatnonzero(equal_ends)
    if len(tied):
        longer = np.zeros((len(tied), ours.shape[1]), dtype=np.bool_)
        longer[:, :-1] = theirs[tied, :-1] == theirs[tied, 1:]
        preferred = rows.preference(by[tied]) < rows.preference(other[tied])
        dominated[tied] &= (theirs[tied] < ours[tied]) | longer | preferred
    # ``other`` is ascending: one reduction per run.
    runs = np.flatnonzero(np.diff(other, prepend=-1))
    if len(runs):
        kept[other[runs]] &= ~np.logical_or.reduceat(dominated, runs, axis=0)


def _pairs_within(content: IntArray) -> tuple[IntArray, IntArray]:
    """Returns all ordered pairs of different rows of one content, ordered by the second."""
    firsts = np.flatnonzero(np.diff(content, prepend=-1))
    size = np.diff(firsts, append=len(content))
    partners = np.repeat(size, size)
    other = np.repeat(np.arange(len(content)), partners)
    offset = np.arange(len(other)) - np.repeat(np.cumsum(partners) - partners, partners)
    by = np.repeat(np.repeat(firsts, size), partners) + offset
    different = by != other
    return by[different], other[different]
