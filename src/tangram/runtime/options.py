"""What ``torchrun ... -m tangram.runtime`` is given on its command line."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import NoReturn

from tangram.errors import InputError
from tangram.run_options import OPTION_TEXTS, RunOptions


class _Parser(argparse.ArgumentParser):
    """One that raises what the rest of the program raises."""

    def error(self, message: str) -> NoReturn:
        raise InputError(message, hint="see: python -m tangram.runtime --help")


def parse_arguments(arguments: Sequence[str]) -> tuple[Path, RunOptions]:
    """Returns the plan's file and the options.

    Raises:
        InputError: They are none.
    """
    parser = _Parser(
        prog="tangram.runtime",
        description="Trains the model of a plan on the ranks of the plan; torchrun or tangram run start it.",
        allow_abbrev=False,
    )
    parser.add_argument("plan", metavar="PLAN", type=Path, help="A plan file, as plan -o writes it.")
    for name, option in OPTION_TEXTS.items():
        if option.metavar is None:
            parser.add_argument(option.flag, dest=name, action="store_true", help=option.text)
        else:
            parser.add_argument(
                option.flag, dest=name, metavar=option.metavar, type=option.kind, help=option.text
            )
    found = vars(parser.parse_args(arguments))
    names = {field.name for field in fields(RunOptions)}
    return found["plan"], RunOptions.of({name: value for name, value in found.items() if name in names})
