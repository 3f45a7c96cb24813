"""Padding of the vocabulary, so that tensor parallelism splits it evenly and products have good shapes."""

from __future__ import annotations

# Megatron-LM's default of --make-vocab-size-divisible-by.
PADDING_MULTIPLE = 128


def padded_vocab_size(vocab_size: int, tp: int, multiple: int = PADDING_MULTIPLE) -> int:
    """Returns the padded rows of the vocabulary: the next multiple of ``multiple * tp`` (Megatron-LM's rule).

    Args:
        vocab_size: Rows before padding.
        tp: Tensor-parallel degree.
        multiple: Rows per rank are a multiple of it.

    >>> padded_vocab_size(50257, tp=1), padded_vocab_size(50257, tp=8)
    (50304, 51200)
    """
    assert vocab_size > 0
    assert tp > 0
    assert multiple > 0
    block = multiple * tp
    return -(-vocab_size // block) * block
