"""The least time and the least pace in front of a cut, by trying every sequence of pieces."""

from __future__ import annotations

from functools import cache

from tangram.planner.problem import FAR_NS, Edges, Problem


class Prefixes:
    """Least values over all sequences of pieces that cover ``[0, cut)``, memory and link classes included.

    Extra warm-up is left out: it only raises windows, so less fits.
    """

    def __init__(self, problem: Problem, edges: Edges, max_period_ns: int = FAR_NS) -> None:
        self._problem, self._edges, self._max_period_ns = problem, edges, max_period_ns
        self.least = cache(self._least)

    def _least(self, cut: int, left: tuple[int, ...], window: int, behind: int) -> tuple[int, int]:
        """Least sum of (t + X), and least slowest pace, of two possibly different sequences.

        ``window`` and ``behind`` are the window and the link class of the first stage behind the cut.
        """
        if cut == 0:
            return 0, 0
        pieces, m = self._problem.pieces, self._problem.num_micro_batches
        time = pace = FAR_NS
        for piece in range(len(pieces)):
            island, gpus = int(pieces.island[piece]), int(pieces.gpus[piece])
            own_window = min(window + 1, m)
            if pieces.stop[piece] != cut or gpus > left[island] or own_window > pieces.max_in_flight[piece]:
                continue
            own_pace = min(int(pieces.period_ns[piece]), int(pieces.occupied_ns[piece]) // m)
            if own_pace > self._max_period_ns:
                continue
            rest = tuple(n - gpus if k == island else n for k, n in enumerate(left))
            head = own_window + int(pieces.span[piece])
            front = self.least(int(pieces.start[piece]), rest, head, int(pieces.head_class[piece]))
            edge = int(self._edges.round_trip_ns[int(pieces.tail_class[piece]), behind])
            time = min(time, front[0] + int(pieces.time_ns[piece]) + edge)
            pace = min(pace, max(front[1], own_pace))
        return min(time, FAR_NS), pace
