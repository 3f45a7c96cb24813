"""What all timed modules have in common: random weights, an input, and who else holds their parameters."""

from __future__ import annotations

from typing import Any

from torch import nn
from torch.nn import functional

from tangram.model.spec import NormKind
from tangram.profiler.exchange import Exchange
from tangram.profiler.shard import Shard

WEIGHT_STD = 0.02
"""Standard deviation of the initial weights (GPT-2's)."""

NORM_EPS = 1e-5


class Piece(nn.Module):
    """A module that can be timed: knows which of its parameters are sharded, and its inputs."""

    def __init__(self, shard: Shard, generator: Any) -> None:
        super().__init__()
        self.shard = shard
        self._generator = generator
        self.exchanges: list[Exchange] = []

    def weight(self, *shape: int, sharded: bool, std: float = WEIGHT_STD, mean: float = 0.0) -> Any:
        """Returns a new parameter with random values.

        Args:
            shape: Its shape on this rank.
            sharded: Whether the other ranks hold other parts of it.
            std, mean: Of its values; 0 makes them all ``mean``.
        """
        values = self.shard.empty(*shape)
        values = values.normal_(mean, std, generator=self._generator) if std else values.fill_(mean)
        parameter = nn.Parameter(values)
        parameter.tangram_sharded = sharded
        return parameter

    def exchange(self, rows: int, width: int) -> Exchange:
        """Returns a stand-in for the collectives of the rank's tp group."""
        exchange = Exchange(rows, width, self.shard.tp, self.shard.empty(0), self._generator)
        self.exchanges.append(exchange)
        return exchange

    def num_params(self, *, sharded: bool) -> int:
        """Returns the number of elements of the parameters that are (or are not) sharded."""
        return sum(p.numel() for p in self.parameters() if p.tangram_sharded is sharded)

    def sample(self) -> Any:
        """Returns an input: a new leaf that wants its gradient, always of the same values."""
        values = self.shard.empty(self.shard.shard_tokens, self.shard.model.hidden_size)
        return values.normal_(generator=self.shard.generator()).requires_grad_()


class Norm(Piece):
    """RMSNorm or LayerNorm over the last axis."""

    def __init__(self, shard: Shard, generator: Any, kind: NormKind, width: int) -> None:
        super().__init__(shard, generator)
        self.width = (width,)
        self.scale = self.weight(width, sharded=False, std=0.0, mean=1.0)
        self.bias = self.weight(width, sharded=False, std=0.0) if kind is NormKind.LAYERNORM else None

    def forward(self, x: Any) -> Any:
        """Normalises; shape as the input."""
        if self.bias is not None:
            return functional.layer_norm(x, self.width, self.scale, self.bias, NORM_EPS)
        return functional.rms_norm(x, self.width, self.scale, NORM_EPS)
