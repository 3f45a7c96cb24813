"""Splits a backward: first the gradient of the stage's input, later those of its weights.

torch.distributed.pipelining does this for its own zero-bubble schedules: gradients are kept where paths to
weights leave the path to the input, and the rest of the graph is walked from there. Its functions are
private; should a version of torch lack them, this says so instead of doing something else.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from tangram.errors import InputError


def split_backward(weights: Iterable[Any], hidden: Any, output: Any, gradient: Any) -> Callable[[], None]:
    """Computes the gradient of the input, and returns what computes those of the weights.

    Args:
        weights: Of the stage.
        hidden: Its input, a leaf; its ``grad`` is set.
        output: Its output.
        gradient: Of the output.

    Raises:
        InputError: This version of torch cannot do it.
    """
    try:
        from torch.distributed.pipelining._backward import stage_backward_input, stage_backward_weight
    except ImportError:
        raise InputError(
            "this version of PyTorch cannot split backwards",
            where="--zero-bubble",
            hint="leave it out, or use PyTorch 2.13",
        ) from None
    listed = list(weights)
    _, groups = stage_backward_input([output], [gradient], [hidden], iter(listed))

    def of_weights() -> None:
        stage_backward_weight(iter(listed), groups)

    return of_weights
