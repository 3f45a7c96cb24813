"""Which stages of a pipeline share a node, as far as the search has to know.

Stages of one island that each take part of a node, and follow each other, may be on one node while it has
room: then their transfers stay inside, and they share its NICs. The search decides for each pair of
neighbours; the size of the *run* of stages that starts a label says whether the next one still fits. With a
tied embedding it also matters whether the first and the last stage can be on one node.

Other runs that do not touch may end up on one node too; only the placement sees that.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from tangram.cost.types import BoolArray, IntArray
from tangram.planner.problem import FAR_NS, Problem

FULL = 1 << 20
"""GPUs taken of a node that has no room for another stage."""


@dataclass(frozen=True, slots=True)
class Sharing:
    """The rules of one problem.

    Attributes:
        problem: What is composed.
    """

    problem: Problem
    _room_for: IntArray = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_room_for", self._most_taken())

    def _most_taken(self) -> IntArray:
        """GPUs of a node of each island that may be taken so that some stage still fits in; shape
        ``(num_islands,)``.
        """
        same_node, pieces = self.problem.same_node, self.problem.pieces
        most = np.full(len(self.problem.capacity), -1, dtype=np.int64)
        if same_node is not None:
            for island in range(len(most)):
                parts = pieces.tail_on_node[(pieces.island == island) & (pieces.tail_on_node > 0)]
                if len(parts):
                    most[island] = same_node.node_gpus[island] - parts.min()
        return most

    def may_share(self, piece: IntArray, link_class: IntArray, taken: IntArray) -> IntArray:
        """Returns the positions of the pieces whose last stage fits on the node of the stage behind.

        Args:
            piece: Pieces in front.
            link_class, taken: Of the first stage of each label behind.
        """
        pieces, same_node = self.problem.pieces, self.problem.same_node
        if same_node is None or not len(piece):
            return np.zeros(0, dtype=np.int64)
        island, part = pieces.island[piece], pieces.tail_on_node[piece]
        able = (part > 0) & (taken + part <= same_node.node_gpus[island])
        return np.flatnonzero(able & (same_node.class_island[link_class] == island))

    def taken(self, piece: IntArray, behind: IntArray | int) -> IntArray:
        """Returns the GPUs taken of the node of the first stage of each piece.

        Args:
            piece: Pieces.
            behind: GPUs taken by the stages behind on that node; 0 where they are on another.
        """
        pieces = self.problem.pieces
        own = pieces.head_on_node[piece]
        # Inside a piece of several stages nothing is known of the placement: its first stage may be alone.
        taken = own + np.where(pieces.num_stages[piece] > 1, 0, behind)
        return np.where((own > 0) & (taken <= self._room_for[pieces.island[piece]]), taken, FULL)

    def tail_taken(self, piece: IntArray, behind: IntArray, together: BoolArray, *, first: bool) -> IntArray:
        """Returns the GPUs taken of the node of the last stage of the model, by the run that it ends.

        Below zero while that run is still the first of the label: every stage so far is on that node.

        Args:
            piece: Pieces in front.
            behind: The same of the labels behind.
            together: Whether they share the node of the stage behind.
            first: Whether the pieces end the model.
        """
        pieces = self.problem.pieces
        several = pieces.num_stages[piece] > 1
        if first:
            own = pieces.tail_on_node[piece]
            own = np.where(own > 0, own, FULL)
            return np.where(several, own, -own)
        own = pieces.head_on_node[piece]
        return np.where(together & (behind < 0) & ~several, behind - own, np.abs(behind))

    def ends(
        self, piece: IntArray, tail_class: IntArray, taken: IntArray, tail_taken: IntArray, nic_ns: IntArray
    ) -> list[tuple[IntArray, IntArray]]:
        """Returns the ways to place the first and the last stage of the model with a tied embedding.

        Each is what the first stage adds to its step end, and for how long one micro-batch keeps the NICs of
        their node busy where they share one without being neighbours (0 where they do not). On different
        nodes first; then on one, with ``FAR_NS`` where it has no room. Pieces that do not start the model
        add nothing.

        Args:
            piece: Pieces.
            tail_class: Of the last stage of the model.
            taken: GPUs taken of the node of the first stage, as :meth:`taken` has it.
            tail_taken: As :meth:`tail_taken` has it.
            nic_ns: Of the edges that leave the first and the last run, together.
        """
        problem, pieces = self.problem, self.problem.pieces
        nothing = np.zeros(len(piece), dtype=np.int64)
        starts = pieces.start[piece] == 0
        if problem.tied_ns is None or not starts.any():
            return [(nothing, nothing)]
        at = (pieces.head_class[piece], tail_class)
        tied = np.where(starts, problem.tied_ns[at], 0)
        if problem.same_node is None:
            return [(tied, nothing)]
        island = pieces.island[piece]
        fits = (tail_taken < 0) | (taken + tail_taken <= problem.same_node.node_gpus[island])
        fits &= problem.same_node.class_island[tail_class] == island
        apart = np.where(starts, problem.same_node.tied_apart_ns[at], 0)
        # A single run is on one node already, and keeps no NIC busy.
        busy = np.where(starts & fits & (tail_taken > 0), nic_ns, 0)
        return [(apart, nothing), (np.where(fits | ~starts, tied, FAR_NS), busy)]
