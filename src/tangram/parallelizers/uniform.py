"""The uniform planner: one configuration for every stage of the slice, layers split evenly.

It is what planners for equal GPUs do, and what the paper calls Galvatron-uniform: data, tensor, pipeline,
context and expert parallelism and fully sharded data (zero 3), each the same for all stages; recomputation of
no layer or of every layer. Written anew from the paper's description: the public Galvatron has no such mode
(and no experts in its search).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

import numpy as np

from tangram.cluster.spec import Portion
from tangram.cost.configs import legal_configs
from tangram.cost.types import BoolArray, FloatArray, IntArray, StageConfig
from tangram.job import Recompute, divisors
from tangram.model.atoms import Atom
from tangram.parallelizers.contents import slice_contents
from tangram.parallelizers.protocols import Capabilities, SlicePlan, SliceRequest, StageChoice
from tangram.parallelizers.totals import StageTotals, nanoseconds, stage_totals

_UNLIMITED = 1 << 40  # Micro-batches in flight: all that a step can have.


class UniformPlanner:
    """Plans a slice with one uniform (dp, tp, pp, cp, zero, ep) on its portion."""

    name = "uniform"
    capabilities = Capabilities(seconds_per_query=0.004)

    def plan(self, request: SliceRequest) -> Sequence[SlicePlan]:
        """Returns plans that fit at ``request.in_flight``, the fastest first.

        With stage times ``t_i``, step-end times ``u_i`` and ``m`` micro-batches a plan is judged by
        ``sum t_i + (m - 1) max t_i + max u_i``; transfers inside of the portion are left to the referee. A
        slower plan is returned only if it still fits with more micro-batches in flight than all faster ones.
        The last stage holds ``request.in_flight`` micro-batches, each stage in front of it one more.
        """
        candidates: list[_Candidate] = []
        for num_stages in divisors(request.portion.num_gpus):
            portion = equal_portion(request.portion, num_stages)
            pieces = split_evenly(request, num_stages)
            if portion is not None and pieces is not None:
                candidates += _candidates(request, portion, pieces)
        candidates.sort(key=lambda c: c.order)
        plans: list[SlicePlan] = []
        most_in_flight = request.in_flight - 1
        for candidate in candidates:
            if candidate.max_in_flight > most_in_flight:
                plans.append(candidate.plan(request.atoms))
                most_in_flight = candidate.max_in_flight
        return plans


@dataclass(frozen=True, slots=True)
class _Candidate:
    """One uniform plan: its stages, and what it is judged by."""

    pieces: tuple[tuple[int, int], ...]
    portion: Portion
    config: StageConfig
    full: bool
    max_in_flight: int
    order: tuple[int, ...]

    def plan(self, atoms: Sequence[Atom]) -> SlicePlan:
        """Returns it as a slice plan."""
        return SlicePlan(
            tuple(
                StageChoice(
                    start,
                    stop,
                    self.portion,
                    self.config,
                    tuple(self.full and not (a.is_embedding or a.is_head) for a in atoms[start:stop]),
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
        return _dictated(request, num_stages, pins.layers_per_stage)
    body = [i for i in range(request.start, request.stop) if request.atoms[i].layer_idxs]
    layers = [i for i in body if i == body[0] or _first_layer(request, i) != _first_layer(request, i - 1)]
    units = layers if len(layers) >= num_stages else body
    if num_stages > max(1, len(units)):
        return None
    inner = [units[i * len(units) // num_stages] for i in range(1, num_stages)]
    return tuple(pairwise([request.start, *inner, request.stop]))


def _first_layer(request: SliceRequest, position: int) -> int:
    return request.atoms[position].layer_idxs[0]


def _dictated(
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


def _candidates(
    request: SliceRequest, portion: Portion, pieces: tuple[tuple[int, int], ...]
) -> list[_Candidate]:
    """Returns the fitting plans of this split, one per configuration and recomputation."""
    pinned = request.job.pins.recompute
    configs = [
        c
        for c in legal_configs(request.model, portion, request.micro_batch, request.job)
        if c.selective is (pinned is Recompute.SELECTIVE)
    ]
    if not configs:
        return []
    contents = slice_contents(request.atoms, pieces)
    plain = stage_totals(
        request.model, request.atoms, contents, portion, configs, request.micro_batch, request.job
    )
    modes = {False: plain, True: plain.all_recomputed()}
    if pinned is not None:
        del modes[pinned is not Recompute.FULL]
    found = []
    for full, totals in modes.items():
        in_flight = _max_in_flight(request, totals, contents.content_of)
        value_ns = _value_ns(request, totals, contents.content_of)
        for idx in np.flatnonzero(in_flight >= request.in_flight):
            config = configs[idx]
            order = (int(value_ns[idx]), len(pieces), config.tp, config.zero, int(full), int(idx))
            found.append(_Candidate(pieces, portion, config, full, int(in_flight[idx]), order))
    return found


def _value_ns(request: SliceRequest, totals: StageTotals, content_of: IntArray) -> IntArray:
    """Returns what each configuration is judged by; shape ``(num_configs,)``."""
    time_ns = (nanoseconds(totals.forward_s) + nanoseconds(totals.backward_s))[content_of]
    step_ns = nanoseconds(totals.step_s)[content_of]
    value: IntArray = (
        time_ns.sum(axis=0) + (request.num_micro_batches - 1) * time_ns.max(axis=0) + step_ns.max(axis=0)
    )
    return value


def _max_in_flight(request: SliceRequest, totals: StageTotals, content_of: IntArray) -> IntArray:
    """Returns the largest number in flight at the last stage that fits everywhere; ``(num_configs,)``."""
    activations: FloatArray = totals.activation_bytes[content_of]
    room: FloatArray = totals.room_bytes[content_of]
    held = np.floor(np.maximum(room, 0.0) / np.maximum(activations, 1.0))
    whole_step: BoolArray = held >= request.num_micro_batches
    ahead = np.arange(len(content_of) - 1, -1, -1)[:, None]  # Each stage in front holds one more.
    fits = np.where(whole_step, _UNLIMITED, held - ahead)
    fits[room < 0] = 0
    largest: IntArray = fits.min(axis=0).astype(np.int64)
    return largest
