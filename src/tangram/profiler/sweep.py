"""Times all layers of a request, one after the other, and says of each that it leaves out why it does."""

from __future__ import annotations

from collections.abc import Callable

import torch

from tangram.model.atoms import layer_parts
from tangram.model.params import part_params
from tangram.model.spec import AttentionSpec, FeedForwardSpec, LayerSpec
from tangram.profiler.device import Device, software
from tangram.profiler.layers import build
from tangram.profiler.request import LayerRequest, PieceKind, PieceSpec
from tangram.profiler.results import Skipped, TimedLayer
from tangram.profiler.shard import Shard, arithmetic
from tangram.profiler.timing import Effort, PieceTiming, time_piece
from tangram.profiles.records import LayerTime
from tangram.units import format_bytes

GRADIENT_BYTES = 4
"""Gradients are accumulated in fp32."""

LOGIT_BYTES = 4
"""The loss runs in fp32."""


def time_layers(
    request: LayerRequest,
    device: Device,
    stack: str,
    progress: Callable[[str], None] = lambda text: None,
    keep: Callable[[LayerTime], None] = lambda record: None,
) -> tuple[tuple[TimedLayer, ...], tuple[Skipped, ...]]:
    """Times every piece of a request with every tp degree and micro-batch.

    Args:
        request: What to time.
        device: Where.
        stack: Under which name of a software stack the records go.
        progress: Is told what comes next.
        keep: Is given every record as soon as it is there, so that no failure later loses it.

    Returns:
        What was timed, and what was not, both in the order of pieces, tp and micro-batches.
    """
    timed: list[TimedLayer] = []
    skipped: list[Skipped] = []
    sizes = [(piece, tp, mb) for piece in request.pieces for tp in request.tp for mb in request.micro_batch]
    for number, (piece, tp, micro_batch) in enumerate(sizes, 1):
        progress(f"{number} of {len(sizes)}: {piece.shape}, tp {tp}, micro-batch {micro_batch}")
        found = _time(request, piece, tp, micro_batch, device)
        if isinstance(found, str):
            skipped.append(Skipped(piece.shape, tp, micro_batch, found))
        else:
            record = _record(request, piece, tp, micro_batch, device, stack, found)
            timed.append(TimedLayer(record, found.spreads, found.notes))
            keep(record)
    return tuple(timed), tuple(skipped)


def least_bytes(piece: PieceSpec, shard: Shard) -> int:
    """Returns memory that timing a piece cannot do without.

    Sharded parameters with their gradients; of a layer what its products give, of a head its logits.
    """
    model, tp, tokens = shard.model, shard.tp, shard.tokens
    element_bytes = shard.precision.element_bytes
    state_bytes = element_bytes + GRADIENT_BYTES
    if piece.layer is None:
        logits = tokens * shard.vocab_rows * LOGIT_BYTES if piece.kind is PieceKind.HEAD else 0
        return shard.vocab_rows * model.embedding_width * state_bytes + logits
    number = model.layers.index(piece.layer)
    num_params = sum(part_params(model, number, part).total for part in layer_parts(piece.layer)) // tp
    columns = _attention_columns(piece.layer.attention) + _block_columns(piece.layer)
    return num_params * state_bytes + tokens * columns * element_bytes // tp


def _attention_columns(attention: AttentionSpec) -> int:
    """What attention keeps of a token, in elements over all ranks: queries, keys, values."""
    if attention.latent is None:
        return attention.query_width + 2 * attention.kv_width
    return 2 * attention.query_width + attention.value_width


def _block_columns(layer: LayerSpec) -> int:
    """What the products up give for a token, in elements over all ranks."""
    block = layer.feed_forward
    if isinstance(block, FeedForwardSpec):
        return block.num_up_matrices * block.intermediate_size
    routed = block.top_k * block.expert.num_up_matrices * block.expert.intermediate_size
    shared = block.shared
    return routed + (shared.num_up_matrices * shared.intermediate_size if shared is not None else 0)


def _time(
    request: LayerRequest, piece: PieceSpec, tp: int, micro_batch: int, device: Device
) -> PieceTiming | str:
    """Returns the timing, or why there is none."""
    precision = request.precision
    shard = Shard(request.model, tp, micro_batch, request.seq_len, precision, device.torch_device)
    free, least = device.free_bytes(), least_bytes(piece, shard)
    if free is not None and least > free:
        return f"needs {format_bytes(least)} and more; {format_bytes(free)} are free"
    try:
        with arithmetic(precision):
            return time_piece(build(piece, shard), Effort(request.warmup, request.repeats))
    except torch.OutOfMemoryError:
        return f"does not fit in the memory of {device.words}"
    except RuntimeError as error:
        text = str(error).partition("\n")[0]
        if "not implemented for" in text:  # PyTorch's words for a kernel that a device does not have
            return f"PyTorch has no kernel for it: {text}"
        if "not enough memory" in text or "can't allocate memory" in text:  # the CPU's allocator
            return f"does not fit in the memory of {device.words}"
        raise
    finally:
        if device.is_cuda:
            torch.cuda.empty_cache()


def _record(
    request: LayerRequest,
    piece: PieceSpec,
    tp: int,
    micro_batch: int,
    device: Device,
    stack: str,
    timing: PieceTiming,
) -> LayerTime:
    medians = {name: spread.median_s for name, spread in timing.spreads.items()}
    return LayerTime(
        gpu=device.gpu,
        stack=stack,
        precision=request.precision,
        shape=piece.shape,
        tp=tp,
        micro_batch=micro_batch,
        includes_tp_comm=False,
        forward_s=medians["forward_s"],
        backward_s=medians["backward_s"],
        recompute_s=medians["recompute_s"],
        optimizer_s=medians.get("optimizer_s"),
        activation_bytes=timing.memory.activation_bytes,
        workspace_bytes=timing.memory.workspace_bytes,
        source=f"{software(device)}, {request.repeats} repeats",
    )
