"""The pieces of a model as one tensor-parallel rank runs them: transformer layers, and both ends.

Plain PyTorch, as a trainer without kernels of its own has it: one product for queries, keys and values, one
for gate and up; ``scaled_dot_product_attention`` with a causal mask, which picks the kernel (flash where the
device and the precision have it), over all keys, windows or not; no ALiBi; no dropout. A layer takes and
returns the rank's share of the residual stream, ``(shard_tokens, hidden_size)``, samples one after the other.

Who is sharded: matrices and the biases of column-parallel products, by tp. Norms, routers, position tables,
and biases behind row-parallel products, are whole on every rank.
"""

from __future__ import annotations

from typing import Any

from tangram.model.spec import LayerSpec
from tangram.profiler.attention import Attention
from tangram.profiler.ends import Embedding, Head
from tangram.profiler.experts import Experts
from tangram.profiler.feed_forward import FeedForward
from tangram.profiler.latent_attention import LatentAttention
from tangram.profiler.piece import Piece
from tangram.profiler.request import PieceKind, PieceSpec
from tangram.profiler.shard import Shard


class TransformerLayer(Piece):
    """A whole layer: attention, then a feed-forward block or a mixture of experts."""

    def __init__(self, shard: Shard, generator: Any, layer: LayerSpec) -> None:
        super().__init__(shard, generator)
        first = LatentAttention if layer.attention.latent is not None else Attention
        self.attention = first(shard, generator, layer)
        second = Experts if layer.moe is not None else FeedForward
        self.feed_forward = second(shard, generator, layer)
        self.parallel = layer.parallel

    def forward(self, x: Any) -> Any:
        """Runs both blocks, each from the layer's input where they stand side by side."""
        if self.parallel:
            return x + self.attention.update(x) + self.feed_forward.update(x)
        return self.feed_forward(self.attention(x))


def build(piece: PieceSpec, shard: Shard) -> Piece:
    """Returns the module of a piece, on the shard's device, with random weights that are always the same."""
    generator = shard.generator()
    if piece.kind is PieceKind.EMBEDDING:
        return Embedding(shard, generator)
    if piece.kind is PieceKind.HEAD:
        return Head(shard, generator)
    assert piece.layer is not None
    return TransformerLayer(shard, generator, piece.layer)
