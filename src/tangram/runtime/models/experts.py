"""A mixture of experts: norm, router, dispatch, experts, combination, residual.

Every rank routes tokens of its own: with sequence parallelism those that it holds, without it a share of
those that the tp ranks hold alike. No token is dropped, and experts are wherever the plan put them, so
numbers of rows are known at run time only: one exchange of counts goes ahead of each exchange of rows.

Fully sharded experts are no special case: they are few ranks per expert group and zero 3 over expert_dp.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import functional

from tangram.model.spec import MoeSpec
from tangram.runtime.collectives import copy_to, reduce_from
from tangram.runtime.models.block import Block, Init, Weight
from tangram.runtime.models.dispatch import Dispatch
from tangram.runtime.models.feed_forward import activated
from tangram.runtime.models.names import ExpertNames
from tangram.runtime.models.norm import Norm
from tangram.runtime.models.routing import Router
from tangram.runtime.models.share import Context, Share
from tangram.runtime.parameters import ParameterPart


class Experts(Block):
    """The mixture of experts of a layer.

    Args:
        share: What this rank builds.
        layer_idx: The layer.
    """

    def __init__(self, share: Share, layer_idx: int) -> None:
        super().__init__(share)
        layer, names = share.model.layers[layer_idx], share.names
        assert layer.moe is not None
        assert names.experts is not None
        prefix = names.layer.format(layer_idx)
        hidden = share.model.hidden_size
        self.norm = Norm(share, layer.norm, prefix + names.feed_forward_norm, hidden, share.partial)
        self.router = Router(share, layer.moe, prefix + names.experts.router)
        self.own = OwnExperts(share, layer.moe, prefix, names.experts)

    def forward(self, hidden: Any, context: Context) -> Any:
        """Adds the experts' weighted outputs to the residual stream."""
        normed = self.norm(hidden)
        if self.share.sequence_parallel or self.share.tp == 1:
            return hidden + self._routed(normed.flatten(0, -2), context).view_as(hidden)
        tp = self.share.groups.tp
        rows = copy_to(normed, tp).flatten(0, -2)
        start, stop = (len(rows) * at // tp.size for at in (tp.index, tp.index + 1))
        routed = self._routed(rows[start:stop], context, (start, stop))
        padded = functional.pad(routed, (0, 0, start, len(rows) - stop))
        return hidden + reduce_from(padded, tp).view_as(hidden)

    def _routed(self, rows: Any, context: Context, at: tuple[int, int] | None = None) -> Any:
        """What experts make of tokens; ``at`` says which of the cp share's, where they are not all."""
        chosen, weights = self.router(rows, context, at)
        dispatch = Dispatch(chosen, self.own.num_experts, self.share.groups)
        outputs = dispatch.back(self.own(dispatch.there(rows), dispatch.counts))
        return (outputs * weights.to(outputs.dtype).unsqueeze(-1)).sum(dim=1)


class OwnExperts(Block):
    """The experts of this rank, each split over expert_tp: matrices stacked by expert.

    Args:
        share: What this rank builds.
        spec: The mixture.
        prefix: In front of the layer's names.
        names: Of experts.
    """

    def __init__(self, share: Share, spec: MoeSpec, prefix: str, names: ExpertNames) -> None:
        super().__init__(share)
        ep, expert_tp = share.groups.ep, share.groups.expert_tp
        assert spec.num_experts % ep.size == 0
        assert spec.expert.intermediate_size % expert_tp.size == 0
        self.num_experts = spec.num_experts
        num_own = spec.num_experts // ep.size
        own = range(ep.index * num_own, (ep.index + 1) * num_own)
        hidden, width = share.model.hidden_size, spec.expert.intermediate_size
        size = width // expert_tp.size
        cut = (expert_tp.index * size, (expert_tp.index + 1) * size)
        for name, label in (("gate", names.gate), ("up", names.up), ("down", names.down)):
            shape, region = (width, hidden), (cut, (0, hidden))
            if name == "down":
                shape, region = shape[::-1], region[::-1]
            parts = tuple(
                ParameterPart(f"{prefix}{label.format(expert)}.weight", shape, region) for expert in own
            )
            std = share.hyper.initializer_std
            self.add_weight(name, Weight(parts, Init.NORMAL, std, is_expert=True, stacked=True))

    def forward(self, rows: Any, counts: list[int]) -> Any:
        """Returns the (partial) outputs of rows that lie expert by expert, so many for each."""
        # unbind, so that backward stacks the experts' gradients once instead of adding them to zeros.
        stacks = (self.gate.unbind(), self.up.unbind(), self.down.unbind())
        outputs = [
            functional.linear(
                activated(
                    self.share.hyper.activation, functional.linear(part, gate), functional.linear(part, up)
                ),
                down,
            )
            for part, gate, up, down in zip(rows.split(counts), *stacks, strict=True)
        ]
        return torch.cat(outputs)
