"""The set of options is frozen: growing it is a decision, not an accident."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Annotated, Any

import pytest
import typer

from tangram.cli.app import build_command
from tangram.cli.groups import grouped
from tangram.cluster.tolerances import Tolerances

JOB = (
    "--job --global-batch --seq-len --precision --num-layers --gradient-bytes --engine-overlap "
    "--no-engine-overlap --fixed-warmup --free-warmup"
)
CHOICES = (
    "--micro-batch --tp --pp --dp --cp --ep --zero --recompute --offload --layers-per-stage "
    "--allow-cross-node-tp"
)
ISLANDS = (
    "--island-compute-tolerance --island-memory-tolerance --island-link-tolerance --island-network-tolerance"
)
BASIS = "--stack --calibration --cluster-constants --profiles --memory-margin"
SEARCH = "--atoms --workers --executor --pruning"
OUTPUT = "-o --output --json --trace"

FROZEN = {
    "plan": f"MODEL CLUSTER {JOB} {CHOICES} {BASIS} {ISLANDS} {SEARCH} --parallelizer {OUTPUT} --budget "
    "--stats",
    "compare": f"MODEL CLUSTER {JOB} {CHOICES} {BASIS} {ISLANDS} {SEARCH} --planners --json",
    "show": "PLAN --json",
    "check": "PLAN --json",
    "simulate": "PLAN --trace --json",
    "estimate": f"MODEL CLUSTER {JOB} {CHOICES} {BASIS} {ISLANDS} {OUTPUT} --stages",
    "validate": "ROWS... --calibrate-on --profiles --stack --json",
    "calibrate": "ROWS... -o --output --shelf --splits --from-scratch",
    "islands": f"CLUSTER {ISLANDS} --precision --json",
    "models": "MODEL --json",
    "gpus": "GPU --json",
    "schema": "",
    "profile": "MODEL --gpu --device --stack --precision --seq-len --tp --micro-batch --layers --repeats "
    "--warmup --collectives --message-bytes --intra-link --inter-link --store --json",
    "tokenize": "TEXT... -o --output --tokenizer",
    "run": "PLAN --data --steps --seed --init --save --learning-rate --min-learning-rate --warmup-steps "
    "--decay --weight-decay --max-grad-norm --virtual-stages --zero-bubble --cpu --any-gpu --print "
    "--master --log-file "
    "--tensorboard --trace --trace-step --save-profile --quiet",
    "profiles list": "--store --gpu --json",
    "profiles import": "FORMAT PATH --gpu --model --seq-len --precision --stack --link --op --store --json",
    "profiles export": "--store --gpu -o --output --format --kind",
}


def all_commands() -> dict[str, Any]:
    """All commands by name, those of groups as ``group command``."""
    found: dict[str, Any] = {}
    for name, command in build_command().commands.items():
        inner = getattr(command, "commands", None)
        found |= {name: command} if inner is None else {f"{name} {key}": one for key, one in inner.items()}
    return found


def declared(command: Any) -> list[str]:
    names = []
    for param in command.params:
        if param.param_type_name == "argument":
            names.append(param.metavar or param.name)
        else:
            names += [*param.opts, *param.secondary_opts]
    return names


def test_commands_and_options_are_frozen() -> None:
    commands = all_commands()
    assert list(commands) == list(FROZEN)
    for name, command in commands.items():
        assert sorted(declared(command)) == sorted(FROZEN[name].split()), name


def test_every_option_says_what_it_is_for() -> None:
    for command in all_commands().values():
        assert command.help
        for param in command.params:
            assert param.help, param.name
            if "." in param.help:
                assert param.help.endswith("."), param.help


def test_defaults_in_the_help_are_those_of_the_islands() -> None:
    helps = {param.name: param.help for param in build_command().commands["islands"].params}
    for name in ("compute", "memory", "intra", "network"):
        stated = re.search(r"\(default: ([0-9.]+)\)", helps[name])
        assert stated is not None
        assert float(stated[1]) == getattr(Tolerances(), name)


@dataclass(frozen=True)
class Group:
    size: Annotated[int, typer.Option("--size")] = 3
    tag: Annotated[str | None, typer.Option("--tag")] = None


def test_groups_are_taken_apart_and_put_together() -> None:
    seen: list[Any] = []

    def command(name: Annotated[str, typer.Argument()], group: Group, loud: bool = False) -> None:
        seen.append((name, group, loud))

    app = typer.Typer(add_completion=False)
    app.command()(grouped(command))
    typer.main.get_command(app).main(["x", "--size", "5", "--loud"], standalone_mode=False)
    assert seen == [("x", Group(size=5, tag=None), True)]


def test_groups_are_resolved_once_per_name() -> None:
    def clash(first: Group, second: Group) -> None:
        """Two groups with the same fields."""

    with pytest.raises(ValueError, match="duplicate parameter"):
        grouped(clash)
