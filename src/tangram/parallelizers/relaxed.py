"""The least that any stage takes whose layers may have configurations of their own: bounds, never plans.

Every atom of a slice may take any legal configuration of the portion, recomputed in full or not, and even
shares of several; changes of layout are free; only what the atoms hold together must fit. That is the
relaxation of every parallelizer that chooses layer by layer (``galvatron``), so what cannot be in a better
plan even at these times need not be asked about.

For ``w`` micro-batches in flight an atom's choice ``o`` takes ``t_o`` seconds and ``s_o + w a_o`` bytes
(model states, and activations with their margin). With a price ``p >= 0`` per byte,

    sum over atoms of min_o (t_o + p (s_o + w a_o))  -  p capacity

is at most the time of any stage that fits (Lagrangian duality), for every ``p``; the largest over a grid of
prices is the bound. Workspaces count as nothing, the reserve as the least of any configuration.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from tangram.cost.constants import upper_memory_ratio
from tangram.cost.types import AtomCosts, FloatArray, IntArray
from tangram.errors import InternalError
from tangram.job import Recompute
from tangram.parallelizers.contents import Contents, slice_contents
from tangram.parallelizers.prices import price_list
from tangram.parallelizers.protocols import Capabilities, OptionTable, StageChoice, TableRequest

WINDOWS = (1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16, 20, 24, 28, 32, 40, 48, 64, 80, 96, 128, 192, 256)
"""Micro-batches in flight at which a bound is computed; it serves up to the next one."""

_PRICES = 24  # From where nothing is dear to where bytes decide alone.


class _Choices(NamedTuple):
    """What one atom of each class may choose; arrays of shape ``(num_classes, num_choices)``.

    ``time_s`` is forward and backward; a choice that a class does not have takes infinitely long.
    """

    time_s: FloatArray
    state_bytes: FloatArray
    activation_bytes: FloatArray


class RelaxedTable:
    """A stage table of bounds: no stage of any parallelizer is faster than its option."""

    name = "relaxed"
    capabilities = Capabilities(seconds_per_query=0.002)

    def options(self, request: TableRequest) -> OptionTable:
        """Returns one option per slice and window that may fit, ordered by start, stop and window.

        Half of an option's time is forward: the least that any lower bound makes of a time. Its step end is
        the least of every atom.
        """
        return _relaxed_options(request)

    def choice(self, request: TableRequest, table: OptionTable, idx: int) -> StageChoice:
        """Raises InternalError: a bound is no stage."""
        raise InternalError("a bound cannot be executed")


def _relaxed_options(request: TableRequest) -> OptionTable:
    contents = slice_contents(request.atoms, request.slices)
    prices = price_list(request.model, request.atoms, request.portion, request.job)
    configs = prices.configs(request.micro_batch)
    most = max(1, min(request.max_in_flight, request.num_micro_batches))
    windows = [w for w in WINDOWS if w <= most]
    if not configs or not len(contents.start):
        nothing = np.zeros((len(contents.counts), 0))
        return _table(contents, nothing, np.zeros(len(contents.counts)), windows, request)
    costs, _ = prices.costs(contents.distinct(request.atoms), configs, request.micro_batch)
    ratio = upper_memory_ratio(request.job.basis)
    room = request.portion.island.gpu.usable_memory_bytes - ratio * float(costs.reserve_bytes.min())
    step_s = contents.counts @ costs.step_s.min(axis=1)
    if request.model.tied_embeddings:  # Counted twice where both ends are in one slice.
        room += float(costs.tied_bytes.max())
        step_s = np.maximum(step_s - float(costs.tied_step_s.max()), 0.0)
    choices = _choices(request, contents, costs, ratio)
    least_s = _least_times(contents.counts, choices, windows, room)
    return _table(contents, least_s, step_s, windows, request)


def _choices(request: TableRequest, contents: Contents, costs: AtomCosts, ratio: float) -> _Choices:
    """All configurations, kept and recomputed in full, as far as the user leaves the choice."""
    atoms, pinned = contents.distinct(request.atoms), request.job.pins.recompute
    inner = np.array([not (atom.is_embedding or atom.is_head) for atom in atoms])[:, None]
    kept_s = costs.forward_s + costs.backward_s
    keeps = ~inner | (pinned is not Recompute.FULL)
    again = inner & (pinned in (None, Recompute.FULL))
    return _Choices(
        time_s=np.concatenate(
            [np.where(keeps, kept_s, np.inf), np.where(again, kept_s + costs.recompute_s, np.inf)], axis=1
        ),
        state_bytes=np.concatenate([costs.state_bytes, costs.state_bytes], axis=1),
        activation_bytes=ratio * np.concatenate([costs.stored_bytes, costs.recomputed_stored_bytes], axis=1),
    )


def _least_times(counts: IntArray, choices: _Choices, windows: list[int], room_bytes: float) -> FloatArray:
    """Returns the bound per content and window, ``(num_contents, num_windows)``; ``inf``: nothing fits."""
    least = np.full((len(counts), len(windows)), np.inf)
    known = np.isfinite(choices.time_s)
    number = counts.astype(np.float64)
    slowest = float(np.where(known, choices.time_s, 0.0).max()) / max(room_bytes, 1.0) * len(number)
    prices = np.concatenate([[0.0], slowest * np.geomspace(1e-5, 1e2, _PRICES)])
    for column, window in enumerate(windows):
        held = choices.state_bytes + window * choices.activation_bytes
        smallest = np.where(known, held, np.inf).min(axis=1)
        fits = number @ smallest <= room_bytes
        priced = (choices.time_s + prices[:, None, None] * held).min(axis=2)
        bound = (number @ priced.T - prices * room_bytes).max(axis=1)
        least[fits, column] = bound[fits]
    return np.maximum.accumulate(least, axis=1)


def _table(
    contents: Contents, least_s: FloatArray, step_s: FloatArray, windows: list[int], request: TableRequest
) -> OptionTable:
    """One option per slice and window where the bound is in reach; a bound serves up to the next window."""
    limit_s = request.max_time_s
    until = np.array([*(w - 1 for w in windows[1:]), request.max_in_flight], dtype=np.int64)
    content, column = np.nonzero(np.isfinite(least_s) & (least_s <= limit_s))
    order = np.lexsort((column, content))
    content, column = content[order], column[order]
    number = np.bincount(content, minlength=len(contents.counts))
    first = np.cumsum(number) - number
    per_slice = number[contents.content_of]
    begin = np.repeat(first[contents.content_of] - (np.cumsum(per_slice) - per_slice), per_slice)
    source = begin + np.arange(int(per_slice.sum()))
    half_ns = np.maximum(np.floor(least_s[content, column] * (1e9 / 2)), 1.0).astype(np.int64)[source]
    nothing: IntArray = np.zeros(len(source), dtype=np.int64)
    return OptionTable(
        start=np.repeat(contents.start, per_slice),
        stop=np.repeat(contents.stop, per_slice),
        max_in_flight=until[column][source],
        forward_ns=half_ns,
        backward_ns=half_ns.copy(),
        step_ns=np.maximum(np.floor(step_s[content] * 1e9), 1.0).astype(np.int64)[source],
        config=nothing,
        num_recomputed=nothing.copy(),
        configs=(),
    )
