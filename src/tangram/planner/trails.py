"""How the labels of a search came about, so that a complete one can be read as a plan."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from tangram.cost.types import IntArray


@dataclass(slots=True, eq=False)
class Trails:
    """Every label of a search: from which one it was made, with which piece and how much extra warm-up.

    Attributes:
        num_labels: How many there are; a label's number is its place among them.
        complete: Values and numbers of those that cover the whole model.
    """

    num_labels: int = 0
    complete: list[tuple[int, int]] = field(default_factory=list)
    _parents: list[IntArray] = field(default_factory=list)
    _pieces: list[IntArray] = field(default_factory=list)
    _extras: list[IntArray] = field(default_factory=list)

    def remember(self, parent: IntArray, piece: IntArray, extra: IntArray) -> IntArray:
        """Numbers further labels; the parent of those that begin a plan is -1."""
        first, self.num_labels = self.num_labels, self.num_labels + len(parent)
        self._parents.append(parent)
        self._pieces.append(piece)
        self._extras.append(extra)
        return np.arange(first, self.num_labels, dtype=np.int64)

    def plans(self) -> Iterator[tuple[int, tuple[int, ...], tuple[int, ...]]]:
        """Yields value, pieces and extra warm-up of complete plans, the best first; some come twice."""
        if not self.complete:
            return
        parents, pieces, extras = map(np.concatenate, (self._parents, self._pieces, self._extras))
        for value, label in sorted(self.complete):
            trail = []
            while label >= 0:
                trail.append(label)
                label = int(parents[label])
            yield value, tuple(pieces[trail].tolist()), tuple(extras[trail].tolist())

    def used_pieces(self) -> IntArray:
        """Returns the pieces of all complete plans, ascending."""
        if not self.complete:
            return np.zeros(0, dtype=np.int64)
        parents, pieces = np.concatenate(self._parents), np.concatenate(self._pieces)
        labels = np.unique([label for _, label in self.complete])
        used = []
        while len(labels):
            used.append(pieces[labels])
            labels = np.unique(parents[labels])
            labels = labels[labels >= 0]
        return np.unique(np.concatenate(used))
