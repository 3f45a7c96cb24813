"""What a stage gets of a micro-batch, beside the hidden state."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

IGNORED = -100
"""The label of a token that does not count."""


@dataclass(frozen=True, slots=True)
class MicroBatch:
    """This rank's rows (those of its dp index) and tokens (all of its cp index, the same on all tp ranks).

    Attributes:
        ids: Token ids, int64 ``(rows, tokens)``; the first stage reads them.
        labels: The tokens that are to be predicted, int64 ``(rows, tokens)``; ``IGNORED`` does not count. The
            last stage reads them.
        sample_ids: Of the rows, int64 ``(rows,)``: seeds of dropout.
        positions: Of the tokens in the sample, int64 ``(tokens,)``, in the order in which they lie.
        seed: The gradient that the last stage starts with: all that is added to the loss on other stages has
            to be scaled by it.
    """

    ids: Any
    labels: Any
    sample_ids: Any
    positions: Any
    seed: float = 1.0

    def cut(self, rows: Sequence[int], tokens: Any) -> MicroBatch:
        """Returns some rows ``[start, stop)`` and some tokens (their places) of it."""
        own = slice(*rows)
        return MicroBatch(
            ids=self.ids[own][:, tokens],
            labels=self.labels[own][:, tokens],
            sample_ids=self.sample_ids[own],
            positions=self.positions[tokens],
            seed=self.seed,
        )
