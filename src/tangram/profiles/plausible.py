"""What no GPU can do was not measured, or not in that precision, unit or shape."""

from __future__ import annotations

from tangram.cluster.catalog import gpu
from tangram.errors import InputError
from tangram.profiles.records import LayerTime
from tangram.profiles.shape_pieces import forward_flop

# Boost clocks carry measurements above the rated peak: 78 TFLOP/s on an RTX 3090 rated 71 (catalog.json).
_ABOVE_PEAK = 1.25


def check_rate(record: LayerTime, where: str) -> None:
    """Refuses a record whose forward pass would run faster than the data sheet's peak.

    So it does where the part has no arithmetic in that precision at all.

    The forward pass of causal attention is counted with half of its square, so that no kernel is refused for
    skipping the other half. A part that the catalogue does not know is not checked.

    Raises:
        InputError: The time is too short, or the part lacks the precision.
    """
    try:
        part = gpu(record.gpu)
    except InputError:
        return
    peak = part.peak_flop_per_s.get(record.precision)
    if peak is None:
        legal = ", ".join(precision.value for precision in part.peak_flop_per_s)
        raise InputError(
            f"{part.name} has no {record.precision.value} arithmetic",
            where=where,
            hint=f"give --precision: {legal}",
        )
    flop = forward_flop(record.shape, record.micro_batch) / record.tp
    seconds = record.forward_s
    if seconds is None and record.forward_backward_s is not None:
        # The backward pass has twice the products of the forward pass.
        flop, seconds = 3 * flop, record.forward_backward_s
    if seconds is None or flop / seconds <= _ABOVE_PEAK * peak:
        return
    raise InputError(
        f"{record.shape} at tp {record.tp}, micro-batch {record.micro_batch} would run at "
        f"{flop / seconds / 1e12:.0f} TFLOP/s, but {record.gpu} has {peak / 1e12:.0f} in "
        f"{record.precision.value}",
        where=where,
        hint="check --precision, --model, --seq-len and the unit of time",
    )
