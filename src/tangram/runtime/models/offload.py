"""Activations in host memory between forward and backward.

Whatever autograd saves is copied to the host when it is saved, and back when backward asks for it; weights,
which are saved too, stay. On a GPU the host's memory is pinned and copies are issued on the stream that
computes: they do not wait for the host, but they do take their turn with kernels.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

SMALLEST_BYTES = 1 << 10
"""What is smaller is not worth a copy."""


@contextmanager
def kept_on_host(parameters: Iterable[Any]) -> Iterator[None]:
    """Keeps what autograd saves in this block in host memory.

    Args:
        parameters: Tensors that stay where they are, and their views.
    """
    weights = {parameter.untyped_storage().data_ptr() for parameter in parameters}

    def pack(tensor: Any) -> Any:
        if tensor.untyped_storage().data_ptr() in weights or tensor.nbytes < SMALLEST_BYTES:
            return tensor
        is_cuda = tensor.device.type == "cuda"
        host = torch.empty(tensor.shape, dtype=tensor.dtype, device="cpu", pin_memory=is_cuda)
        host.copy_(tensor.detach(), non_blocking=is_cuda)
        return tensor.device, host

    def unpack(packed: Any) -> Any:
        if not isinstance(packed, tuple):
            return packed
        device, host = packed
        return host.to(device, non_blocking=device.type == "cuda")

    with torch.autograd.graph.saved_tensors_hooks(pack, unpack):
        yield
