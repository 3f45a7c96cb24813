"""A stage among its neighbours: receives, computes and sends, micro-batch by micro-batch.

The stage's output is kept until its backward, with the input that was received for it. Receives are posted
one action ahead, or, where the plan has no overlapped transfers, when they are waited for. Sends are waited
for at the end of the step only, whatever the plan: two neighbours of which each waits until the other takes
what it sends would wait for ever.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

from tangram.plan.schema import PlanDocument
from tangram.runtime.hooks import StepHooks, TaskKind
from tangram.runtime.runs import run_layouts
from tangram.runtime.schedule import Work, execute, one_forward_one_backward
from tangram.runtime.transfers import Receiver, Sender, open_links, route


@dataclass(frozen=True, slots=True)
class Neighbours:
    """What comes in and goes out; None at the ends of the pipeline."""

    activations_in: Receiver | None
    activations_out: Sender | None
    gradients_in: Receiver | None
    gradients_out: Sender | None


def meet_neighbours(plan: PlanDocument, index: int, rank: int, dtype: Any, device: Any) -> Neighbours:
    """Makes the groups of all cuts, and opens the links of this rank. All ranks of the plan call it together.

    Args:
        plan: The plan.
        index: Stage of this rank.
        rank: This rank.
        dtype: Of activations and their gradients.
        device: Where they lie.
    """
    layouts = [run_layouts(plan, stage) for stage in plan.stages]
    width = plan.model.hidden_size
    found: dict[str, Any] = dict.fromkeys(Neighbours.__dataclass_fields__)
    for cut in range(len(layouts) - 1):
        above, below = layouts[cut][-1], layouts[cut + 1][0]
        # A group for each direction, so that what is posted in advance never stands in the way.
        forward, backward = (dist.new_group(sorted({*above.ranks, *below.ranks})) for _ in range(2))
        if index not in (cut, cut + 1):
            continue
        open_links(above, below, rank, forward, device)
        open_links(below, above, rank, backward, device)
        down = route(rank, above, below, forward)
        up = route(rank, below, above, backward)
        if index == cut:
            found["activations_out"] = Sender(down)
            found["gradients_in"] = Receiver(up, width, dtype, device)
        else:
            found["activations_in"] = Receiver(down, width, dtype, device)
            found["gradients_out"] = Sender(up)
    return Neighbours(**found)


class Pipeline:
    """Runs the micro-batches of a step through one stage.

    Args:
        module: The stage module, called with a micro-batch and the hidden state.
        neighbours: Of this rank.
        window: Micro-batches that the stage may hold.
        overlap: Whether receives are posted ahead.
        hooks: Who looks on.
        after_backward: Called after the backward of each micro-batch, inside of its task.
    """

    def __init__(
        self,
        module: Any,
        neighbours: Neighbours,
        window: int,
        *,
        overlap: bool,
        hooks: StepHooks,
        after_backward: Any,
    ) -> None:
        self._module = module
        self._at = neighbours
        self._window, self._overlap = window, overlap
        self._hooks = hooks
        self._after_backward = after_backward
        self._held: dict[int, tuple[Any, Any]] = {}
        self._batches: Sequence[Any] = ()
        self._seed = 1.0
        self._loss: Any = None

    def run(self, batches: Sequence[Any], seed: float) -> Any:
        """Runs all micro-batches forward and backward.

        Args:
            batches: One per micro-batch.
            seed: Where the backward of the loss starts.

        Returns:
            The sum of the losses of this rank's tokens, in fp64; None without the head.
        """
        self._batches, self._seed, self._loss = batches, seed, None
        execute(
            one_forward_one_backward(self._window, len(batches)),
            {Work.FORWARD: self._forward, Work.BACKWARD: self._backward},
            {Work.FORWARD: self._post_activation, Work.BACKWARD: self._post_gradient},
            ahead=1 if self._overlap else 0,
        )
        self._hooks.flush()
        for sender in (self._at.activations_out, self._at.gradients_out):
            if sender is not None:
                sender.finish()
        return self._loss

    def _post_activation(self, _micro_batch: int) -> None:
        if self._at.activations_in is not None:
            self._at.activations_in.post()

    def _post_gradient(self, _micro_batch: int) -> None:
        if self._at.gradients_in is not None:
            self._at.gradients_in.post()

    def _forward(self, k: int) -> None:
        hidden = None
        if self._at.activations_in is not None:
            hidden = self._at.activations_in.take().requires_grad_()
            self._hooks.received(TaskKind.SEND_FORWARD, k)
        self._hooks.begin(TaskKind.FORWARD, k)
        output = self._module(self._batches[k], hidden)
        self._hooks.end(TaskKind.FORWARD, k)
        self._held[k] = hidden, output
        sender = self._at.activations_out
        if sender is None:
            loss = output.detach().double()
            self._loss = loss if self._loss is None else self._loss + loss
        else:
            sent = output.detach()
            self._hooks.send(TaskKind.SEND_FORWARD, k, lambda: sender.send(sent))

    def _backward(self, k: int) -> None:
        hidden, output = self._held.pop(k)
        if self._at.gradients_in is None:
            gradient = torch.full_like(output, self._seed)
        else:
            gradient = self._at.gradients_in.take()
            self._hooks.received(TaskKind.SEND_BACKWARD, k)
        self._hooks.begin(TaskKind.BACKWARD, k)
        torch.autograd.backward(output, gradient)
        self._after_backward()
        self._hooks.end(TaskKind.BACKWARD, k)
        sender = self._at.gradients_out
        if sender is not None:
            sent = hidden.grad
            self._hooks.send(TaskKind.SEND_BACKWARD, k, lambda: sender.send(sent))
