"""Memory of one pass over a piece: what backward keeps, and the largest transient.

On CUDA the allocator says it. On any device, autograd says which tensors it keeps: their storages are counted
once each, without parameters, tables and the buffers that stand in for collectives. Of a head, tensors as
large as its logits are workspace, not activations: they exist for one micro-batch at a time.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from tangram.profiler.ends import Head
from tangram.profiler.experts import Experts
from tangram.profiler.piece import Piece

CPU_NOTE = "no workspace: PyTorch keeps no count of what it allocates on a CPU"


@dataclass(frozen=True, slots=True)
class PassMemory:
    """Memory of one pass.

    Attributes:
        activation_bytes: Kept from forward to backward, the input included, the output not.
        workspace_bytes: Largest transient beyond that; None where the device does not say.
    """

    activation_bytes: int
    workspace_bytes: int | None


@dataclass(frozen=True, slots=True)
class SavedTensors:
    """What autograd keeps.

    Attributes:
        kept_bytes: For as long as the micro-batch is in flight.
        transient_bytes: As large as logits.
        holds_output: Whether the output is among it.
    """

    kept_bytes: int
    transient_bytes: int
    holds_output: bool


@dataclass(frozen=True, slots=True)
class Watermarks:
    """Allocated bytes of a CUDA device around one pass.

    Attributes:
        before: Before the input was made.
        between: After forward, with input and output alive.
        peak: Largest since ``before``, to the end of backward.
        output_bytes: Size of the output.
    """

    before: int
    between: int
    peak: int
    output_bytes: int


def pass_memory(piece: Piece, backward: Callable[[Any], None]) -> PassMemory:
    """Runs one pass and returns what it kept.

    Args:
        piece: What runs.
        backward: Runs backward for an output.
    """
    saved = saved_tensors(piece)
    kept = sum(module.gathered_bytes for module in piece.modules() if isinstance(module, Experts))
    if piece.shard.device.type != "cuda":
        return PassMemory(saved.kept_bytes + kept, None)
    found = from_watermarks(_watermarks(piece, backward), saved)
    assert found.workspace_bytes is not None
    return PassMemory(found.activation_bytes + kept, found.workspace_bytes)


def saved_tensors(piece: Piece) -> SavedTensors:
    """Runs forward and counts what autograd keeps for backward; rounded to nothing, storages as they are."""
    foreign = {tensor.untyped_storage().data_ptr() for tensor in (*piece.parameters(), *piece.buffers())}
    for module in piece.modules():
        if isinstance(module, Piece):
            buffers = [buffer for exchange in module.exchanges for buffer in exchange.buffers]
            foreign |= {buffer.untyped_storage().data_ptr() for buffer in buffers}
    logits = piece.num_logits if isinstance(piece, Head) else None
    kept: dict[int, int] = {}
    transient: dict[int, int] = {}

    def pack(tensor: Any) -> Any:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in foreign:
            wide = logits is not None and tensor.numel() >= logits
            (transient if wide else kept)[storage.data_ptr()] = storage.nbytes()
        return tensor

    # Input and output stay alive until the count is done, so that no storage takes another's place.
    x = piece.sample()
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        output = piece(x)
    holds_output = output.untyped_storage().data_ptr() in kept
    return SavedTensors(sum(kept.values()), sum(transient.values()), holds_output)


def from_watermarks(marks: Watermarks, saved: SavedTensors) -> PassMemory:
    """Returns the memory of a pass from what the allocator said around it.

    What is alive between forward and backward is the input, what is kept, logits, and the output; the output
    belongs to whoever comes next.
    """
    output_bytes = 0 if saved.holds_output else marks.output_bytes
    activations = marks.between - marks.before - output_bytes - saved.transient_bytes
    return PassMemory(max(activations, 0), max(marks.peak - marks.before - activations, 0))


def _watermarks(piece: Piece, backward: Callable[[Any], None]) -> Watermarks:
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_stats()["allocated_bytes.all.current"]
    output = piece(piece.sample())
    between = torch.cuda.memory_stats()["allocated_bytes.all.current"]
    output_bytes = output.nbytes
    backward(output)
    peak = torch.cuda.memory_stats()["allocated_bytes.all.peak"]
    return Watermarks(before, between, peak, output_bytes)
