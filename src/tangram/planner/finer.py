"""Finer stages for a plan that is found: each of its stages, and those a cut away, put to the knapsack."""

from __future__ import annotations

from collections.abc import Sequence, Set
from dataclasses import dataclass, replace

import numpy as np

from tangram.cluster.spec import Portion
from tangram.cost.types import IntArray
from tangram.parallelizers.layerwise.finest import Asked, finest_stages
from tangram.parallelizers.protocols import SlicePlan, TableRequest
from tangram.planner.problem import Pieces, single_stage_pieces
from tangram.planner.queries import max_in_flight, stage_costs
from tangram.planner.referee import Found
from tangram.planner.space import SearchSpace
from tangram.planner.tables import TableSet
from tangram.units import NS_PER_S

FINEST = "layerwise, finest"
"""Whose stages these are."""

_SHIFTS = ((0, 0), (-1, 0), (1, 0), (0, -1), (0, 1))  # atoms by which the ends of a slice move


@dataclass(frozen=True, slots=True)
class FinerStages:
    """What the knapsack knows of the stages of a plan, and of those that take one atom more or less at either
    end, on the same GPUs and with as many micro-batches in flight.

    Attributes:
        near: Positions of the pieces of these slices on these GPUs, in the table.
        pieces: Not matched by any of them in everything.
        plans: Where each of these starts, and its stage.
        asked: Questions by portion that they answer.
    """

    near: IntArray
    pieces: Pieces
    plans: tuple[tuple[int, SlicePlan], ...]
    asked: frozenset[tuple[int, Asked]]

    def added_to(self, tables: TableSet) -> TableSet:
        """Returns a table with the new pieces behind those it has."""
        return tables.more(FINEST, self.pieces, self.plans)


def finer_stages(
    pieces: Pieces,
    found: Found,
    space: SearchSpace,
    request: TableRequest,
    allowed: frozenset[tuple[int, int]] | None,
    answered: Set[tuple[int, Asked]],
) -> FinerStages | None:
    """Asks about a plan; None where nothing is better than what there is.

    Args:
        pieces: All of the plan's micro-batch size.
        found: The plan.
        space: Of the search.
        request: As the pieces were asked for; the portion does not matter.
        allowed: Slices that the user's own cut allows; None for all.
        answered: Questions by portion whose answers are among the pieces; they are not asked again.
    """
    near: list[IntArray] = []
    made: list[Pieces] = []
    plans: list[tuple[int, SlicePlan]] = []
    asked: list[tuple[int, Asked]] = []
    for portion, questions in _questions(found, len(request.atoms), allowed).items():
        here = replace(request, portion=portion)
        idx = space.index(portion)
        known = _known(pieces, space, idx, questions)
        near.append(known)
        open_questions = [question for question in questions if (idx, question) not in answered]
        asked += [(idx, question) for question in open_questions]
        own = [SlicePlan((stage,)) for stage in finest_stages(here, open_questions)]
        new = _pieces(space, idx, here, own)
        kept = [i for i in range(len(new)) if not _is_matched(pieces.take(known), new, i)]
        made.append(new.take(np.array(kept, dtype=np.int64)))
        plans += [(own[i].stages[0].start, own[i]) for i in kept]
    if not plans:
        return None
    return FinerStages(
        np.sort(np.concatenate(near)), Pieces.concatenate(made), tuple(plans), frozenset(asked)
    )


def _questions(
    found: Found, num_atoms: int, allowed: frozenset[tuple[int, int]] | None
) -> dict[Portion, list[Asked]]:
    asked: dict[Portion, list[Asked]] = {}
    for stage, times in zip(found.stages, found.pipeline.stages, strict=True):
        of_portion = asked.setdefault(stage.portion, [])
        for before, behind in _SHIFTS:
            start, stop = stage.start + before, stage.stop + behind
            question = start, stop, times.in_flight
            inside = 0 <= start < stop <= num_atoms and (allowed is None or (start, stop) in allowed)
            if inside and question not in of_portion:
                of_portion.append(question)
    return asked


def _known(pieces: Pieces, space: SearchSpace, idx: int, questions: Sequence[Asked]) -> IntArray:
    """Positions of the pieces of some slices on a portion."""
    here = pieces.island == space.portion_islands[idx]
    here &= (pieces.gpus == space.portion_units(idx)) & (pieces.head_class == space.portion_classes[idx])
    at = np.flatnonzero(here & (pieces.num_stages == 1))
    width = int(pieces.stop.max(initial=0)) + 1
    asked = [start * width + stop for start, stop, _ in questions]
    known: IntArray = at[np.isin(pieces.start[at] * width + pieces.stop[at], asked)]
    return known


def _pieces(space: SearchSpace, idx: int, request: TableRequest, plans: Sequence[SlicePlan]) -> Pieces:
    """Pieces of plans of one stage on a portion."""
    rows = []
    for plan in plans:
        (cost,) = costs = stage_costs(request, plan)
        times = (round(t * NS_PER_S) for t in (cost.forward_s, cost.backward_s, cost.step_s))
        rows.append((plan.stages[0].start, plan.stages[0].stop, max_in_flight(request, costs), *times))
    start, stop, longest, forward, backward, step = np.array(rows, dtype=np.int64).reshape(-1, 6).T
    island = space.portion_islands[idx]
    return single_stage_pieces(
        start=start,
        stop=stop,
        island=island,
        gpus=space.portion_units(idx),
        link_class=space.portion_classes[idx],
        on_node=space.on_node(island, request.portion),
        max_in_flight=longest,
        forward_ns=forward,
        backward_ns=backward,
        step_ns=step,
        num_micro_batches=request.num_micro_batches,
        payload=np.arange(len(start)),
    )


def _is_matched(known: Pieces, made: Pieces, i: int) -> bool:
    """Whether a known piece of the portion, of the same slice, is no worse than a new one in anything."""
    matches = (known.start == made.start[i]) & (known.stop == made.stop[i])
    matches &= known.time_ns - known.forward_ns <= made.time_ns[i] - made.forward_ns[i]
    matches &= known.forward_ns <= made.forward_ns[i]
    matches &= (known.head_step_ns <= made.head_step_ns[i]) & (known.max_in_flight >= made.max_in_flight[i])
    return bool(matches.any())
