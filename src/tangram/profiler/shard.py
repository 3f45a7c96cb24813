"""What one tensor-parallel rank runs of a model, and with which tensors."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from tangram.job import Precision
from tangram.model.spec import ModelSpec
from tangram.model.vocabulary import padded_vocab_size

DTYPES = {
    Precision.FP32: torch.float32,
    Precision.TF32: torch.float32,
    Precision.FP16: torch.float16,
    Precision.BF16: torch.bfloat16,
}
"""Of weights and activations, by the precision of the products."""


@dataclass(frozen=True, slots=True)
class Shard:
    """The share of one rank.

    Attributes:
        model: The whole model.
        tp: Tensor-parallel degree; divides heads, feed-forward widths and the sequence.
        micro_batch: Samples on the tensor-parallel group.
        seq_len: Tokens per sample.
        precision: Of the matrix products.
        device: Where it runs.
        seed: Of weights and inputs.
    """

    model: ModelSpec
    tp: int
    micro_batch: int
    seq_len: int
    precision: Precision
    device: Any
    seed: int = 0

    @property
    def tokens(self) -> int:
        """Tokens of the micro-batch."""
        return self.micro_batch * self.seq_len

    @property
    def shard_tokens(self) -> int:
        """Tokens that the rank holds between its products (sequence parallelism)."""
        return self.tokens // self.tp

    @property
    def vocab_rows(self) -> int:
        """Rows of a vocabulary matrix on the rank, after padding."""
        return padded_vocab_size(self.model.vocab_size, self.tp) // self.tp

    @property
    def dtype(self) -> Any:
        """Of weights and activations."""
        return DTYPES[self.precision]

    def generator(self) -> Any:
        """Returns a source of random numbers on the device; always the same."""
        return torch.Generator(device=self.device).manual_seed(self.seed)

    def empty(self, *shape: int) -> Any:
        """Returns a tensor of the shard's dtype on its device, not filled."""
        return torch.empty(*shape, dtype=self.dtype, device=self.device)


@contextmanager
def arithmetic(precision: Precision) -> Iterator[None]:
    """Lets fp32 products run in tf32 where that is the precision; restores what was set before."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high" if precision is Precision.TF32 else "highest")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)
