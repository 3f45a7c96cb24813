"""A transformer layer as one tensor-parallel rank runs it: attention, feed-forward block, and both together.

Plain PyTorch, as a trainer without kernels of its own has it: one product for queries, keys and values, one
for gate and up; ``scaled_dot_product_attention`` with a causal mask, which picks the kernel (flash where the
device and the precision have it); no dropout. Every module takes and returns the rank's share of the residual
stream, ``(shard_tokens, hidden_size)``, samples one after the other.

Who is sharded: matrices and the biases of column-parallel products, by tp. Norms, and biases behind
row-parallel products, are whole on every rank.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn import functional

from tangram.model.spec import AttentionSpec, FeedForwardSpec, LayerSpec, NormKind, PositionKind
from tangram.profiler.exchange import Exchange
from tangram.profiler.shard import Shard

WEIGHT_STD = 0.02
"""Standard deviation of the initial weights (GPT-2's)."""

NORM_EPS = 1e-5
ROTARY_BASE = 10_000.0


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


class Attention(Piece):
    """Norm, query/key/value projection, attention, output projection, residual."""

    def __init__(self, shard: Shard, generator: Any, layer: LayerSpec) -> None:
        super().__init__(shard, generator)
        spec: AttentionSpec = layer.attention
        hidden, tp = shard.model.hidden_size, shard.tp
        self.spec = spec
        self.num_heads, self.num_kv_heads = spec.num_heads // tp, spec.num_kv_heads // tp
        self.widths = [spec.query_width // tp, spec.kv_width // tp, spec.kv_width // tp]
        self.norm = Norm(shard, generator, layer.norm, hidden)
        self.qkv = self.weight(sum(self.widths), hidden, sharded=True)
        self.qkv_bias = self.weight(sum(self.widths), sharded=True) if spec.qkv_bias else None
        self.query_norm = Norm(shard, generator, NormKind.RMSNORM, spec.head_dim) if spec.qk_norm else None
        self.key_norm = Norm(shard, generator, NormKind.RMSNORM, spec.head_dim) if spec.qk_norm else None
        self.out = self.weight(hidden, self.widths[0], sharded=True)
        self.out_bias = self.weight(hidden, sharded=False) if spec.out_bias else None
        self.tokens = self.exchange(shard.tokens, hidden)
        self.rotary = shard.model.position is PositionKind.ROTARY
        if self.rotary:
            cos, sin = rotary_tables(shard.seq_len, spec.head_dim, shard.device)
            self.register_buffer("cos", cos.to(shard.dtype), persistent=False)
            self.register_buffer("sin", sin.to(shard.dtype), persistent=False)

    def forward(self, x: Any) -> Any:
        """Adds attention to the residual stream."""
        qkv = functional.linear(self.tokens.gather(self.norm(x)), self.qkv, self.qkv_bias)
        query, key, value = qkv.split(self.widths, dim=-1)
        mixed = self._attend(
            self._heads(query, self.num_heads, self.query_norm),
            self._heads(key, self.num_kv_heads, self.key_norm),
            self._split(value, self.num_kv_heads).transpose(1, 2),
        )
        rows = mixed.transpose(1, 2).reshape(self.shard.tokens, self.widths[0])
        y = self.tokens.scatter(functional.linear(rows, self.out))
        return x + (y if self.out_bias is None else y + self.out_bias)

    def _split(self, x: Any, num_heads: int) -> Any:
        return x.view(self.shard.micro_batch, self.shard.seq_len, num_heads, self.spec.head_dim)

    def _heads(self, x: Any, num_heads: int, norm: Norm | None) -> Any:
        """``(tokens, width)`` to ``(micro_batch, num_heads, seq_len, head_dim)``, normalised and rotated."""
        heads = self._split(x, num_heads)
        heads = heads if norm is None else norm(heads)
        heads = heads.transpose(1, 2)
        return rotate(heads, self.cos, self.sin) if self.rotary else heads

    def _attend(self, query: Any, key: Any, value: Any) -> Any:
        groups = self.num_heads // self.num_kv_heads
        if groups > 1 and not shares_keys(query):
            key, value = (x.repeat_interleave(groups, dim=1) for x in (key, value))
            groups = 1
        return functional.scaled_dot_product_attention(
            query, key, value, is_causal=True, enable_gqa=groups > 1
        )


class FeedForward(Piece):
    """Norm, up (and gate) projection, activation, down projection, residual."""

    def __init__(self, shard: Shard, generator: Any, layer: LayerSpec) -> None:
        super().__init__(shard, generator)
        spec = layer.feed_forward
        assert isinstance(spec, FeedForwardSpec)
        hidden = shard.model.hidden_size
        self.norm = Norm(shard, generator, layer.norm, hidden)
        self.block = Block(shard, generator, spec, shard.tp)
        self.tokens = self.exchange(shard.tokens, hidden)

    def forward(self, x: Any) -> Any:
        """Adds the block to the residual stream."""
        y = self.tokens.scatter(self.block(self.tokens.gather(self.norm(x))))
        return x + (y if self.block.down_bias is None else y + self.block.down_bias)


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


class TransformerLayer(Piece):
    """A whole layer: attention, then a feed-forward block or a mixture of experts."""

    def __init__(self, shard: Shard, generator: Any, layer: LayerSpec) -> None:
        from tangram.profiler.experts import Experts

        super().__init__(shard, generator)
        self.attention = Attention(shard, generator, layer)
        second = Experts if layer.moe is not None else FeedForward
        self.feed_forward = second(shard, generator, layer)

    def forward(self, x: Any) -> Any:
        """Runs both blocks."""
        return self.feed_forward(self.attention(x))


def shares_keys(query: Any) -> bool:
    """Whether the fused kernel that will run lets several query heads read one key head.

    Flash attention on GPUs does: 16 bit, from Ampere on (and on AMD). All other kernels want as many key
    heads as query heads, or PyTorch falls back to one that stores all scores.
    """
    if query.device.type != "cuda" or query.dtype == torch.float32:
        return False
    return torch.version.hip is not None or torch.cuda.get_device_capability(query.device) >= (8, 0)


def rotary_tables(seq_len: int, head_dim: int, device: Any) -> tuple[Any, Any]:
    """Returns cosines and sines of rotary positions (Su et al. 2021, RoFormer), each ``(seq_len, head_dim)``.

    The two halves of a head are rotated against each other, as in Llama.
    """
    rates = ROTARY_BASE ** (-torch.arange(0, head_dim, 2, device=device, dtype=torch.float32) / head_dim)
    angles = torch.outer(torch.arange(seq_len, device=device, dtype=torch.float32), rates)
    both = torch.cat((angles, angles), dim=-1)
    return both.cos(), both.sin()


def rotate(x: Any, cos: Any, sin: Any) -> Any:
    """Rotates heads ``(..., seq_len, head_dim)`` by their positions."""
    low, high = x.chunk(2, dim=-1)
    return x * cos + torch.cat((-high, low), dim=-1) * sin
