"""How to train: what a plan does not say, because no prediction depends on it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from math import cos, pi

from tangram.errors import InputError


class Decay(StrEnum):
    """How the learning rate falls after the warm-up."""

    CONSTANT = "constant"
    LINEAR = "linear"
    COSINE = "cosine"


@dataclass(frozen=True, slots=True)
class TrainSettings:
    """Optimizer, learning rate, clipping and scaling.

    Attributes:
        learning_rate: Its highest value.
        min_learning_rate: Its value at the end.
        warmup_steps: Steps over which it rises in a line from 0; step s (from 0) has (s + 1) / warmup_steps.
        total_steps: Steps until it has fallen to its lowest value.
        decay: How it falls.
        beta1, beta2, eps: Of AdamW (Loshchilov and Hutter 2019, arXiv 1711.05101).
        weight_decay: Of matrices and tables; norms and biases have none.
        max_grad_norm: Gradients are scaled down to this norm over all weights; 0 leaves them.
        initial_loss_scale: First loss scale with fp16.
        loss_scale_window: Steps without overflow after which the loss scale is doubled.
        seed: Of initial weights and dropout.
        virtual_stages: Chunks of the model per stage, run as interleaved 1F1B; 1 is the plan's own schedule.
        zero_bubble: Whether backwards are split, so that gradients of weights fill gaps of the pipeline.
    """

    learning_rate: float = 3e-4
    min_learning_rate: float = 0.0
    warmup_steps: int = 0
    total_steps: int = 1000
    decay: Decay = Decay.CONSTANT
    beta1: float = 0.9
    beta2: float = 0.95
    eps: float = 1e-8
    weight_decay: float = 0.1
    max_grad_norm: float = 1.0
    initial_loss_scale: float = 65536.0
    loss_scale_window: int = 1000
    seed: int = 0
    virtual_stages: int = 1
    zero_bubble: bool = False

    def __post_init__(self) -> None:
        positive = (
            "learning_rate",
            "eps",
            "total_steps",
            "initial_loss_scale",
            "loss_scale_window",
            "virtual_stages",
        )
        for name in positive:
            if not getattr(self, name) > 0:
                raise InputError(f"{name} is {getattr(self, name)}; it must be above 0", where=_option(name))
        for name in ("min_learning_rate", "warmup_steps", "weight_decay", "max_grad_norm"):
            if not getattr(self, name) >= 0:
                raise InputError(
                    f"{name} is {getattr(self, name)}; it must not be negative", where=_option(name)
                )
        for name in ("beta1", "beta2"):
            if not 0 <= getattr(self, name) < 1:
                raise InputError(f"{name} is {getattr(self, name)}; legal: 0 to below 1", where=_option(name))


def learning_rate(settings: TrainSettings, step: int) -> float:
    """Returns the learning rate of a step, counted from 0."""
    top, bottom, warmup = settings.learning_rate, settings.min_learning_rate, settings.warmup_steps
    if step < warmup:
        return top * (step + 1) / warmup
    done = min(1.0, (step - warmup) / max(1, settings.total_steps - warmup))
    if settings.decay is Decay.COSINE:
        return bottom + (top - bottom) * (1 + cos(pi * done)) / 2
    if settings.decay is Decay.LINEAR:
        return top + (bottom - top) * done
    return top


def _option(name: str) -> str:
    return "--" + name.replace("_", "-")
