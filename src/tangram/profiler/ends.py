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
    """Row lookup; projection, position table and norm where the model has them."""

    def __init__(self, shard: Shard, generator: Any) -> None:
        super().__init__(shard, generator)
        model = shard.model
        hidden, width = model.hidden_size, model.embedding_width
        self.table = self.weight(shard.vocab_rows, width, sharded=True)
        self.tokens = self.exchange(shard.tokens, width)
        self.project = self.weight(hidden, width, sharded=False) if model.embedding_size else None
        self.norm = Norm(shard, generator, model.norm, hidden) if model.embedding_norm else None
        self.positions = None
        if model.position is PositionKind.LEARNED:
            rows = model.position_offset + model.max_positions
            self.positions = self.weight(rows, hidden, sharded=False)
            places = torch.arange(shard.shard_tokens, device=shard.device) % shard.seq_len
            places += model.position_offset
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
        x = x if self.project is None else functional.linear(x, self.project)
        x = x if self.positions is None else x + functional.embedding(self.places, self.positions)
        return x if self.norm is None else self.norm(x)


class Head(Piece):
    """Final norm, LM head and cross entropy; the loss in fp32."""

    def __init__(self, shard: Shard, generator: Any) -> None:
        super().__init__(shard, generator)
        model, hidden, width = shard.model, shard.model.hidden_size, shard.model.embedding_width
        self.norm = Norm(shard, generator, model.norm, hidden) if model.final_norm else None
        self.project = self.weight(width, hidden, sharded=False) if model.embedding_size else None
        self.matrix = self.weight(shard.vocab_rows, width, sharded=True)
        self.tokens = self.exchange(shard.tokens, width)
        high = min(shard.vocab_rows, shard.model.vocab_size)
        targets = torch.randint(high, (shard.tokens,), device=shard.device, generator=generator)
        self.register_buffer("targets", targets, persistent=False)

    @property
    def num_logits(self) -> int:
        """Elements of the rank's logits: they exist for one micro-batch at a time, so they are workspace."""
        return self.shard.tokens * self.shard.vocab_rows

    def forward(self, x: Any) -> Any:
        """Returns the loss, a scalar."""
        x = x if self.norm is None else self.norm(x)
        x = x if self.project is None else functional.linear(x, self.project)
        logits = functional.linear(self.tokens.gather(x), self.matrix)
        return functional.cross_entropy(logits.float(), self.targets)
