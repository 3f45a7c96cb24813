"""Structural checks of a plan: everything that must hold whoever wrote it, and whatever it costs.

The checks read the document alone. That its predictions are what the cost model says is a second check, which
lives where the cost model may be imported.
"""

from __future__ import annotations

from tangram.plan.check_degrees import check_degrees
from tangram.plan.check_gpus import check_gpus
from tangram.plan.check_inputs import check_inputs
from tangram.plan.check_memory import check_memory
from tangram.plan.check_prediction import check_prediction
from tangram.plan.check_schedule import check_schedule
from tangram.plan.check_slices import check_slices
from tangram.plan.schema import PlanDocument
from tangram.plan.violation import Violation, gather

__all__ = ["Violation", "check_plan"]

CHECKS = (
    check_inputs,
    check_gpus,
    check_slices,
    check_degrees,
    check_schedule,
    check_memory,
    check_prediction,
)


def check_plan(doc: PlanDocument) -> list[Violation]:
    """Returns what is wrong with a plan; an empty list means that it can be carried out.

    Never raises: whatever fits the schema can be checked. The order is stable: inputs, GPUs, slices, degrees,
    schedule, memory, prediction.
    """
    facts = gather(doc)
    return [*facts.broken, *(violation for check in CHECKS for violation in check(facts))]
