"""Samples, and the batch of a step: which tokens every row has, read when somebody asks for them.

A sample is ``seq_len`` tokens and the one behind them: sample ``i`` starts at token ``i * seq_len``, and its
labels are its tokens moved by one. What is left behind the last whole sample is not used.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tangram.errors import InputError
from tangram.runtime.data.order import Int64Array, SampleOrder
from tangram.runtime.data.tokens import Tokens


@dataclass(frozen=True, slots=True)
class Samples:
    """Tokens, cut into samples.

    Attributes:
        tokens: All of them.
        seq_len: Tokens of a sample.
        vocab_size: Above every token that the model knows.

    Raises:
        InputError: There are too few tokens for a single sample.
    """

    tokens: Tokens
    seq_len: int
    vocab_size: int

    def __post_init__(self) -> None:
        if self.tokens.num_tokens <= self.seq_len:
            raise InputError(
                f"holds {self.tokens.num_tokens} tokens; one sample needs {self.seq_len + 1}",
                where=self.tokens.place,
                hint="more text, or a plan with shorter sequences (--seq-len)",
            )

    @property
    def num_samples(self) -> int:
        """Whole samples."""
        return (self.tokens.num_tokens - 1) // self.seq_len

    @property
    def tail_tokens(self) -> int:
        """Tokens behind the last sample and its last label, which are never used."""
        return self.tokens.num_tokens - 1 - self.num_samples * self.seq_len

    def read(self, sample: int) -> Int64Array:
        """Returns the ``seq_len + 1`` tokens of a sample.

        Raises:
            InputError: The model's vocabulary has no such token.
        """
        start = sample * self.seq_len
        found = self.tokens.read(start, start + self.seq_len + 1)
        low, high = int(found.min()), int(found.max())
        if low < 0 or high >= self.vocab_size:
            raise InputError(
                f"token {low if low < 0 else high} of sample {sample} is not in the model's vocabulary",
                where=self.tokens.place,
                hint=f"legal: 0 to {self.vocab_size - 1}; the data was made with another tokenizer",
            )
        return found


@dataclass(frozen=True, slots=True)
class StepBatch:
    """The global batch of one step; a rank reads the rows that it needs.

    Micro-batch ``k`` of a plan is the rows from ``k * micro_batch`` on, and of each, the dp index ``d`` of a
    stage takes ``micro_batch_per_dp_rank[d]``, in order.

    Attributes:
        samples: Where rows are read.
        sample_ids: Which sample each row is, counted over all epochs; shape ``(global_batch,)``.
    """

    samples: Samples
    sample_ids: Int64Array

    def rows(self, start: int, stop: int) -> tuple[Int64Array, Int64Array]:
        """Returns tokens and labels of the rows ``[start, stop)``, each of shape ``(rows, seq_len)``.

        Raises:
            InputError: The model's vocabulary lacks a token.
        """
        size = self.samples.num_samples
        read = [self.samples.read(int(number) % size) for number in self.sample_ids[start:stop]]
        both = np.stack(read) if read else np.zeros((0, self.samples.seq_len + 1), dtype=np.int64)
        return both[:, :-1], both[:, 1:]


@dataclass(frozen=True, slots=True)
class Feed:
    """The batches of a run.

    Attributes:
        samples: All of them.
        order: In which order they are used.
        global_batch: Samples of a step.
    """

    samples: Samples
    order: SampleOrder
    global_batch: int

    @staticmethod
    def of(samples: Samples, global_batch: int, seed: int = 0, *, shuffle: bool = True) -> Feed:
        """Returns the batches of a run with this seed."""
        return Feed(samples, SampleOrder(samples.num_samples, seed, shuffle), global_batch)

    def batch(self, step: int) -> StepBatch:
        """Returns the batch of a step, counted from 0."""
        first = step * self.global_batch
        return StepBatch(self.samples, self.order.sample_ids(first, first + self.global_batch))

    def epoch(self, step: int) -> float:
        """Returns how many epochs are behind when this step is done."""
        return (step + 1) * self.global_batch / self.samples.num_samples
