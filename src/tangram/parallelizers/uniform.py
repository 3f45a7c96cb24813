"""The uniform planner: one configuration for every stage of the slice, layers split evenly.

It is what planners for equal GPUs do, and what the paper calls Galvatron-uniform: data, tensor, pipeline,
context and expert parallelism and fully sharded data (zero 3), each the same for all stages; recomputation of
no layer or of every layer. Written anew from the paper's description: the public Galvatron has no such mode
(and no experts in its search).

Slices overlap, so what any slice costs as one stage is computed once per portion and micro-batch, for all
configurations together; a query only looks its stages up.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate, pairwise

import numpy as np

from tangram.cluster.spec import Portion
from tangram.cost.configs import legal_configs
from tangram.cost.types import BoolArray, FloatArray, IntArray, StageConfig
from tangram.job import Recompute, divisors
from tangram.model.atoms import Atom
from tangram.parallelizers.book import StageBook, stage_book
from tangram.parallelizers.contents import Contents, slice_contents
from tangram.parallelizers.protocols import Capabilities, SlicePlan, SliceRequest, StageChoice
from tangram.parallelizers.totals import StageTotals, nanoseconds, stage_totals

_UNLIMITED = 1 << 40  # Micro-batches in flight: all that a step can have.
_MANY_ATOMS = 200  # Of a model with more, only the slices asked about are costed.
_TABLES = 24  # Portions whose stages are remembered, some 300 KiB each.


class UniformPlanner:
    """Plans a slice with one uniform (dp, tp, pp, cp, zero, ep) on its portion."""

    name = "uniform"
    capabilities = Capabilities(seconds_per_query=0.0005)

    def plan(self, request: SliceRequest) -> Sequence[SlicePlan]:
        """Returns plans that fit at ``request.in_flight``, the fastest first.

        With stage times ``t_i``, step-end times ``u_i`` and ``m`` micro-batches a plan is judged by
        ``sum t_i + (m - 1) max t_i + max u_i``; transfers inside of the portion are left to the referee. A
        slower plan is returned only if it still fits with more micro-batches in flight than all faster ones.
        The last stage holds ``request.in_flight`` micro-batches, each stage in front of it one more.
        """
        splits: list[_Split] = []
        for num_stages in divisors(request.portion.num_gpus):
            portion = equal_portion(request.portion, num_stages)
            pieces = split_evenly(request, num_stages)
            if portion is not None and pieces is not None:
                table, content_of = _stages(request, portion, pieces)
                if table.configs:
                    splits.append(_split(request, portion, pieces, table, content_of))
        return [splits[at].plan(request.atoms, idx) for at, idx in _useful(splits, request.in_flight)]


@dataclass(frozen=True, slots=True, eq=False)
class _Stages:
    """What slice contents cost as one stage of a portion; arrays ``(num_contents, num_columns)``.

    Attributes:
        configs, full: Per column, the configuration, and whether all its layers are recomputed.
        time_ns, step_ns: Forward and backward; step end.
        held: Micro-batches whose activations fit; -1 where not even the rest does.
        order: Per column, what decides between plans of equal time: tp, zero, recomputation, configuration;
            shape ``(num_columns, 4)``.
    """

    configs: tuple[StageConfig, ...]
    full: tuple[bool, ...]
    time_ns: IntArray
    step_ns: IntArray
    held: FloatArray
    order: IntArray


@dataclass(frozen=True, slots=True, eq=False)
class _Split:
    """The uniform plans of one even split; one per column of its stages.

    Attributes:
        pieces, portion: Slice of each stage, and the GPUs of one.
        stages: What they cost.
        value_ns: What a plan is judged by.
        in_flight: Largest number in flight at the last stage that fits everywhere.
    """

    pieces: tuple[tuple[int, int], ...]
    portion: Portion
    stages: _Stages
    value_ns: IntArray
    in_flight: IntArray

    def plan(self, atoms: Sequence[Atom], idx: int) -> SlicePlan:
        """Returns one of them as a slice plan."""
        config, full = self.stages.configs[idx], self.stages.full[idx]
        return SlicePlan(
            tuple(
                StageChoice(
                    start,
                    stop,
                    self.portion,
                    config,
                    tuple(full and not (a.is_embedding or a.is_head) for a in atoms[start:stop]),
                )
                for start, stop in self.pieces
            )
        )


def equal_portion(portion: Portion, num_stages: int) -> Portion | None:
    """Returns the portion of each of ``num_stages`` equal stages, or None where it would be no legal portion.

    Legal are whole nodes, and divisors of the node size on one node.
    """
    if portion.num_gpus % num_stages:
        return None
    gpus, node_size = portion.num_gpus // num_stages, portion.island.gpus_per_node
    if gpus >= node_size:
        return Portion(portion.island, gpus // node_size, node_size) if gpus % node_size == 0 else None
    return Portion(portion.island, 1, gpus) if node_size % gpus == 0 else None


def split_evenly(request: SliceRequest, num_stages: int) -> tuple[tuple[int, int], ...] | None:
    """Splits the slice into stages; None where that is impossible or contradicts what the user dictates.

    The embedding goes with the first stage, the head with the last; what is between them is cut between
    layers as long as there are enough of them, else between atoms.
    """
    pins, whole = request.job.pins, request.stop - request.start == len(request.atoms)
    if pins.pp is not None and (num_stages != pins.pp if whole else num_stages > pins.pp):
        return None
    if pins.layers_per_stage is not None:
        return dictated_stages(request, num_stages, pins.layers_per_stage)
    layer_of = stage_book(request).first_layers
    body = [i for i in range(request.start, request.stop) if layer_of[i] is not None]
    layers = [i for i in body if i == body[0] or layer_of[i] != layer_of[i - 1]]
    units = layers if len(layers) >= num_stages else body
    if num_stages > max(1, len(units)):
        return None
    inner = [units[i * len(units) // num_stages] for i in range(1, num_stages)]
    return tuple(pairwise([request.start, *inner, request.stop]))


def dictated_stages(
    request: SliceRequest, num_stages: int, layers_per_stage: Sequence[int]
) -> tuple[tuple[int, int], ...] | None:
    """Returns the stages of the slice when the user has dictated the layers of each stage."""
    begins: dict[int, int] = {}  # Where a cut before a layer falls; a layer inside of an atom has none.
    for position, atom in enumerate(request.atoms):
        for layer in atom.layer_idxs[:1]:
            begins.setdefault(layer, position)
    cuts = [begins.get(layer) for layer in list(accumulate(layers_per_stage))[:-1]]
    bounds = [0, *(cut for cut in cuts if cut is not None), len(request.atoms)]
    if None in cuts:
        return None
    inside = [b for b in bounds if request.start <= b <= request.stop]
    aligned = inside[:1] == [request.start] and inside[-1:] == [request.stop]
    return tuple(pairwise(inside)) if aligned and len(inside) == num_stages + 1 else None


def _stages(
    request: SliceRequest, portion: Portion, pieces: tuple[tuple[int, int], ...]
) -> tuple[_Stages, IntArray]:
    """Returns what the stages of a split cost, and the content of each."""
    book = stage_book(request)
    if len(request.atoms) > _MANY_ATOMS:
        contents = slice_contents(request.atoms, pieces)
        return _made(book, portion, contents), contents.content_of
    contents = slice_contents(request.atoms)
    num, bounds = len(request.atoms), np.array(pieces)
    start, stop = bounds[:, 0], bounds[:, 1]
    place = start * num - start * (start - 1) // 2 + stop - start - 1  # Slices go by start, then stop.
    return _remembered(book, portion.num_nodes, portion.gpus_per_node), contents.content_of[place]


@lru_cache(maxsize=_TABLES)
def _remembered(book: StageBook, num_nodes: int, gpus_per_node: int) -> _Stages:
    return _made(book, Portion(book.island, num_nodes, gpus_per_node), slice_contents(book.atoms))


def _made(book: StageBook, portion: Portion, contents: Contents) -> _Stages:
    """Costs contents under every configuration and recomputation that a uniform plan may have."""
    job, pinned = book.job, book.job.pins.recompute
    configs = [
        c
        for c in legal_configs(book.model, portion, book.micro_batch, job)
        if c.selective is (pinned is Recompute.SELECTIVE)
    ]
    modes = (False, True) if pinned is None else (pinned is Recompute.FULL,)
    none = np.zeros((len(contents.counts), 0), dtype=np.int64)
    times, steps, held, order = [none], [none], [none.astype(np.float64)], []
    if configs:
        plain = stage_totals(book.model, book.atoms, contents, portion, configs, book.micro_batch, job)
        for full in modes:
            totals = plain.all_recomputed() if full else plain
            times.append(nanoseconds(totals.forward_s) + nanoseconds(totals.backward_s))
            steps.append(nanoseconds(totals.step_s))
            held.append(_held(totals))
            order += [(c.tp, c.zero, int(full), idx) for idx, c in enumerate(configs)]
    return _Stages(
        configs=tuple(configs) * len(modes),
        full=tuple(full for full in modes for _ in configs),
        time_ns=np.concatenate(times, axis=1),
        step_ns=np.concatenate(steps, axis=1),
        held=np.concatenate(held, axis=1),
        order=np.array(order, dtype=np.int64).reshape(-1, 4),
    )


def _held(totals: StageTotals) -> FloatArray:
    """Returns how many micro-batches fit into the room that is left; -1 where that is below zero."""
    room = totals.room_bytes
    fits = np.floor(np.maximum(room, 0.0) / np.maximum(totals.activation_bytes, 1.0))
    held: FloatArray = np.where(room < 0, -1.0, fits)
    return held


def _split(
    request: SliceRequest,
    portion: Portion,
    pieces: tuple[tuple[int, int], ...],
    stages: _Stages,
    content_of: IntArray,
) -> _Split:
    """Judges all plans of one split."""
    time_ns, step_ns = stages.time_ns[content_of], stages.step_ns[content_of]
    value = time_ns.sum(axis=0) + (request.num_micro_batches - 1) * time_ns.max(axis=0) + step_ns.max(axis=0)
    held = stages.held[content_of]
    ahead = np.arange(len(pieces) - 1, -1, -1)[:, None]  # Each stage in front holds one more.
    whole_step: BoolArray = held >= request.num_micro_batches
    fits = np.where(whole_step, _UNLIMITED, np.where(held < 0, 0, held - ahead))
    return _Split(pieces, portion, stages, value, fits.min(axis=0).astype(np.int64))


def _useful(splits: Sequence[_Split], in_flight: int) -> list[tuple[int, int]]:
    """Returns (split, column) of the plans that fit, the fastest first; of slower ones those that fit with
    more in flight than all faster ones.
    """
    if not splits:
        return []
    column = np.concatenate([np.arange(len(s.value_ns)) for s in splits])
    at = np.repeat(np.arange(len(splits)), [len(s.value_ns) for s in splits])
    most = np.concatenate([s.in_flight for s in splits])
    value = np.concatenate([s.value_ns for s in splits])
    able = np.flatnonzero(most >= in_flight)
    # Splits come by their number of stages, ascending.
    ties = np.concatenate([s.stages.order for s in splits])[able]
    ranked = able[np.lexsort((*ties.T[::-1], at[able], value[able]))]
    reached = np.maximum.accumulate(most[ranked])
    useful = ranked[np.concatenate([[True], reached[1:] > reached[:-1]])] if len(ranked) else ranked
    return [(int(at[i]), int(column[i])) for i in useful]
