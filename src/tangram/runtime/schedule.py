"""1F1B with the windows of a plan: the order in which a stage works on its micro-batches.

The order is a list, known in advance: with a window of w, w - 1 forwards, then one forward and one backward
in turn until all forwards are done, then the backwards that are left. Executing it means to carry out one
action after the other; what an action waits for (activations from the stage before, gradients from the
stage behind) is received by it, and receives are posted some actions ahead.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum


class Work(StrEnum):
    """What a stage does with a micro-batch."""

    FORWARD = "forward"
    BACKWARD = "backward"


@dataclass(frozen=True, slots=True)
class Action:
    """One micro-batch in one direction."""

    work: Work
    micro_batch: int


def one_forward_one_backward(window: int, num_micro_batches: int) -> tuple[Action, ...]:
    """Returns the order of work of a stage that holds up to ``window`` micro-batches.

    >>> [f"{action.work[0]}{action.micro_batch}" for action in one_forward_one_backward(2, 3)]
    ['f0', 'f1', 'b0', 'f2', 'b1', 'b2']
    """
    held = min(window, num_micro_batches)
    forwards = [Action(Work.FORWARD, k) for k in range(num_micro_batches)]
    backwards = [Action(Work.BACKWARD, k) for k in range(num_micro_batches)]
    order = forwards[: held - 1]
    for forward, backward in zip(forwards[held - 1 :], backwards, strict=False):
        order += [forward, backward]
    return (*order, *backwards[num_micro_batches - held + 1 :])


def execute(
    order: Sequence[Action],
    act: dict[Work, Callable[[int], None]],
    post: dict[Work, Callable[[int], None]],
    *,
    ahead: int,
) -> None:
    """Carries out a schedule.

    Args:
        order: What to do, action by action.
        act: What an action is, per kind of work; gets the number of the micro-batch.
        post: Posts the receive that an action will wait for; called once per action, before it, in order.
        ahead: How many actions of the same kind of work are posted before the one that is due; 0 posts a
            receive when it is waited for.
    """
    todo = {work: [action.micro_batch for action in order if action.work is work] for work in act}
    posted = dict.fromkeys(act, 0)

    def post_until(work: Work, count: int) -> None:
        while posted[work] < min(count, len(todo[work])):
            post[work](todo[work][posted[work]])
            posted[work] += 1

    done = dict.fromkeys(act, 0)
    for action in order:
        if ahead:
            for work in act:
                post_until(work, done[work] + 1 + ahead)
        post_until(action.work, done[action.work] + 1)
        act[action.work](action.micro_batch)
        done[action.work] += 1
