"""Labels of the exact search at one cut, and which of them are worth keeping."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from operator import attrgetter

import numpy as np

from tangram.cost.types import BoolArray, IntArray
from tangram.planner.groups import begins

_DOMINANCE_DEPTH = 24


@dataclass(frozen=True, slots=True, eq=False)
class Labels:
    """Labels at one cut; arrays of shape ``(num_labels,)``, ``used`` has a column per island.

    ``widest`` is the window itself, but for merged labels: the largest window of any of them.
    """

    used: IntArray
    window: IntArray
    widest: IntArray
    link_class: IntArray
    tail_class: IntArray
    num_stages: IntArray
    values: IntArray
    rest_ns: IntArray
    uid: IntArray

    def __len__(self) -> int:
        return len(self.window)

    def take(self, idx: IntArray | BoolArray) -> Labels:
        """Returns the labels at these positions."""
        return Labels(*[column[idx] for column in _columns(self)])


_columns: Callable[[Labels], tuple[IntArray, ...]] = attrgetter(*(f.name for f in fields(Labels)))


def joined(parts: list[Labels]) -> Labels:
    """Returns all labels of several parts, in order."""
    return Labels(*map(np.concatenate, zip(*map(_columns, parts), strict=True)))


def undominated(labels: Labels, key: IntArray) -> IntArray:
    """Returns the positions of labels that no other of the same key dominates; of equal ones, the first.

    Sorting by (key, c0, c1, ...) puts a dominating label in front of those it dominates; comparing each
    label with the ``_DOMINANCE_DEPTH`` labels in front of it finds nearly all, and never a wrong one.
    """
    values = labels.values
    order = np.lexsort((labels.uid, *reversed(values.T), key))
    for depth in range(1, _DOMINANCE_DEPTH + 1):
        if depth >= len(order):
            break
        behind, front = order[depth:], order[:-depth]
        same = key[behind] == key[front]
        if not same.any():
            break
        worse = same & (values[behind, 1:] >= values[front, 1:]).all(axis=1)
        if worse.any():
            keep = np.ones(len(order), dtype=np.bool_)
            keep[depth:] = ~worse
            order = order[keep]
    return np.sort(order)


def merged(labels: Labels, key: IntArray) -> Labels:
    """Returns one label per key that is no worse than any of its labels: the least values, and all
    windows.
    """
    order = np.lexsort((labels.uid, key))
    first = np.flatnonzero(begins(key[order]))
    one = labels.take(order[first])
    ordered = labels.take(order)
    return replace(
        one,
        window=np.minimum.reduceat(ordered.window, first),
        widest=np.maximum.reduceat(ordered.widest, first),
        values=np.minimum.reduceat(ordered.values, first, axis=0),
        rest_ns=np.minimum.reduceat(ordered.rest_ns, first),
    )
