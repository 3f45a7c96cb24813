"""``tangram run``: trains the model of a plan, on the GPUs of the plan or on CPUs."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Annotated, Any

import typer

from tangram.cli.options import PlanArgument
from tangram.cli.streams import print_text
from tangram.run_options import OPTION_TEXTS, RunOptions


def _option(name: str) -> Any:
    option = OPTION_TEXTS[name]
    return typer.Option(option.flag, metavar=option.metavar, help=option.text, show_default=False)


@dataclass(frozen=True, slots=True)
class DataOptions:
    """What is trained on, and where it starts."""

    data: Annotated[str | None, _option("data")] = None
    steps: Annotated[int | None, _option("steps")] = None
    seed: Annotated[int | None, _option("seed")] = None
    init: Annotated[str | None, _option("init")] = None
    save: Annotated[str | None, _option("save")] = None


@dataclass(frozen=True, slots=True)
class LearningOptions:
    """How it learns."""

    learning_rate: Annotated[float | None, _option("learning_rate")] = None
    min_learning_rate: Annotated[float | None, _option("min_learning_rate")] = None
    warmup_steps: Annotated[int | None, _option("warmup_steps")] = None
    decay: Annotated[str | None, _option("decay")] = None
    weight_decay: Annotated[float | None, _option("weight_decay")] = None
    max_grad_norm: Annotated[float | None, _option("max_grad_norm")] = None
    virtual_stages: Annotated[int | None, _option("virtual_stages")] = None
    zero_bubble: Annotated[bool, _option("zero_bubble")] = False


@dataclass(frozen=True, slots=True)
class DeviceOptions:
    """Where it runs."""

    cpu: Annotated[bool, _option("cpu")] = False
    any_gpu: Annotated[bool, _option("any_gpu")] = False
    print_only: Annotated[
        bool,
        typer.Option(
            "--print",
            help="Print the torchrun command for every host, and start nothing.",
            show_default=False,
        ),
    ] = False
    master: Annotated[
        str | None,
        typer.Option(
            "--master",
            metavar="HOST[:PORT]",
            help="Address of the first host for --print (default: its name in the plan, port 29500).",
            show_default=False,
        ),
    ] = None


@dataclass(frozen=True, slots=True)
class WatchOptions:
    """What is seen of it, and kept."""

    log_file: Annotated[str | None, _option("log_file")] = None
    tensorboard: Annotated[str | None, _option("tensorboard")] = None
    trace: Annotated[str | None, _option("trace")] = None
    trace_step: Annotated[int | None, _option("trace_step")] = None
    save_profile: Annotated[str | None, _option("save_profile")] = None
    quiet: Annotated[bool, _option("quiet")] = False


def run_command(
    plan: PlanArgument,
    data: DataOptions,
    learning: LearningOptions,
    device: DeviceOptions,
    watch: WatchOptions,
) -> None:
    """Train the model of PLAN: each GPU does what the plan says, measured beside what was predicted."""
    from tangram.plan.json_io import read_plan

    values = asdict(data) | asdict(learning) | asdict(device) | asdict(watch)
    master, print_only = values.pop("master"), values.pop("print_only")
    options = RunOptions.of(values)
    doc = read_plan(plan)
    if print_only:
        from tangram.runtime.start import commands

        print_text("".join(f"{command}\n" for command in commands(plan, doc, options, master)))
        return
    from tangram.runtime.start import start

    code = start(plan, doc, options)
    if code:
        raise typer.Exit(code)
