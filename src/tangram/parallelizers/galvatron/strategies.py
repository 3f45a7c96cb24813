"""What one atom may do: a configuration of the stage's GPUs, and whether it is recomputed in full.

Atoms of one class cost the same, so a table of (class, strategy) is all that the knapsack needs to know of a
portion and a micro-batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tangram.cluster.spec import Portion
from tangram.cost.constants import upper_memory_ratio
from tangram.cost.reshard import Layout, exchange_s, layout_of
from tangram.cost.transfer import boundary_bytes
from tangram.cost.types import BoolArray, FloatArray, IntArray, StageConfig
from tangram.job import Recompute
from tangram.parallelizers.book import StageBook
from tangram.parallelizers.contents import Contents
from tangram.parallelizers.totals import StageTotals


@dataclass(frozen=True, slots=True, eq=False)
class Strategies:
    """Strategies of one portion; arrays ``(num_classes, num_strategies)`` unless stated.

    Attributes:
        config: Index of the configuration; shape ``(num_strategies,)``, as the next ones.
        full: Whether the atom is recomputed in full.
        layout: Index of the layout of activations.
        reserve_bytes: Once per stage.
        layouts: Distinct (dp, cp, tp).
        allowed: Which class may have which strategy, once useless ones are dropped.
        value_s: Time of a micro-batch, and the step end shared out to all micro-batches.
        state_bytes: Model states over the ratio of the upper estimate: no margin is due on them, so that much
            of the room for all else they take.
        activation_bytes: Per micro-batch in flight.
        workspace_bytes: Of which the largest counts.
        tied_value_s, tied_bytes: What a stage with both ends of a tied model counts twice, when both have
            this strategy, bytes as ``state_bytes``; ``(num_strategies,)``.
        exchange_s: Changing from one layout to another behind an atom, forward and back;
            ``(num_classes, num_layouts, num_layouts)``.
    """

    config: IntArray
    full: BoolArray
    layout: IntArray
    reserve_bytes: FloatArray
    layouts: tuple[Layout, ...]
    allowed: BoolArray
    value_s: FloatArray
    state_bytes: FloatArray
    activation_bytes: FloatArray
    workspace_bytes: FloatArray
    tied_value_s: FloatArray
    tied_bytes: FloatArray
    exchange_s: FloatArray

    def held_bytes(self, in_flight: int) -> FloatArray:
        """Returns what an atom holds all the time with so many micro-batches in flight."""
        held: FloatArray = self.state_bytes + in_flight * self.activation_bytes
        return held


def strategies_of(
    book: StageBook,
    portion: Portion,
    configs: Sequence[StageConfig],
    contents: Contents,
    totals: StageTotals,
) -> Strategies:
    """Returns the strategies of a portion; those that another one beats in everything are not allowed.

    Args:
        book: The question.
        portion: The GPUs of a stage.
        configs: Its legal configurations, at least one.
        contents: Slices of the model.
        totals: What these cost under these configurations.
    """
    pinned, costs = book.job.pins.recompute, totals.costs
    modes = {None: (False, True), Recompute.FULL: (False, True)}.get(pinned, (False,))
    pairs = [(idx, full) for full in modes for idx, c in enumerate(configs) if not (full and c.selective)]
    config = np.array([idx for idx, _ in pairs], dtype=np.int64)
    full = np.array([full for _, full in pairs], dtype=np.bool_)
    layouts = tuple(dict.fromkeys(layout_of(c) for c in configs))
    layer = totals.recomputable[:, None]
    kept = ~full & ~(layer & (pinned is Recompute.FULL))
    ratio = upper_memory_ratio(book.job.basis)
    seconds = (costs.forward_s + costs.backward_s)[:, config] + full * costs.recompute_s[:, config]
    rerun = np.where(full, costs.recompute_workspace_bytes[:, config], 0.0)
    found = Strategies(
        config=config,
        full=full,
        layout=np.array([layouts.index(layout_of(configs[idx])) for idx, _ in pairs], dtype=np.int64),
        reserve_bytes=costs.reserve_bytes[config],
        layouts=layouts,
        allowed=np.where(layer, full | kept, kept),
        value_s=seconds + costs.step_s[:, config] / book.num_micro_batches,
        state_bytes=costs.state_bytes[:, config] / ratio,
        activation_bytes=np.where(
            full, costs.recomputed_stored_bytes[:, config], costs.stored_bytes[:, config]
        ),
        workspace_bytes=np.maximum(costs.workspace_bytes[:, config], rerun),
        tied_value_s=costs.tied_step_s[config] / book.num_micro_batches,
        tied_bytes=costs.tied_bytes[config] / ratio,
        exchange_s=_exchanges(book, portion, contents, layouts),
    )
    _drop_useless(found, book.model.shares_embedding & ~totals.recomputable)
    return found


def _exchanges(
    book: StageBook, portion: Portion, contents: Contents, layouts: Sequence[Layout]
) -> FloatArray:
    """Both ways, per class."""
    sizes = [
        boundary_bytes(book.model, atom, book.micro_batch, book.job) for atom in contents.distinct(book.atoms)
    ]
    table = {size: 2 * exchange_s(portion, layouts, size, book.job) for size in dict.fromkeys(sizes)}
    return np.stack([table[size] for size in sizes])


def _drop_useless(strategies: Strategies, is_tied: BoolArray) -> None:
    """Forbids strategies that another one of the same layout beats in everything; of equals the first stays.

    An end that may share its matrix keeps all: what suits one end need not suit both.
    """
    reserve = np.broadcast_to(strategies.reserve_bytes, strategies.value_s.shape)
    costs = np.stack(
        [
            strategies.value_s,
            strategies.state_bytes,
            strategies.activation_bytes,
            strategies.workspace_bytes,
            reserve,
        ]
    )
    same = strategies.layout[:, None] == strategies.layout
    first = np.tri(len(same), k=-1, dtype=np.bool_).T  # [a, b]: a comes before b.
    for held in np.flatnonzero(~is_tied):
        mine = costs[:, held]
        beats = same & (mine[:, :, None] <= mine[:, None, :]).all(axis=0)
        beats &= strategies.allowed[held][:, None] & (~beats.T | first)
        strategies.allowed[held] &= ~beats.any(axis=0)
