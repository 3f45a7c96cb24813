"""Dynamic loss scaling for fp16: gradients are computed on a scaled loss, so that small ones do not vanish.

A step whose gradients overflowed anywhere is left out and the scale halved; after a number of steps without
overflow it is doubled (Micikevicius et al. 2018, arXiv 1710.03740). All ranks of all stages see the same
verdict, since it is read off the norm of all gradients, so their scales stay equal without being exchanged.
"""

from __future__ import annotations

from dataclasses import dataclass

GROWTH, BACKOFF = 2.0, 0.5
LOWEST, HIGHEST = 2.0**-14, 2.0**24
"""The scale stays within these: below, gradients of a loss that is no number would halve it for ever."""


@dataclass(slots=True)
class LossScaler:
    """The scale of the next step.

    Attributes:
        scale: What the loss is multiplied by.
        window: Steps without overflow before it grows; 0 keeps it.
        good_steps: Steps since the last overflow or growth.
    """

    scale: float = 1.0
    window: int = 0
    good_steps: int = 0

    def update(self, *, overflow: bool) -> None:
        """Takes note of how a step went."""
        if not self.window:
            return
        if overflow:
            self.scale = max(self.scale * BACKOFF, LOWEST)
            self.good_steps = 0
            return
        self.good_steps += 1
        if self.good_steps == self.window:
            self.scale = min(self.scale * GROWTH, HIGHEST)
            self.good_steps = 0
