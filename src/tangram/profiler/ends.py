"""The ends of a model as one tensor-parallel rank runs them: embedding, and final norm, LM head and loss.

Both matrices are split by vocabulary rows. The small all-reduces of a vocabulary-parallel loss are left out,
as all collectives are: the loss is that of the rank's own rows. A tied head has a matrix all the same: a
stage that holds it without the embedding has a copy, multiplies with it and updates it.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import functional

from tangram.model.spec import PositionKind
from tangram.profiler.piece import Norm, Piece
from tangram.profiler.shard import Shard


class Embedding(Piece):
    """Row lookup, and the position table where positions are learned."""

    def __init__(self, shard: Shard, generator: Any) -> None:
        super().__init__(shard, generator)
        model = shard.model
        self.table = self.weight(shard.vocab_rows, model.hidden_size, sharded=True)
        self.tokens = self.exchange(shard.tokens, model.hidden_size)
        self.positions = None
        if model.position is PositionKind.LEARNED:
            self.positions = self.weight(model.max_positions, model.hidden_size, sharded=False)
            places = torch.arange(shard.shard_tokens, device=shard.device) % shard.seq_len
            self.register_buffer("places", places, persistent=False)

    def sample(self) -> Any:
        """Returns token numbers of the whole vocabulary, shape ``(tokens,)``."""
        shard = self.shard
        high = shard.model.vocab_size
        return torch.randint(high, (shard.tokens,), device=shard.device, generator=shard.generator())

    def forward(self, tokens: Any) -> Any:
        """Looks tokens up; those of other ranks give zeros."""
        if self.shard.tp == 1:
            x = functional.embedding(tokens, self.table)
        else:
            foreign = tokens >= self.shard.vocab_rows
            x = functional.embedding(tokens.masked_fill(foreign, 0), self.table)
            x = self.tokens.scatter(x.masked_fill(foreign.unsqueeze(-1), 0.0))
        return x if self.positions is None else x + functional.embedding(self.places, self.positions)


class Head(Piece):
    """Final norm, LM head and cross entropy; the loss in fp32."""

    def __init__(self, shard: Shard, generator: Any) -> None:
        super().__init__(shard, generator)
        hidden = shard.model.hidden_size
        self.norm = Norm(shard, generator, shard.model.norm, hidden)
        self.matrix = self.weight(shard.vocab_rows, hidden, sharded=True)
        self.tokens = self.exchange(shard.tokens, hidden)
        high = min(shard.vocab_rows, shard.model.vocab_size)
        targets = torch.randint(high, (shard.tokens,), device=shard.device, generator=generator)
        self.register_buffer("targets", targets, persistent=False)

    @property
    def num_logits(self) -> int:
        """Elements of the rank's logits: they exist for one micro-batch at a time, so they are workspace."""
        return self.shard.tokens * self.shard.vocab_rows

    def forward(self, x: Any) -> Any:
        """Returns the loss, a scalar."""
        logits = functional.linear(self.tokens.gather(self.norm(x)), self.matrix)
        return functional.cross_entropy(logits.float(), self.targets)
