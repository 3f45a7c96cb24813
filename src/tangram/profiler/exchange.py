"""Stand-ins for the collectives of tensor parallelism, so that one device can run one rank's share.

With sequence parallelism a rank holds 1/tp of the tokens between its products; an all-gather brings all of
them together, a reduce-scatter leaves the rank its share of the sums. Here both cost nothing: what the other
ranks would have sent is random numbers that lie ready in a buffer. So what is timed is a rank's compute
alone; collectives are timed by themselves.

The gathered tokens lie in one buffer that every pass uses again, which is how Megatron-Core does it: it keeps
the rank's share for backward and gathers once more. The buffer is therefore no activation.
"""

from __future__ import annotations

from typing import Any

import torch


class Exchange:
    """Gathers rows from, and scatters rows to, ranks that are not there.

    Args:
        rows: Rows of all ranks together.
        width: Columns.
        ranks: How many ranks share the rows; 1 makes both directions do nothing.
        like: A tensor whose dtype and device the buffers take.
        generator: Of the random numbers; on the same device.
    """

    def __init__(self, rows: int, width: int, ranks: int, like: Any, generator: Any) -> None:
        assert rows % ranks == 0
        self.ranks = ranks
        self.buffers: list[Any] = []
        if ranks > 1:
            for scale in (1.0, 1e-3):  # activations behind a norm are near 1, gradients small
                buffer = torch.empty(rows, width, dtype=like.dtype, device=like.device)
                self.buffers.append(buffer.normal_(0.0, scale, generator=generator))

    def gather(self, share: Any, *, keeps_share: bool = True) -> Any:
        """Returns all rows for the rank's share of them.

        Args:
            share: The rank's own rows.
            keeps_share: Whether backward needs the share, to gather it again.
        """
        return _Gather.apply(share, self.buffers[0], keeps_share) if self.ranks > 1 else share

    def scatter(self, rows: Any) -> Any:
        """Returns the rank's share of all rows."""
        if self.ranks == 1:
            return rows
        return _Scatter.apply(rows, self.buffers[1], rows.shape[0] // self.ranks)


class _Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, share: Any, ready: Any, keeps_share: bool) -> Any:
        ctx.num_rows = share.shape[0]
        ctx.save_for_backward(*[share] * keeps_share)
        return ready.view_as(ready)

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        return grad[: ctx.num_rows], None, None


class _Scatter(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, rows: Any, ready: Any, num_rows: int) -> Any:
        ctx.ready = ready
        return rows[:num_rows]

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        return ctx.ready.view_as(ctx.ready), None, None
