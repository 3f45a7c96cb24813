"""In which order a stage works on its micro-batches: 1F1B with the windows of a plan, or interleaved.

The order is a list, known in advance. 1F1B with a window of w: w - 1 forwards, then one forward and one
backward in turn until all forwards are done, then the backwards that are left. Interleaved 1F1B (Narayanan
et al. 2021, arXiv 2104.04473, section 2.2) gives every stage several chunks of the model: chunk c of all
stages comes before chunk c + 1 of any. Micro-batches go through in groups as large as there are stages,
chunk by chunk.

A backward can be split (Qi et al. 2024, arXiv 2401.10241): the gradient of the stage's input goes to the
stage before at once, those of the weights follow later, where the stage would else wait.

Executing an order means to carry out one action after the other; what an action waits for (activations from
the stage before, gradients from the stage behind) is received by it, and receives are posted some actions
ahead.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import count


class Work(StrEnum):
    """What a stage does with a micro-batch."""

    FORWARD = "forward"
    BACKWARD = "backward"
    WEIGHTS = "weights"  # what a split backward has left over


@dataclass(frozen=True, slots=True)
class Action:
    """One micro-batch in one direction, through one chunk of the stage."""

    work: Work
    micro_batch: int
    chunk: int = 0


def one_forward_one_backward(window: int, num_micro_batches: int) -> tuple[Action, ...]:
    """Returns the order of work of a stage that holds up to ``window`` micro-batches.

    >>> [f"{action.work[0]}{action.micro_batch}" for action in one_forward_one_backward(2, 3)]
    ['f0', 'f1', 'b0', 'f2', 'b1', 'b2']
    """
    held = min(window, num_micro_batches)
    forwards = [Action(Work.FORWARD, k) for k in range(num_micro_batches)]
    backwards = [Action(Work.BACKWARD, k) for k in range(num_micro_batches)]
    return _in_turn(forwards, backwards, held - 1)


def interleaved(num_stages: int, num_chunks: int, num_micro_batches: int) -> list[tuple[Action, ...]]:
    """Returns the order of work of each stage, for stages of several chunks.

    Stage i runs 2 (stages - 1 - i) + (chunks - 1) stages forwards, then one forward and one backward in
    turn. Where the stages do not divide the micro-batches, that can lock up; then all stages begin with so
    many more forwards that it does not.

    >>> for order in interleaved(2, 2, 2):
    ...     print(*[f"{action.work[0]}{action.micro_batch}.{action.chunk}" for action in order])
    f0.0 f1.0 f0.1 f1.1 b0.1 b1.1 b0.0 b1.0
    f0.0 f1.0 f0.1 b0.1 f1.1 b1.1 b0.0 b1.0
    """
    units = [
        (chunk, k)
        for first in range(0, num_micro_batches, num_stages)
        for chunk in range(num_chunks)
        for k in range(first, min(first + num_stages, num_micro_batches))
    ]
    forwards = [Action(Work.FORWARD, k, chunk) for chunk, k in units]
    backwards = [
        Action(Work.BACKWARD, k, num_chunks - 1 - chunk) for chunk, k in units
    ]  # a group's last chunk first
    for more in count():
        orders = []
        for stage in range(num_stages):
            ahead = 2 * (num_stages - 1 - stage) + (num_chunks - 1) * num_stages + more
            orders.append(_in_turn(forwards, backwards, min(ahead, len(forwards) - 1)))
        if not locks_up(orders, num_chunks):
            return orders
    raise AssertionError("all forwards first never locks up")


def split_backwards(order: Sequence[Action], lag: int) -> tuple[Action, ...]:
    """Returns an order in which the gradients of weights follow so many backwards later, or at the end.

    With a lag of i on stage i no stage holds more micro-batches than the first one does in plain 1F1B ("H1").

    >>> order = split_backwards(one_forward_one_backward(1, 3), 1)
    >>> [f"{action.work[0]}{action.micro_batch}" for action in order]
    ['f0', 'b0', 'f1', 'b1', 'w0', 'f2', 'b2', 'w1', 'w2']
    """
    found: list[Action] = []
    pending: list[Action] = []
    for action in order:
        found.append(action)
        if action.work is Work.BACKWARD:
            pending.append(Action(Work.WEIGHTS, action.micro_batch, action.chunk))
            if len(pending) > lag:
                found.append(pending.pop(0))
    return (*found, *pending)


def locks_up(orders: Sequence[Sequence[Action]], num_chunks: int) -> bool:
    """Returns whether stages that carry out these orders come to wait for each other for ever."""
    todo = [list(order) for order in orders]
    at = [0] * len(todo)
    done: set[tuple[int, Action]] = set()
    moved = True
    while moved:
        moved = False
        for stage, order in enumerate(todo):
            while at[stage] < len(order) and _ready(stage, order[at[stage]], len(todo), num_chunks, done):
                done.add((stage, order[at[stage]]))
                at[stage] += 1
                moved = True
    return any(place < len(order) for place, order in zip(at, todo, strict=True))


def _ready(
    stage: int, action: Action, num_stages: int, num_chunks: int, done: set[tuple[int, Action]]
) -> bool:
    """Whether the neighbour has done what an action needs."""
    step = -1 if action.work is Work.FORWARD else 1
    place = action.chunk * num_stages + stage + step  # along the model
    if not 0 <= place < num_stages * num_chunks:
        return step < 0 or (stage, Action(Work.FORWARD, action.micro_batch, action.chunk)) in done
    chunk, neighbour = divmod(place, num_stages)
    return (neighbour, Action(action.work, action.micro_batch, chunk)) in done


def _in_turn(forwards: list[Action], backwards: list[Action], ahead: int) -> tuple[Action, ...]:
    """So many forwards, then a forward and a backward in turn, then the backwards that are left."""
    order = forwards[:ahead]
    for forward, backward in zip(forwards[ahead:], backwards, strict=False):
        order += [forward, backward]
    return (*order, *backwards[len(forwards) - ahead :])


def execute(
    order: Sequence[Action],
    act: dict[Work, Callable[[Action], None]],
    post: dict[Work, Callable[[Action], None]],
    *,
    ahead: int,
) -> None:
    """Carries out an order.

    Args:
        order: What to do, action by action.
        act: What an action is, per kind of work.
        post: Posts the receive that an action will wait for, per kind of work that waits for any; called once
            per action, before it, in order.
        ahead: How many actions of the same kind of work are posted before the one that is due; 0 posts a
            receive when it is waited for.
    """
    todo = {work: [action for action in order if action.work is work] for work in post}
    posted = dict.fromkeys(post, 0)

    def post_until(work: Work, number: int) -> None:
        while posted[work] < min(number, len(todo[work])):
            post[work](todo[work][posted[work]])
            posted[work] += 1

    done = dict.fromkeys(act, 0)
    for action in order:
        if ahead:
            for work in post:
                post_until(work, done[work] + 1 + ahead)
        if action.work in post:
            post_until(action.work, done[action.work] + 1)
        act[action.work](action)
        done[action.work] += 1
