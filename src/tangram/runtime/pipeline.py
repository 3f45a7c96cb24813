"""A stage among its neighbours: receives, computes and sends, micro-batch by micro-batch.

The stage's output is kept until its backward, with the input that was received for it. Receives are posted
one action ahead, or, where the plan has no overlapped transfers, when they are waited for. Sends are waited
for at the end of the step only, whatever the plan: two neighbours of which each waits until the other takes
what it sends would wait for ever.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

from tangram.plan.schema import PlanDocument
from tangram.runtime.hooks import StepHooks, TaskKind
from tangram.runtime.runs import run_layouts
from tangram.runtime.schedule import Action, Work, execute
from tangram.runtime.split import split_backward
from tangram.runtime.transfers import Receiver, Sender, open_links, route


@dataclass(frozen=True, slots=True)
class Neighbours:
    """What comes in and goes out; None at the ends of the pipeline.

    With several chunks per stage there are no ends: the last stage is followed by the first one.
    """

    activations_in: Receiver | None
    activations_out: Sender | None
    gradients_in: Receiver | None
    gradients_out: Sender | None


def meet_neighbours(
    plan: PlanDocument, index: int, rank: int, dtype: Any, device: Any, *, in_a_ring: bool = False
) -> Neighbours:
    """Makes the groups of all cuts, and opens the links of this rank. All ranks of the plan call it together.

    Args:
        plan: The plan.
        index: Stage of this rank.
        rank: This rank.
        dtype: Of activations and their gradients.
        device: Where they lie.
        in_a_ring: Whether the last stage sends to the first one.
    """
    layouts = [run_layouts(plan, stage) for stage in plan.stages]
    width = plan.model.hidden_size
    found: dict[str, Any] = dict.fromkeys(Neighbours.__dataclass_fields__)
    for cut in range(len(layouts) - (not in_a_ring)):
        behind = (cut + 1) % len(layouts)
        above, below = layouts[cut][-1], layouts[behind][0]
        # A group for each direction, so that what is posted in advance never stands in the way.
        forward, backward = (dist.new_group(sorted({*above.ranks, *below.ranks})) for _ in range(2))
        if index not in (cut, behind):
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
        chunks: The stage module, or its chunks; called with a micro-batch and the hidden state. neighbours:
        Of this rank. order: What the stage does, action by action. is_first, is_last: Whether the stage has
        the model's first atoms, and its last ones. overlap: Whether receives are posted ahead. hooks: Who
        looks on; they get micro-batches of further chunks with higher numbers. before_backward: Called
        before the backward of each micro-batch, inside of its task, with whether it is
            the last one of its chunk.
        after_backward: Called after it.
    """

    def __init__(
        self,
        chunks: Sequence[Any],
        neighbours: Neighbours,
        order: Sequence[Action],
        *,
        is_first: bool,
        is_last: bool,
        overlap: bool,
        hooks: StepHooks,
        before_backward: Any,
        after_backward: Any,
    ) -> None:
        self._chunks = chunks
        self._at = neighbours
        self._order, self._overlap = order, overlap
        self._start = 0 if is_first else None  # the chunk that gets nothing from a stage before
        self._end = len(chunks) - 1 if is_last else None
        self._hooks = hooks
        self._before_backward, self._after_backward = before_backward, after_backward
        self._held: dict[tuple[int, int], tuple[Any, Any]] = {}
        self._splits = any(action.work is Work.WEIGHTS for action in order)
        self._left: dict[tuple[int, int], Callable[[], None]] = {}
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
            self._order,
            {Work.FORWARD: self._forward, Work.BACKWARD: self._backward, Work.WEIGHTS: self._weights},
            {Work.FORWARD: self._post_activation, Work.BACKWARD: self._post_gradient},
            ahead=1 if self._overlap else 0,
        )
        self._hooks.flush()
        for sender in (self._at.activations_out, self._at.gradients_out):
            if sender is not None:
                sender.finish()
        return self._loss

    def _post_activation(self, action: Action) -> None:
        if self._at.activations_in is not None and action.chunk != self._start:
            self._at.activations_in.post()

    def _post_gradient(self, action: Action) -> None:
        if self._at.gradients_in is not None and action.chunk != self._end:
            self._at.gradients_in.post()

    def _forward(self, action: Action) -> None:
        k, number = action.micro_batch, self._number(action)
        hidden = None
        if self._at.activations_in is not None and action.chunk != self._start:
            hidden = self._at.activations_in.take().requires_grad_()
            self._hooks.received(TaskKind.SEND_FORWARD, number)
        self._hooks.begin(TaskKind.FORWARD, number)
        output = self._chunks[action.chunk](self._batches[k], hidden)
        self._hooks.end(TaskKind.FORWARD, number)
        self._held[action.chunk, k] = hidden, output
        sender = self._at.activations_out
        if action.chunk == self._end:
            loss = output.detach().double()
            self._loss = loss if self._loss is None else self._loss + loss
        elif sender is not None:
            sent = output.detach()
            self._hooks.send(TaskKind.SEND_FORWARD, number, lambda: sender.send(sent))

    def _backward(self, action: Action) -> None:
        k, number = action.micro_batch, self._number(action)
        hidden, output = self._held.pop((action.chunk, k))
        if self._at.gradients_in is None or action.chunk == self._end:
            gradient = torch.full_like(output, self._seed)
        else:
            gradient = self._at.gradients_in.take()
            self._hooks.received(TaskKind.SEND_BACKWARD, number)
        self._hooks.begin(TaskKind.BACKWARD, number)
        # A split backward adds to the weights' gradients later, so nothing of it is the last.
        self._before_backward(is_last=k == len(self._batches) - 1 and not self._splits)
        if self._splits and hidden is not None:
            rest = split_backward(self._chunks[action.chunk].parameters(), hidden, output, gradient)
            self._left[action.chunk, k] = rest
        else:
            torch.autograd.backward(output, gradient)
            self._after_backward()
        self._hooks.end(TaskKind.BACKWARD, number)
        sender = self._at.gradients_out
        if sender is not None and hidden is not None:
            sent = hidden.grad
            self._hooks.send(TaskKind.SEND_BACKWARD, number, lambda: sender.send(sent))

    def _weights(self, action: Action) -> None:
        """What a split backward has left over; the first stage, which sends no gradients, splits none."""
        rest = self._left.pop((action.chunk, action.micro_batch), None)
        if rest is None:
            return
        number = self._number(action)
        self._hooks.begin(TaskKind.BACKWARD, number)
        rest()
        self._after_backward()
        self._hooks.end(TaskKind.BACKWARD, number)

    def _number(self, action: Action) -> int:
        return action.chunk * len(self._batches) + action.micro_batch
