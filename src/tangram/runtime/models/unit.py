"""An atom as a module: its blocks, whether they are computed again, and where what they keep lies."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch.utils.checkpoint import checkpoint

from tangram.job import Recompute
from tangram.runtime.models.attention import Attention
from tangram.runtime.models.block import Block, blocks_of
from tangram.runtime.models.offload import kept_on_host
from tangram.runtime.models.share import Context


class Unit(torch.nn.Module):
    """One atom of a stage.

    Args:
        blocks: What runs, in order.
        recompute: What backward computes again.
        offloads: Whether what is kept for backward lies in host memory.
    """

    def __init__(self, blocks: Sequence[Block], recompute: Recompute, *, offloads: bool = False) -> None:
        super().__init__()
        self.blocks = torch.nn.ModuleList(blocks)
        self.recompute, self.offloads = recompute, offloads
        for block in blocks:
            if isinstance(block, Attention):
                block.recomputes_core = recompute is Recompute.SELECTIVE

    def forward(self, hidden: Any, context: Context) -> Any:
        """Runs the atom: hidden states (or token ids) to hidden states (or the loss)."""
        with self._keeping():
            if self.recompute is Recompute.FULL and torch.is_grad_enabled():
                return checkpoint(self._run, hidden, context, use_reentrant=False, preserve_rng_state=False)
            return self._run(hidden, context)

    def materialise(self, device: Any) -> None:
        """Gives the atom's parameters memory and initial values."""
        for _, block in blocks_of(self):
            block.materialise(device)

    def _run(self, hidden: Any, context: Context) -> Any:
        for block in self.blocks:
            hidden = block(hidden, context)
        return hidden

    def _keeping(self) -> AbstractContextManager[None]:
        return kept_on_host(self.parameters()) if self.offloads else nullcontext()
