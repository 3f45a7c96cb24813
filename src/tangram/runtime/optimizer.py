"""AdamW on each rank's own share of the weights, with fp32 master weights and moments.

The update itself is torch's AdamW. What it updates are shares of flat buckets: per bucket one tensor whose
weights decay and one whose weights do not. Where the model is stored in 16 bit, masters are fp32 copies;
where it is stored in fp32, they are the weights themselves. With offload, masters and moments lie in host
memory (page-locked beside a GPU), gradients are copied there, and new weights back.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from tangram.runtime.buckets import Bucket
from tangram.runtime.settings import TrainSettings


@dataclass(frozen=True, slots=True)
class _Piece:
    """Elements of a bucket's share with one weight decay, and their fp32 master."""

    bucket: Bucket
    start: int
    stop: int
    master: Any

    @property
    def weights(self) -> Any:
        return self.bucket.own_weights[self.start : self.stop]

    @property
    def gradients(self) -> Any:
        return self.bucket.own_gradients[self.start : self.stop]

    @property
    def is_copy(self) -> bool:
        return bool(self.master.data_ptr() != self.weights.data_ptr())


class Optimizer:
    """AdamW over the shares of this rank.

    Args:
        buckets: Of the stage.
        settings: Hyperparameters.
        offload: Whether masters and moments live in host memory.
    """

    def __init__(self, buckets: Sequence[Bucket], settings: TrainSettings, *, offload: bool) -> None:
        self._offload = offload
        self._pieces: list[_Piece] = []
        decayed: list[Any] = []
        others: list[Any] = []
        for bucket in buckets:
            size = bucket.share[1] - bucket.share[0]
            border = (
                max((slot.stop for slot in bucket.slots if slot.parameter.decays), default=0)
                - bucket.share[0]
            )
            border = min(max(border, 0), size)
            for start, stop, masters in ((0, border, decayed), (border, size, others)):
                if start < stop:
                    piece = _Piece(bucket, start, stop, self._master(bucket.own_weights[start:stop]))
                    self._pieces.append(piece)
                    masters.append(piece.master)
        groups = [
            {"params": masters, "weight_decay": decay}
            for masters, decay in ((decayed, settings.weight_decay), (others, 0.0))
            if masters
        ]
        # One fused kernel reads and writes everything once; on a CPU it is the loop that is quickest.
        self._adamw = torch.optim.AdamW(
            groups,
            lr=settings.learning_rate,
            betas=(settings.beta1, settings.beta2),
            eps=settings.eps,
            fused=True,
        )

    def _master(self, weights: Any) -> Any:
        if self._offload and weights.is_cuda:
            host = torch.empty(weights.shape, dtype=torch.float32, pin_memory=True)
            return host.copy_(weights)
        if self._offload or weights.dtype != torch.float32:
            return weights.to(torch.float32, copy=True)
        return weights

    def step(self, learning_rate: float, factor: float) -> None:
        """Updates the weights.

        Args:
            learning_rate: Of this step.
            factor: What gradients are multiplied by first.
        """
        for group in self._adamw.param_groups:
            group["lr"] = learning_rate
        for piece in self._pieces:
            gradients = piece.gradients.to(torch.float32).mul_(factor)
            piece.master.grad = gradients.to(piece.master.device)
        self._adamw.step()
        for piece in self._pieces:
            piece.master.grad = None
            if piece.is_copy:
                piece.weights.copy_(piece.master)

    def take_over(self) -> None:
        """After somebody changed the weights: masters follow."""
        for piece in self._pieces:
            if piece.is_copy:
                piece.master.copy_(piece.weights)

    def state_dict(self) -> dict[str, Any]:
        """Returns masters and moments of this rank."""
        return {"masters": [piece.master for piece in self._pieces], "adamw": self._adamw.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Takes masters and moments that :meth:`state_dict` gave on the same rank of the same plan."""
        for piece, master in zip(self._pieces, state["masters"], strict=True):
            piece.master.copy_(master)
            if piece.is_copy:
                piece.weights.copy_(piece.master)
        self._adamw.load_state_dict(state["adamw"])
