"""Memory of a plan's stages: do the items add up, and do they fit?"""

from __future__ import annotations

from tangram.plan.violation import Facts, StageFacts, Violation, Violations
from tangram.units import format_bytes

MEMORY_ITEMS = ("weights", "gradients", "optimizer", "activations", "workspace", "reserve")

MARGIN = "margin"
"""May stand behind them: what the peak holds beyond the best estimate, so that the upper one has to fit."""


def check_memory(facts: Facts) -> Violations:
    """Checks that peak is the sum of the items, headroom what is left, and that nothing exceeds the GPU."""
    for item in facts.stages:
        yield from _items(item)
        yield from _sums(item)


def _items(item: StageFacts) -> Violations:
    memory, where = item.stage.predicted.memory, f"{item.where}.predicted.memory"
    if set(memory) - {MARGIN} != set(MEMORY_ITEMS):
        yield Violation("memory-items", where, f"has {', '.join(memory)}; due are {', '.join(MEMORY_ITEMS)}")
    for name, size in memory.items():
        if size < 0:
            yield Violation("memory-negative", f"{where}.{name}", f"is {size} bytes")


def _sums(item: StageFacts) -> Violations:
    predicted, where = item.stage.predicted, f"{item.where}.predicted"
    total = sum(predicted.memory.values())
    if predicted.peak_bytes != total:
        yield Violation(
            "memory-sum", f"{where}.peak_bytes", f"is {predicted.peak_bytes}; the items sum to {total}"
        )
    left = predicted.capacity_bytes - predicted.peak_bytes
    if predicted.headroom_bytes != left:
        yield Violation(
            "memory-headroom",
            f"{where}.headroom_bytes",
            f"is {predicted.headroom_bytes}; capacity minus peak is {left}",
        )
    if predicted.peak_bytes > predicted.capacity_bytes:
        yield Violation(
            "memory-over-capacity",
            f"{where}.peak_bytes",
            f"{format_bytes(predicted.peak_bytes)} do not fit into the GPU's "
            f"{format_bytes(predicted.capacity_bytes)}; {format_bytes(-left)} too much",
        )
    usable = min((gpu.usable_memory_bytes for gpu in item.gpus), default=None)
    if usable is not None and predicted.capacity_bytes > usable:
        yield Violation(
            "capacity-too-large",
            f"{where}.capacity_bytes",
            f"is {predicted.capacity_bytes}; the smallest GPU of the stage can use {usable}",
        )
    held = predicted.in_flight * predicted.activation_bytes
    activations = predicted.memory.get("activations")
    # Both sides are rounded to whole bytes, the right one once per micro-batch.
    if activations is not None and abs(activations - held) > predicted.in_flight:
        yield Violation(
            "activations-differ",
            f"{where}.memory.activations",
            f"is {activations}; {predicted.in_flight} x {predicted.activation_bytes} in flight are {held}",
        )
