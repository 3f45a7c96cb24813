"""Ways to arrange a stage: which layouts its layers have, and below which workspace.

The knapsack over atoms adds bytes up, so what counts once per stage is fixed beforehand: a way allows the
strategies below one workspace and one reserve, and leaves the room that the largest of those leave. And a
change of layout between two atoms costs an exchange of activations, so a way says where layouts change: the
layers of a stage have one layout, or one in front and another one behind; the ends of the model have any.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from tangram.cost.types import BoolArray, FloatArray, IntArray
from tangram.parallelizers.galvatron.strategies import Strategies
from tangram.parallelizers.layerwise.mixtures import Offers
from tangram.units import MIB

LEVEL_BYTES = 256 * MIB
"""Workspaces closer than this to each other are taken as one."""

Arrangement = tuple[int, int]
"""Layout of the first layers and of the last ones."""

FREE: Arrangement = (-1, -1)
"""Any layout anywhere, and no exchange between them: a bound."""


@dataclass(frozen=True, slots=True, eq=False)
class Classes:
    """What atoms of each class may take; arrays ``(num_classes, num_strategies)`` unless stated.

    The last class stands for embedding and head together, where they share a matrix and a stage: one
    strategy for both.

    Attributes:
        counts: Atoms per content; ``(num_contents, num_classes)``.
        is_first, is_last: Ends of the model; ``(num_classes,)``, as ``is_both``.
        is_both: The class of both.
        behind: Class of the atom in front of the head.
        layout: Per strategy; ``(num_strategies,)``.
        allowed, value_s, state_bytes, activation_bytes, workspace_bytes: As in ``Strategies``.
        reserve_bytes: Per strategy; ``(num_strategies,)``.
        exchange_s: As in ``Strategies``, of the classes but the last.
    """

    counts: IntArray
    is_first: BoolArray
    is_last: BoolArray
    is_both: BoolArray
    behind: int
    layout: IntArray
    allowed: BoolArray
    value_s: FloatArray
    state_bytes: FloatArray
    activation_bytes: FloatArray
    workspace_bytes: FloatArray
    reserve_bytes: FloatArray
    exchange_s: FloatArray

    @property
    def is_inner(self) -> BoolArray:
        """Classes of layers."""
        inner: BoolArray = ~(self.is_first | self.is_last | self.is_both)
        return inner

    def held_bytes(self, windows: Sequence[int]) -> FloatArray:
        """Returns what an atom holds per window, ``(num_windows, num_classes, num_strategies)``."""
        held: FloatArray = self.state_bytes + np.array(windows)[:, None, None] * self.activation_bytes
        return held

    def only(self, contents: IntArray) -> IntArray:
        """Returns the counts of some contents."""
        return self.counts[contents]


def classes_of(
    strategies: Strategies,
    counts: IntArray,
    is_first: BoolArray,
    is_last: BoolArray,
    behind: int,
    shared: bool,
) -> Classes:
    """Returns what atoms may take.

    Args:
        strategies: Of the portion.
        counts: Atoms per class of each content.
        is_first, is_last: Which class is the embedding, and the head.
        behind: Class of the atom in front of the head.
        shared: Whether these two share a matrix.
    """
    s, first, last = strategies, int(is_first.argmax()), int(is_last.argmax())
    both = shared and bool(is_first.any() and is_last.any())
    together = (counts[:, first] > 0) & (counts[:, last] > 0) if both else np.zeros(len(counts), np.bool_)
    apart = np.where(together[:, None] & (is_first | is_last), 0, counts)

    def joined(table: FloatArray, pair: FloatArray) -> FloatArray:
        return np.concatenate([table, pair[None]])

    found = Classes(
        counts=np.concatenate([apart, together[:, None].astype(np.int64)], axis=1),
        is_first=np.append(is_first, False),
        is_last=np.append(is_last, False),
        is_both=np.append(np.zeros(len(is_first), np.bool_), True),
        behind=behind,
        layout=s.layout,
        allowed=np.concatenate([s.allowed, (s.allowed[first] & s.allowed[last] & both)[None]]),
        value_s=joined(s.value_s, s.value_s[first] + s.value_s[last] - s.tied_value_s),
        state_bytes=joined(s.state_bytes, s.state_bytes[first] + s.state_bytes[last] - s.tied_bytes),
        activation_bytes=joined(s.activation_bytes, s.activation_bytes[first] + s.activation_bytes[last]),
        workspace_bytes=joined(
            s.workspace_bytes, np.maximum(s.workspace_bytes[first], s.workspace_bytes[last])
        ),
        reserve_bytes=s.reserve_bytes,
        exchange_s=s.exchange_s,
    )
    _drop_useless(found)
    return found


def _drop_useless(classes: Classes) -> None:
    """Forbids ends what another strategy of the same layout beats in everything; of equals the first stays.

    Ends that share a matrix and a stage are a class by themselves here, so each may choose freely.
    """
    reserve = np.broadcast_to(classes.reserve_bytes, classes.value_s.shape)
    costs = np.stack(
        [classes.value_s, classes.state_bytes, classes.activation_bytes, classes.workspace_bytes, reserve]
    )
    same = classes.layout[:, None] == classes.layout
    first = np.tri(len(same), k=-1, dtype=np.bool_).T
    for held in np.flatnonzero(~classes.is_inner):
        mine = costs[:, held]
        beats = same & (mine[:, :, None] <= mine[:, None, :]).all(axis=0)
        beats &= classes.allowed[held][:, None] & (~beats.T | first)
        classes.allowed[held] &= ~beats.any(axis=0)


def single_layouts(classes: Classes) -> list[Arrangement]:
    """Returns the arrangements of one layout for all layers."""
    used = np.unique(classes.layout[classes.allowed[classes.is_inner].any(axis=0)]).tolist()
    return [(layout, layout) for layout in used]


def pairs_of_layouts(classes: Classes) -> list[Arrangement]:
    """Returns the arrangements of two."""
    used = [layout for layout, _ in single_layouts(classes)]
    return [(front, behind) for front in used for behind in used if front != behind]


def offers_of(
    classes: Classes,
    arrangements: Iterable[Arrangement],
    windows: Sequence[int],
    contents: IntArray,
    capacity_bytes: float,
) -> tuple[Offers, list[Arrangement]]:
    """Returns what some contents are offered, and the arrangement of each way.

    Args:
        classes: What atoms may take.
        arrangements: To choose from.
        windows: Numbers of micro-batches in flight.
        contents: Which.
        capacity_bytes: What best estimates may take of a GPU.
    """
    counts = classes.only(contents)
    values, rooms, fixed, ways = [], [], [], []
    single = (counts[:, classes.is_inner] > 0).sum(axis=1) <= 1
    for arrangement in arrangements:
        value = _arranged(classes, arrangement)
        change_s = _change_s(classes, counts, arrangement)
        allowed = np.isfinite(value)
        for mask in _levels(classes, allowed):
            values.append(np.where(mask, value, np.inf))
            rooms.append(capacity_bytes - _taken_bytes(classes, mask, counts))
            fixed.append(np.where(single | (arrangement[0] == arrangement[1]), change_s, np.inf))
            ways.append(arrangement)
    offers = Offers(np.stack(values), np.stack(rooms), classes.held_bytes(windows), counts, np.stack(fixed))
    return offers, ways


def _arranged(classes: Classes, arrangement: Arrangement) -> FloatArray:
    """Values with the exchange beside the ends; ``inf`` for layers of other layouts."""
    if arrangement == FREE:
        return np.where(classes.allowed, classes.value_s, np.inf)
    front, behind = arrangement
    layout, inner = classes.layout, classes.is_inner[:, None]
    value = np.where(
        classes.allowed & (~inner | (layout == front) | (layout == behind)), classes.value_s, np.inf
    )
    for held in range(len(value)):
        if classes.is_first[held] or classes.is_both[held]:
            value[held] += classes.exchange_s[int(classes.is_first.argmax())][layout, front]
        if classes.is_last[held] or classes.is_both[held]:
            value[held] += classes.exchange_s[classes.behind][behind, layout]
    return value


def _change_s(classes: Classes, counts: IntArray, arrangement: Arrangement) -> FloatArray:
    """The exchange between the first layers and the last ones, per content."""
    if arrangement == FREE:
        return np.zeros(len(counts))
    inner = np.flatnonzero(classes.is_inner)
    held = inner[counts[:, inner].argmax(axis=1)]
    change_s: FloatArray = classes.exchange_s[held, arrangement[0], arrangement[1]]
    return change_s


def _levels(classes: Classes, allowed: BoolArray) -> list[BoolArray]:
    """Distinct sets of strategies below a workspace and a reserve."""
    workspace = np.ceil(classes.workspace_bytes / LEVEL_BYTES)
    reserve = np.broadcast_to(classes.reserve_bytes, allowed.shape)
    masks = [
        allowed & (workspace <= most) & (reserve <= limit)
        for limit in np.unique(reserve[allowed])
        for most in np.unique(workspace[allowed & (reserve <= limit)])
    ]
    return list({mask.tobytes(): mask for mask in masks}.values())


def _taken_bytes(classes: Classes, mask: BoolArray, counts: IntArray) -> FloatArray:
    """Workspace and reserve, the largest that a content may choose."""
    present = counts > 0
    workspace = np.where(mask, classes.workspace_bytes, 0.0).max(axis=1)
    reserve = np.where(mask, classes.reserve_bytes, 0.0).max(axis=1)
    taken: FloatArray = (present * workspace).max(axis=1) + (present * reserve).max(axis=1)
    return taken
