"""The options of a run, for both who start one: ``tangram run`` and ``torchrun ... -m tangram.runtime``.

One table holds names and texts; the command line of the first and the parser of the second are made from it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from pathlib import PurePath
from typing import Any, NamedTuple

from tangram.errors import InputError


class OptionText(NamedTuple):
    """How one option is written, and what it is for.

    Attributes:
        flag: ``--steps``.
        metavar: What stands for its value; None of a switch.
        kind: Type of the value.
        text: What it is for.
    """

    flag: str
    metavar: str | None
    kind: type
    text: str


def _texts() -> Iterator[tuple[str, OptionText]]:
    def of(name: str, metavar: str | None, kind: type, text: str) -> tuple[str, OptionText]:
        return name, OptionText("--" + name.replace("_", "-"), metavar, kind, text)

    yield of(
        "data",
        "PATH",
        str,
        "Tokens: NAME.bin with NAME.idx, NAME.npy, a folder of them, or a saved data set.",
    )
    yield of("steps", "N", int, "Steps to train (default: one epoch).")
    yield of("learning_rate", "X", float, "Highest learning rate (default: 3e-4).")
    yield of("min_learning_rate", "X", float, "Learning rate at the end (default: 0).")
    yield of("warmup_steps", "N", int, "Steps over which the learning rate rises (default: 0).")
    yield of("decay", "HOW", str, "How it falls then: constant, linear or cosine (default: constant).")
    yield of("weight_decay", "X", float, "Of matrices and tables (default: 0.1).")
    yield of("max_grad_norm", "X", float, "Norm to which gradients are cut; 0 leaves them (default: 1).")
    yield of("seed", "N", int, "Of initial weights, dropout and the order of samples (default: 0).")
    yield of(
        "virtual_stages",
        "N",
        int,
        "Chunks of layers per stage, run interleaved (default: 1, as the plan says).",
    )
    yield of(
        "zero_bubble",
        None,
        bool,
        "Split backwards, so that gradients of weights fill gaps (zero 0 and 1).",
    )
    yield of("cpu", None, bool, "Run on CPUs through gloo, whatever GPUs the plan names.")
    yield of("any_gpu", None, bool, "Take the GPUs that are there, in order, even if the plan names others.")
    yield of("init", "FOLDER", str, "Start from weights in Hugging Face's form (safetensors).")
    yield of("save", "FOLDER", str, "Save the weights at the end, in Hugging Face's form.")
    yield of("log_file", "FILE", str, "Append one line of JSON per step.")
    yield of("tensorboard", "FOLDER", str, "Write curves for TensorBoard (extra watch).")
    yield of(
        "trace",
        "FILE",
        str,
        "Save the measured timeline of a step over the predicted one, for ui.perfetto.dev.",
    )
    yield of("trace_step", "N", int, "Which step, counted from 1 (default: 5, or the last).")
    yield of("save_profile", "STORE", str, "Save measured times of layers in a profile store.")
    yield of("quiet", None, bool, "Print no table, only the last line.")


OPTION_TEXTS: Mapping[str, OptionText] = dict(_texts())
"""By the name of the field of :class:`RunOptions`."""


@dataclass(frozen=True, slots=True)
class RunOptions:
    """How to run a plan; fields as in :data:`OPTION_TEXTS`.

    Attributes:
        data: Where tokens are; None is refused when the run starts.
        steps: Steps to train; None for one epoch.
        learning_rate, min_learning_rate, warmup_steps, decay: The learning rate over the steps.
        weight_decay, max_grad_norm: Of the optimizer.
        seed: Of initial weights, dropout and the order of samples.
        virtual_stages: Chunks of layers per stage; above 1 it is no longer the plan's schedule.
        zero_bubble: Whether backwards are split, which is not the plan's schedule either.
        cpu: Whether to run on CPUs.
        any_gpu: Whether other GPUs than the plan's will do.
        init, save: Folders of weights.
        log_file: File of JSON lines.
        tensorboard: Folder of curves.
        trace, trace_step: Where a step's timeline goes, and of which step.
        save_profile: Profile store for measured times of layers.
        quiet: Whether to print no table.
    """

    data: str | None = None
    steps: int | None = None
    learning_rate: float = 3e-4
    min_learning_rate: float = 0.0
    warmup_steps: int = 0
    decay: str = "constant"
    weight_decay: float = 0.1
    max_grad_norm: float = 1.0
    seed: int = 0
    virtual_stages: int = 1
    zero_bubble: bool = False
    cpu: bool = False
    any_gpu: bool = False
    init: str | None = None
    save: str | None = None
    log_file: str | None = None
    tensorboard: str | None = None
    trace: str | None = None
    trace_step: int = 5
    save_profile: str | None = None
    quiet: bool = False

    def __post_init__(self) -> None:
        for name, low in (
            ("steps", 1),
            ("trace_step", 1),
            ("virtual_stages", 1),
            ("warmup_steps", 0),
            ("seed", 0),
        ):
            value = getattr(self, name)
            if value is not None and value < low:
                raise InputError(f"{value} is out of range", where=_flag(name), hint=f"legal: {low} or more")
        for name in ("learning_rate", "min_learning_rate", "weight_decay", "max_grad_norm"):
            value = getattr(self, name)
            if not 0 <= value < math.inf:
                raise InputError(f"{value} is out of range", where=_flag(name), hint="legal: 0 or more")
        other = "virtual_stages" if self.virtual_stages > 1 else "zero_bubble" if self.zero_bubble else None
        for name in ("trace", "save_profile"):
            if other is not None and getattr(self, name) is not None:
                raise InputError(
                    f"{_flag(name)} shows the plan's own schedule and stages",
                    where=_flag(other),
                    hint="leave one of them out",
                )
        if self.cpu and self.any_gpu:
            raise InputError("--cpu takes no GPU", where="--any-gpu", hint="leave one of them out")

    def arguments(self) -> list[str]:
        """Returns the words that give these options, where they differ from the defaults."""
        words: list[str] = []
        for field in fields(self):
            value = getattr(self, field.name)
            if value != field.default:
                words += [_flag(field.name)] if value is True else [_flag(field.name), str(value)]
        return words

    def written_files(self) -> dict[str, PurePath]:
        """Returns the files that the run writes while it runs, by option."""
        names = ("log_file", "trace", "save_profile")
        return {_flag(name): PurePath(path) for name in names if (path := getattr(self, name)) is not None}

    @staticmethod
    def of(values: Mapping[str, Any]) -> RunOptions:
        """Returns options from values by field; None and missing ones are the defaults."""
        return RunOptions(**{name: value for name, value in values.items() if value is not None})


def _flag(name: str) -> str:
    return OPTION_TEXTS[name].flag
