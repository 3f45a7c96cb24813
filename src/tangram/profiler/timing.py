"""Times one piece of a model: forward, backward, recomputation, optimizer step, and its memory.

What a pass holds: 16-bit gradients are added into fp32 ones as they appear (as Megatron-Core accumulates
them), fp32 gradients in place; that is part of backward. The optimizer is AdamW on fp32 weights (master
copies where the weights are 16-bit, which are then written back), once per step.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils.checkpoint import checkpoint

from tangram.profiler.clock import Clock, clock_of
from tangram.profiler.memory import CPU_NOTE, PassMemory, pass_memory
from tangram.profiler.piece import Piece
from tangram.profiler.results import Spread

LEARNING_RATE = 1e-4


@dataclass(frozen=True, slots=True)
class Effort:
    """How often things run.

    Attributes:
        warmup: Runs before the clock counts.
        repeats: Runs that count.
    """

    warmup: int = 3
    repeats: int = 10


@dataclass(frozen=True, slots=True)
class PieceTiming:
    """What was measured of a piece.

    Attributes:
        spreads: ``forward_s``, ``backward_s``, ``recompute_s``, and ``optimizer_s`` where it fits.
        memory: Of one pass.
        notes: What was not measured, and why.
    """

    spreads: dict[str, Spread]
    memory: PassMemory
    notes: tuple[str, ...]


def time_piece(piece: Piece, effort: Effort) -> PieceTiming:
    """Times a piece.

    Raises:
        torch.OutOfMemoryError: A pass does not fit. (An optimizer step that does not is noted.)
    """
    clock = clock_of(piece.shard.device)
    gradients = _Gradients(piece)
    backward = _backward(piece)
    spreads = _passes(piece, backward, clock, effort)
    spreads["recompute_s"] = _recompute(piece, backward, clock, effort)
    memory = pass_memory(piece, backward)
    notes = [CPU_NOTE] if memory.workspace_bytes is None else []
    try:
        spreads["optimizer_s"] = _optimizer(piece, gradients, clock, effort)
    except torch.OutOfMemoryError:
        notes.append("no optimizer step: its states do not fit beside the gradients")
    return PieceTiming(spreads, memory, tuple(notes))


class _Gradients:
    """fp32 gradients of a piece; autograd adds to them."""

    def __init__(self, piece: Piece) -> None:
        self.of = [torch.zeros_like(p, dtype=torch.float32) for p in piece.parameters()]
        for parameter, total in zip(piece.parameters(), self.of, strict=True):
            if parameter.dtype == torch.float32:
                parameter.grad = total
            else:
                parameter.register_post_accumulate_grad_hook(_adder(total))


def _adder(total: Any) -> Callable[[Any], None]:
    def add(parameter: Any) -> None:
        total.add_(parameter.grad)
        parameter.grad = None

    return add


def _backward(piece: Piece) -> Callable[[Any], None]:
    """Returns what runs backward for an output: a loss by itself, anything else from a given gradient."""
    output = piece(piece.sample())
    if output.dim() == 0:
        return lambda loss: loss.backward()
    gradient = torch.empty_like(output.detach()).normal_(0.0, 1e-3, generator=piece.shard.generator())
    return lambda out: out.backward(gradient)


def _passes(piece: Piece, backward: Callable[[Any], None], clock: Clock, effort: Effort) -> dict[str, Spread]:
    """Times forward and backward, one after the other."""
    marks = []
    x = piece.sample()
    for repeat in range(effort.warmup + effort.repeats):
        x.grad = None
        start = clock.mark()
        output = piece(x)
        middle = clock.mark()
        backward(output)
        end = clock.mark()
        del output
        if repeat >= effort.warmup:
            marks.append((start, middle, end))
    clock.settle()
    return {
        "forward_s": Spread.of([clock.seconds(start, middle) for start, middle, _ in marks]),
        "backward_s": Spread.of([clock.seconds(middle, end) for _, middle, end in marks]),
    }


def _recompute(piece: Piece, backward: Callable[[Any], None], clock: Clock, effort: Effort) -> Spread:
    """Times the second forward pass of a checkpointed piece: marked where backward starts and ends it.

    Backward stops it as soon as it has what it needs, so it may be a little shorter than the first one.
    """
    marks: list[Any] = []

    def run(x: Any) -> Any:
        again = bool(marks) and marks[-1] is None
        if again:
            marks[-1] = clock.mark()
        try:
            return piece(x)
        finally:
            marks.append(clock.mark() if again else None)

    x = piece.sample()
    for _ in range(effort.warmup + effort.repeats):
        x.grad = None
        backward(checkpoint(run, x, use_reentrant=False, preserve_rng_state=False))
    clock.settle()
    pairs = list(zip(marks[::2], marks[1::2], strict=True))[effort.warmup :]
    return Spread.of([clock.seconds(start, end) for start, end in pairs])


def _optimizer(piece: Piece, gradients: _Gradients, clock: Clock, effort: Effort) -> Spread:
    """Times AdamW, and writing 16-bit weights back."""
    weights = list(piece.parameters())
    masters = [p if p.dtype == torch.float32 else torch.nn.Parameter(p.detach().float()) for p in weights]
    for master, gradient in zip(masters, gradients.of, strict=True):
        master.grad = gradient
    optimizer = torch.optim.AdamW(masters, lr=LEARNING_RATE, fused=True)
    copies = [(w.detach(), m.detach()) for w, m in zip(weights, masters, strict=True) if w is not m]
    marks = []
    for repeat in range(effort.warmup + effort.repeats):
        start = clock.mark()
        optimizer.step()
        if copies:
            torch._foreach_copy_([weight for weight, _ in copies], [master for _, master in copies])
        end = clock.mark()
        if repeat >= effort.warmup:
            marks.append((start, end))
    clock.settle()
    return Spread.of([clock.seconds(start, end) for start, end in marks])
