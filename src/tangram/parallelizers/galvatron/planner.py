"""The parallelizer ``galvatron``: stages whose layers have strategies of their own, and cuts between them.

It does what the search of Galvatron does (VLDB'23; the public program's dynamic programme over layers and
memory), written anew on Tangram's cost model and without what is wrong there: time is that of a pipeline, not
a sum over layers; cuts are chosen, not even; every change of layout is priced by the links; ZeRO 3 gathers as
often as it does; and experts have degrees. Like the original it also looks at plans of one strategy for all
layers of all stages (``uniform``), and takes the better one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import pairwise
from math import floor

import numpy as np

from tangram.cluster.spec import Portion
from tangram.cost.types import StageCost
from tangram.job import divisors
from tangram.parallelizers.book import StageBook, stage_book
from tangram.parallelizers.galvatron.cuts import best_cuts
from tangram.parallelizers.galvatron.mixing import Grain
from tangram.parallelizers.galvatron.stages import PortionStages
from tangram.parallelizers.protocols import Capabilities, SlicePlan, SliceRequest
from tangram.parallelizers.uniform import UniformPlanner, equal_portion, split_evenly

_MANY_ATOMS = 200  # Of a model with more, only the slices asked about are costed, and cut evenly.
_PORTIONS = 12  # Whose stages are remembered, a few MiB each.
_PLANS = 32  # In one answer.
_NEARLY = 1.01  # The cuts' measure of time and that of plans differ by less.
_UNLIMITED = 1 << 40  # Micro-batches in flight: all that a step can have.


@dataclass(frozen=True, slots=True)
class _Judged:
    """A plan, what it takes, and how many micro-batches its last stage may hold."""

    value_s: float
    limit: int
    plan: SlicePlan


class GalvatronPlanner:
    """Plans a slice with a strategy per layer on its portion."""

    name = "galvatron"
    capabilities = Capabilities(seconds_per_query=0.002)

    def __init__(self, grain: Grain = Grain()) -> None:
        self._grain = grain

    def plan(self, request: SliceRequest) -> Sequence[SlicePlan]:
        """Returns plans that fit at ``request.in_flight``, the fastest first.

        A plan is judged as by the uniform planner: ``sum t_i + (m - 1) max t_i + max u_i``. There is the best
        plan of one stage, and the best of several where that is faster. Where the latter holds more
        micro-batches in flight, so that nobody asks for fewer again, the best plans of one stage for these
        numbers come along.
        """
        answers = self._stages(request, request.portion).answers
        key = (request.start, request.stop, request.in_flight)
        if key not in answers:
            answers[key] = self._answer(request)
        return answers[key]

    def _answer(self, request: SliceRequest) -> list[SlicePlan]:
        single = self._single(request, request.in_flight)
        several = self._several(request, request.in_flight, np.inf if single is None else single.value_s)
        found = [judged for judged in (single, several) if judged is not None]
        reached = 0 if several is None else several.limit
        while single is not None and single.limit < reached and len(found) < _PLANS:
            single = self._single(request, single.limit + 1)
            found += [] if single is None else [single]
        found.sort(key=lambda judged: (judged.value_s, -judged.limit))
        return [judged.plan for judged in found]

    def _single(self, request: SliceRequest, in_flight: int) -> _Judged | None:
        """The best plan of one stage; for a round number of micro-batches in flight, where that fits."""
        if split_evenly(request, 1) is None:
            return None
        stages, whole = self._stages(request, request.portion), [(request.start, request.stop)]
        plan = self._chosen(stages, whole, _round(in_flight))
        return self._judged(request, plan or self._chosen(stages, whole, in_flight))

    def _several(self, request: SliceRequest, in_flight: int, below_s: float) -> _Judged | None:
        """The best plan of two stages or more, or of one strategy for all layers of all equal stages.

        Args:
            request: The question.
            in_flight: At the last stage.
            below_s: Slower plans are not wanted.
        """
        even = UniformPlanner().plan(replace(request, in_flight=in_flight))
        best = self._judged(request, even[0] if even else None)
        if best is not None and best.value_s >= below_s:
            best = None
        for num_stages in divisors(request.portion.num_gpus)[1:]:
            least_s = below_s if best is None else best.value_s
            judged = self._judged(request, self._cut(request, num_stages, in_flight, least_s * _NEARLY))
            if judged is not None and judged.value_s < least_s:
                best = judged
        return best

    def _cut(
        self, request: SliceRequest, num_stages: int, in_flight: int, below_s: float
    ) -> SlicePlan | None:
        """The best cut into so many stages on equal parts of the portion, if it is fast enough."""
        portion, even = equal_portion(request.portion, num_stages), split_evenly(request, num_stages)
        if portion is None or even is None or len(request.atoms) > _MANY_ATOMS:
            return None
        stages = self._stages(request, portion)
        at = _positions(request, num_stages, even)
        front, behind = (side.reshape(-1) for side in np.meshgrid(at, at, indexing="ij"))
        pair = np.flatnonzero(front < behind)
        contents = stages.contents_of(front[pair], behind[pair])
        value_s = np.full((num_stages, len(at) ** 2), np.inf)
        while True:
            windows = [stages.window(in_flight + idx) for idx in range(num_stages - 1, -1, -1)]
            for values, window in zip(value_s, windows, strict=True):
                values[pair] = window.bound_s[contents]
            table = value_s.reshape(num_stages, len(at), len(at))
            found = best_cuts(table, request.num_micro_batches)
            if found is None or found[0] >= below_s:
                return None
            bounds = list(pairwise([at[0], *(at[cut] for cut in found[1]), at[-1]]))
            # A bound is as good as a value until the stage is chosen.
            if sum(stages.ask(w, *piece) for w, piece in zip(windows, bounds, strict=True)) == 0:
                return self._chosen(stages, bounds, in_flight)

    def _stages(self, request: SliceRequest, portion: Portion) -> PortionStages:
        """Returns the stages of a portion; remembered where they serve more than one question."""
        slices = ((request.start, request.stop),) if len(request.atoms) > _MANY_ATOMS else None
        return _remembered(stage_book(request), portion.num_nodes, portion.gpus_per_node, slices, self._grain)

    def _chosen(
        self, stages: PortionStages, pieces: Sequence[tuple[int, int]], in_flight: int
    ) -> SlicePlan | None:
        """Returns the best stages of these slices; None where one does not fit."""
        chosen = []
        for ahead, piece in zip(range(len(pieces) - 1, -1, -1), pieces, strict=True):
            window = stages.window(in_flight + ahead)
            stages.ask(window, *piece)
            stage = stages.stage(window, *piece)
            if stage is None:
                return None
            chosen.append(stage)
        return SlicePlan(tuple(chosen))

    def _judged(self, request: SliceRequest, plan: SlicePlan | None) -> _Judged | None:
        """Costs a plan as the referee does."""
        if plan is None:
            return None
        book = stage_book(request)
        costs = [book.cost(stage, 1) for stage in plan.stages]
        value = sum(c.time_s for c in costs) + max(c.step_s for c in costs)
        value += (request.num_micro_batches - 1) * max(c.time_s for c in costs)
        limit = min(
            _held(cost, request.num_micro_batches) - ahead
            for ahead, cost in zip(range(len(costs) - 1, -1, -1), costs, strict=True)
        )
        return _Judged(value, limit, plan)


def _round(in_flight: int) -> int:
    """Rounds up: above eight to even numbers, above sixteen to multiples of four, and so on."""
    grain = 1 << max(0, (in_flight - 1).bit_length() - 3)
    return -(-in_flight // grain) * grain


def _held(cost: StageCost, num_micro_batches: int) -> int:
    """Returns how many micro-batches a stage may hold, of which ``cost`` counts one."""
    each = cost.activation_bytes * cost.upper_ratio
    fits = floor((cost.capacity_bytes - cost.peak_bytes + each) / each) if each > 0 else num_micro_batches
    return _UNLIMITED if fits >= num_micro_batches else fits


def _positions(request: SliceRequest, num_stages: int, even: Sequence[tuple[int, int]]) -> list[int]:
    """Returns where a slice may be cut, its ends included.

    Between layers as long as there are enough of them, else between atoms; where the user dictates the
    layers of stages, there.
    """
    if request.job.pins.layers_per_stage is not None:
        return [even[0][0], *(stop for _, stop in even)]
    atoms, inner = request.atoms, range(request.start + 1, request.stop)
    whole = [at for at in inner if not {*atoms[at - 1].layer_idxs} & {*atoms[at].layer_idxs}]
    cuts = whole if len(whole) + 1 >= num_stages else list(inner)
    return [request.start, *cuts, request.stop]


@lru_cache(maxsize=_PORTIONS)
def _remembered(
    book: StageBook,
    num_nodes: int,
    gpus_per_node: int,
    slices: tuple[tuple[int, int], ...] | None,
    grain: Grain,
) -> PortionStages:
    return PortionStages(book, Portion(book.island, num_nodes, gpus_per_node), slices, grain)
