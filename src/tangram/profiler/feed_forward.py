"""A dense feed-forward block as one tensor-parallel rank runs it; experts are made of the same products."""

from __future__ import annotations

from typing import Any

from torch.nn import functional

from tangram.model.spec import FeedForwardSpec, LayerSpec
from tangram.profiler.piece import Norm, Piece
from tangram.profiler.shard import Shard


class Block(Piece):
    """The products of a feed-forward block, or of one expert; the bias behind them is left to the caller.

    Args:
        shard: The rank's share.
        generator: Of the weights.
        spec: The whole block.
        ranks: Ranks that share it.
    """

    def __init__(self, shard: Shard, generator: Any, spec: FeedForwardSpec, ranks: int) -> None:
        super().__init__(shard, generator)
        hidden, width = shard.model.hidden_size, spec.intermediate_size // ranks
        columns = spec.num_up_matrices * width
        self.gated = spec.gated
        self.up = self.weight(columns, hidden, sharded=True)
        self.up_bias = self.weight(columns, sharded=True) if spec.bias else None
        self.down = self.weight(hidden, width, sharded=True)
        self.down_bias = self.weight(hidden, sharded=False) if spec.bias else None

    def forward(self, x: Any) -> Any:
        """``(rows, hidden_size)`` to the same shape: SwiGLU when gated, else GELU."""
        up = functional.linear(x, self.up, self.up_bias)
        if self.gated:
            gate, up = up.chunk(2, dim=-1)
            return functional.linear(functional.silu(gate) * up, self.down)
        return functional.linear(functional.gelu(up, approximate="tanh"), self.down)


class FeedForward(Piece):
    """Norm, up (and gate) projection, activation, down projection, residual."""

    def __init__(self, shard: Shard, generator: Any, layer: LayerSpec) -> None:
        super().__init__(shard, generator)
        spec = layer.feed_forward
        assert isinstance(spec, FeedForwardSpec)
        hidden = shard.model.hidden_size
        self.norm = Norm(shard, generator, layer.norm, hidden)
        self.block = Block(shard, generator, spec, shard.tp)
        self.post_norm = Norm(shard, generator, layer.norm, hidden) if layer.post_norm else None
        self.tokens = self.exchange(shard.tokens, hidden)

    def update(self, x: Any) -> Any:
        """Returns what the block adds to the residual stream."""
        y = self.tokens.scatter(self.block(self.tokens.gather(self.norm(x))))
        y = y if self.block.down_bias is None else y + self.block.down_bias
        return y if self.post_norm is None else self.post_norm(y)

    def forward(self, x: Any) -> Any:
        """Adds the block to the residual stream."""
        return x + self.update(x)
