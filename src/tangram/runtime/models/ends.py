"""The ends of the model: embedding (with positions), and final norm with head and loss.

Both matrices are split over tp by rows of the vocabulary. Rows that pad it are 0, never looked up and not in
the softmax.
"""

from __future__ import annotations

from typing import Any

from torch.nn import functional

from tangram.runtime.collectives import reduce_from, scatter_sum
from tangram.runtime.models.block import Block, Init, Weight
from tangram.runtime.models.cross_entropy import summed_cross_entropy
from tangram.runtime.models.dropout import residual_dropout
from tangram.runtime.models.norm import Norm
from tangram.runtime.models.projection import TOKENS, Columns, Output, split_products
from tangram.runtime.models.share import Context, Share
from tangram.runtime.parameters import ParameterPart, whole


class Embedding(Block):
    """Token ids ``(rows, tokens)`` to hidden states."""

    def __init__(self, share: Share) -> None:
        super().__init__(share)
        hidden, names = share.model.hidden_size, share.names
        self.start, stop = share.cut(share.vocab_rows, "rows of the vocabulary")
        name = f"{names.embedding}.weight"
        part = ParameterPart(name, (share.vocab_rows, hidden), ((self.start, stop), (0, hidden)))
        std = share.hyper.initializer_std
        self.add_weight("table", Weight((part,), Init.NORMAL, std, used_rows=share.model.vocab_size))
        self.has_positions = bool(names.positions)
        if self.has_positions:
            part = whole(f"{names.positions}.weight", share.model.max_positions, hidden)
            self.add_weight("positions", Weight((part,), Init.NORMAL, std, partial_over=share.partial))

    def forward(self, ids: Any, context: Context) -> Any:
        """Returns hidden states of this rank's tokens."""
        share, tp = self.share, self.share.groups.tp
        rows = ids - self.start
        is_own = (rows >= 0) & (rows < len(self.table))
        found = functional.embedding(rows * is_own, self.table)
        if tp.size > 1:
            found = found * is_own.unsqueeze(-1)
        hidden = scatter_sum(found, TOKENS, tp) if share.sequence_parallel else reduce_from(found, tp)
        if self.has_positions:
            hidden = hidden + functional.embedding(context.own_positions(share), self.positions)
        return residual_dropout(share, hidden, context, share.hyper.embedding_dropout, "embedding")


class Head(Block):
    """Hidden states to the sum of the losses of this rank's rows and tokens.

    Args:
        share: What this rank builds.
        embedding: The embedding of the same stage, where the head uses its matrix.
    """

    def __init__(self, share: Share, embedding: Embedding | None) -> None:
        super().__init__(share)
        model, names = share.model, share.names
        self.norm = Norm(share, model.norm, names.final_norm, model.hidden_size, share.partial)
        self.start, _ = share.cut(share.vocab_rows, "rows of the vocabulary")
        # A tuple, so that the matrix stays a parameter of the embedding alone.
        self.shared = () if embedding is None else (embedding,)
        if embedding is None:
            name = names.embedding if model.tied_embeddings else names.head
            outputs = [Output(name, share.vocab_rows)]
            self.matrix = Columns(share, outputs, model.hidden_size, used_rows=model.vocab_size)

    def forward(self, hidden: Any, context: Context) -> Any:
        """Returns the summed loss, the same on all tp ranks."""
        logits = self.logits(hidden)
        valid = self.share.model.vocab_size - self.start
        return summed_cross_entropy(logits, context.batch.labels, self.start, valid, self.share.groups.tp)

    def logits(self, hidden: Any) -> Any:
        """Returns the logits of this rank's rows of the vocabulary, for all tokens of its cp share."""
        normed = self.norm(hidden)
        if not self.shared:
            return self.matrix(normed)[0]
        return split_products(self.share, normed, [self.shared[0].table], [None])[0]
