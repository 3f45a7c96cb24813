"""The best mixtures for a few stages: what the table leaves out, where it counts.

The table of ``layerwise`` fills all slices of a portion at once. Its mixtures are within one atom of the
best, and it has neither stages of three layouts nor, with layers of several kinds, of two. In a stage of four
layers an atom is a quarter. The knapsack of ``galvatron`` leaves nothing of that out but rounding, and takes
some milliseconds per stage: nothing for the stages of one plan.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tangram.parallelizers.book import stage_book
from tangram.parallelizers.galvatron.mixing import Grain
from tangram.parallelizers.galvatron.stages import PortionStages
from tangram.parallelizers.protocols import StageChoice, TableRequest
from tangram.units import MIB

Asked = tuple[int, int, int]
"""A slice, ``[start, stop)``, and micro-batches in flight."""

_GRAIN = Grain(num_steps=1024, level_bytes=16 * MIB, worth_frac=1e-4)


def finest_stages(request: TableRequest, asked: Sequence[Asked]) -> list[StageChoice]:
    """Returns the stages of least ``t + u / m`` that the knapsack has; none for a slice that does not fit.

    Args:
        request: With a portion; its slices do not matter.
        asked: Slices and numbers in flight.
    """
    if not asked:
        return []
    slices = tuple(sorted({(start, stop) for start, stop, _ in asked}))
    book = stage_book(replace(request, slices=slices))
    stages = PortionStages(book, request.portion, slices, _GRAIN)
    found = []
    for start, stop, in_flight in asked:
        window = stages.window(in_flight)
        stages.ask(window, start, stop)
        stage = stages.stage(window, start, stop)
        if stage is not None and stage not in found:
            found.append(stage)
    return found
