"""A mixture of experts as one tensor-parallel rank runs it, all experts on the rank (ep = 1, expert tp = tp).

The router, its softmax and its choice run for real; whom a token is then sent to is taken from a list made
beforehand in which all experts get the same number of tokens. So times do not depend on random weights, hold
no wait for counts on the host, and are those of perfect balance: imbalance belongs to the formulas.
One product per expert, one after the other.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import functional

from tangram.model.spec import LayerSpec
from tangram.profiler.feed_forward import Block
from tangram.profiler.piece import Norm, Piece
from tangram.profiler.shard import Shard


class Experts(Piece):
    """Norm, router, dispatch, experts, combination, shared experts, residual."""

    def __init__(self, shard: Shard, generator: Any, layer: LayerSpec) -> None:
        super().__init__(shard, generator)
        moe = layer.moe
        assert moe is not None
        hidden = shard.model.hidden_size
        self.top_k = moe.top_k
        self.norm = Norm(shard, generator, layer.norm, hidden)
        self.router = self.weight(moe.num_experts, hidden, sharded=False)
        blocks = (Block(shard, generator, moe.expert, shard.tp) for _ in range(moe.num_experts))
        self.blocks = torch.nn.ModuleList(blocks)
        self.counts = even_counts(shard.tokens * moe.top_k, moe.num_experts)
        order = dispatch_order(shard.shard_tokens * moe.top_k, moe.num_experts).to(shard.device)
        self.register_buffer("sources", order // moe.top_k, persistent=False)
        self.register_buffer("returns", torch.argsort(order), persistent=False)
        self.routed = self.exchange(shard.tokens * moe.top_k, hidden)
        self.post_norm = Norm(shard, generator, layer.norm, hidden) if layer.post_norm else None
        self.shared: Any = Block(shard, generator, moe.shared, shard.tp) if moe.shared is not None else None
        self.tokens: Any = self.exchange(shard.tokens, hidden) if moe.shared is not None else None

    @property
    def gathered_bytes(self) -> int:
        """Bytes of the gathered expert inputs: kept for backward, and not gathered again."""
        return self.routed.buffers[0].nbytes if self.routed.buffers else 0

    def forward(self, x: Any) -> Any:
        """Adds the experts' weighted outputs to the residual stream."""
        return x + self.update(x)

    def update(self, x: Any) -> Any:
        """Returns what the experts add to the residual stream."""
        tokens = self.norm(x)
        shares = functional.softmax(functional.linear(tokens, self.router), dim=-1, dtype=torch.float32)
        shares, _ = shares.topk(self.top_k, dim=-1)
        shares = shares / shares.sum(dim=-1, keepdim=True)
        rows = self.routed.gather(tokens.index_select(0, self.sources), keeps_share=False)
        outputs = [
            block(part) if block.down_bias is None else block(part) + block.down_bias
            for block, part in zip(self.blocks, rows.split(self.counts), strict=True)
            if len(part)
        ]
        back = self.routed.scatter(torch.cat(outputs)).index_select(0, self.returns)
        back = back.view(-1, self.top_k, back.shape[-1])
        y = (back * shares.to(back.dtype).unsqueeze(-1)).sum(dim=1)
        y = y if self.shared is None else y + self._shared(tokens)
        return y if self.post_norm is None else self.post_norm(y)

    def _shared(self, tokens: Any) -> Any:
        """The block that every token passes through."""
        output = self.tokens.scatter(self.shared(self.tokens.gather(tokens)))
        return output if self.shared.down_bias is None else output + self.shared.down_bias


def even_counts(num_rows: int, num_experts: int) -> list[int]:
    """Returns how many rows each expert gets: equally many, or one more for the first ones."""
    each, more = divmod(num_rows, num_experts)
    return [each + (expert < more) for expert in range(num_experts)]


def dispatch_order(num_rows: int, num_experts: int) -> Any:
    """Returns the rows sorted by expert, when row i goes to expert i modulo ``num_experts``.

    With row = token x top-k + choice, a token's choices are different experts.
    """
    return torch.argsort(torch.arange(num_rows) % num_experts, stable=True)
