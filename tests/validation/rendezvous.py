"""A naive executor of pipelines whose sends and receives meet: both ends wait until the bytes are there.

The order of instructions is that of 1F1B engines that exchange gradients and activations between two passes:
a stage takes the gradient of the next backward pass before it sends the activation of its last forward pass.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple


class Instruction(NamedTuple):
    """One of a stage.

    Attributes:
        kind: ``forward``, ``backward``, ``send`` or ``receive``.
        edge: Of a transfer, the stage in front of it.
        word: Of a transfer, ``activation`` or ``gradient``.
        number: The micro-batch.
    """

    kind: str
    edge: int
    word: str
    number: int


def instructions(num_stages: int, num_micro_batches: int, stage: int) -> list[Instruction]:
    """What a stage does, in order."""
    warm_up = min(num_stages - stage - 1, num_micro_batches)
    passes = [("forward", i) for i in range(warm_up)]
    for i in range(num_micro_batches):
        if warm_up + i < num_micro_batches:
            passes.append(("forward", warm_up + i))
        passes.append(("backward", i))
    found: list[Instruction] = []
    unsent: list[Instruction] = []
    for kind, number in passes:
        received = []
        if kind == "forward" and stage > 0:
            received = [Instruction("receive", stage - 1, "activation", number)]
        if kind == "backward" and stage < num_stages - 1:
            received = [Instruction("receive", stage, "gradient", number)]
        late = [i for i in unsent if kind == "backward" and i.word == "activation"]
        early = [i for i in unsent if i not in late]
        found += [*early, *received, *late, Instruction(kind, stage, "", number)]
        unsent = []
        if kind == "forward" and stage < num_stages - 1:
            unsent = [Instruction("send", stage, "activation", number)]
        if kind == "backward" and stage > 0:
            unsent = [Instruction("send", stage - 1, "gradient", number)]
    return found + unsent


def step_s(
    forward_s: Sequence[float],
    backward_s: Sequence[float],
    transfer_s: Sequence[float],
    num_micro_batches: int,
) -> float:
    """Executes all stages; a transfer begins when both ends have come to it."""
    num_stages = len(forward_s)
    left = [instructions(num_stages, num_micro_batches, s)[::-1] for s in range(num_stages)]
    clock = [0.0] * num_stages
    while any(left):
        before = sum(map(len, left))
        for s in range(num_stages):
            while left[s] and left[s][-1].kind in ("forward", "backward"):
                clock[s] += float((forward_s if left[s].pop().kind == "forward" else backward_s)[s])
        for s in range(num_stages - 1):
            here, there = (left[s][-1] if left[s] else None), (left[s + 1][-1] if left[s + 1] else None)
            if here and there and here[1:] == there[1:]:  # the same transfer, seen from both ends
                clock[s] = clock[s + 1] = max(clock[s], clock[s + 1]) + float(transfer_s[s])
                left[s].pop()
                left[s + 1].pop()
        assert sum(map(len, left)) < before, "the stages wait for each other"
    return max(clock)
