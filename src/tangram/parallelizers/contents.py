"""Slice contents: how many atoms of each class a slice holds.

Atoms of one fingerprint form a class. What a stage costs depends on the counts of its classes alone (times
and bytes add up, workspace is a maximum), so slices of equal counts are planned once, whatever their
position: in a model of equal layers N(N+1)/2 slices have fewer than 4N contents. This is the "redundant"
pruning of the paper (section 5.1).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from tangram.cost.types import BoolArray, IntArray
from tangram.model.atoms import Atom


@dataclass(frozen=True, slots=True, eq=False)
class Contents:
    """The slices of a model, and their distinct contents.

    Attributes:
        first_atoms: Per class, the position of its first atom; shape ``(num_classes,)``.
        class_of: Class of each atom; shape ``(num_atoms,)``.
        start, stop: The slices, ordered by start, then stop; shape ``(num_slices,)``.
        content_of: Content of each slice; shape ``(num_slices,)``.
        counts: Atoms per class of each content; shape ``(num_contents, num_classes)``.
    """

    first_atoms: IntArray
    class_of: IntArray
    start: IntArray
    stop: IntArray
    content_of: IntArray
    counts: IntArray

    def distinct(self, atoms: Sequence[Atom]) -> tuple[Atom, ...]:
        """Returns one atom per class."""
        return tuple(atoms[i] for i in self.first_atoms)

    def holds(self, classes: BoolArray) -> BoolArray:
        """Returns per content whether it holds an atom of any of these classes (``(num_classes,)``)."""
        held: BoolArray = self.counts[:, classes].sum(axis=1) > 0
        return held


def slice_contents(atoms: Sequence[Atom], slices: Sequence[tuple[int, int]] | None = None) -> Contents:
    """Returns the contents of the given slices (``(start, stop)``, ``start < stop``), or of all slices."""
    wanted = None if slices is None else tuple(slices)
    return _contents(tuple(atom.fingerprint for atom in atoms), wanted)


@lru_cache(maxsize=16)
def _contents(fingerprints: tuple[str, ...], slices: tuple[tuple[int, int], ...] | None) -> Contents:
    """Cached: it is the same for every portion and every micro-batch."""
    classes: dict[str, int] = {}
    class_of = np.array([classes.setdefault(f, len(classes)) for f in fingerprints], dtype=np.int64)
    first_atoms = np.array([fingerprints.index(f) for f in classes], dtype=np.int64)
    start, stop = _all_slices(len(fingerprints)) if slices is None else _given_slices(slices)
    before = np.zeros((len(fingerprints) + 1, len(classes)), dtype=np.int64)
    np.cumsum(class_of[:, None] == np.arange(len(classes)), axis=0, out=before[1:])
    counts = before[stop] - before[start]
    content_of, representatives = _group_equal_rows(counts)
    contents = Contents(first_atoms, class_of, start, stop, content_of, counts[representatives])
    for array in (first_atoms, class_of, start, stop, content_of, contents.counts):
        array.setflags(write=False)
    return contents


def _all_slices(num_atoms: int) -> tuple[IntArray, IntArray]:
    start, last = np.triu_indices(num_atoms)
    return start.astype(np.int64), last.astype(np.int64) + 1


def _given_slices(slices: tuple[tuple[int, int], ...]) -> tuple[IntArray, IntArray]:
    pairs = np.array(sorted(set(slices)), dtype=np.int64).reshape(-1, 2)
    return np.ascontiguousarray(pairs[:, 0]), np.ascontiguousarray(pairs[:, 1])


def _group_equal_rows(rows: IntArray) -> tuple[IntArray, IntArray]:
    """Numbers equal rows alike; returns the number of each row, and the first row of each number."""
    key = np.zeros(len(rows), dtype=np.int64)
    first = np.arange(min(1, len(rows)))
    for column in rows.T:
        # Compacting the key after each column keeps it below num_slices * num_atoms: it cannot overflow.
        key = key * (int(column.max(initial=0)) + 1) + column
        _, first, key = np.unique(key, return_index=True, return_inverse=True)
    return key.astype(np.int64).reshape(-1), first.astype(np.int64)
