"""The commands, in the order in which a newcomer meets them; nothing heavy is imported before one runs."""

from __future__ import annotations

from importlib import import_module
from typing import Annotated, Any

import typer

from tangram._version import VERSION
from tangram.cli.groups import grouped

_HELP = "Plans LLM training on clusters of mixed GPUs: islands of equal GPUs, joined by an uneven pipeline."
_PROFILES_HELP = "List, import and export measured profiles."

_COMMANDS = {
    "plan": "plan",
    "compare": "compare",
    "show": "documents",
    "check": "documents",
    "simulate": "documents",
    "estimate": "estimate",
    "validate": "validate",
    "calibrate": "calibrate",
    "islands": "islands",
    "models": "catalog",
    "gpus": "catalog",
    "schema": "documents",
    "profile": "profile",
    "tokenize": "tokenize",
    "run": "run",
}
"""Each in a module of this package, as ``<name>_command``."""

_PROFILES = "profiles"


def build_app(asked: str | None = None) -> typer.Typer:
    """Returns the application.

    Args:
        asked: The command that was typed: of all others nothing is needed, and building them takes as long as
            a short command. All of them where there is no such command, to say which there are.
    """
    app = typer.Typer(
        help=_HELP,
        add_completion=False,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,  # plain help: nothing is cut at 80 columns, and rich need not be imported
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback()(_root)
    everything = asked not in _COMMANDS and asked != _PROFILES
    for name, module in _COMMANDS.items():
        if everything or name == asked:
            function = getattr(import_module(f"tangram.cli.{module}"), f"{name}_command")
            app.command(name)(grouped(function))
    if everything or asked == _PROFILES:
        from tangram.cli.profiles import COMMANDS

        profiles = typer.Typer(rich_markup_mode=None, help=_PROFILES_HELP)
        for name, part in COMMANDS:
            profiles.command(name)(grouped(part))
        app.add_typer(profiles, name=_PROFILES)
    return app


def build_command(asked: str | None = None) -> Any:
    """Returns the application as a command that can be called; see :func:`build_app`."""
    return typer.main.get_command(build_app(asked))


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"tangram {VERSION}")
        raise typer.Exit


def _root(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version.", is_eager=True, callback=_print_version)
    ] = False,
) -> None:
    """Plans LLM training on clusters of mixed GPUs: islands of equal GPUs, joined by an uneven pipeline."""
