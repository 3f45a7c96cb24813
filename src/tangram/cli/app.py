"""The commands, in the order in which a newcomer meets them; nothing heavy is imported before one runs."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from tangram._version import VERSION
from tangram.cli.calibrate import calibrate_command
from tangram.cli.catalog import gpus_command, models_command
from tangram.cli.compare import compare_command
from tangram.cli.documents import check_command, schema_command, show_command, simulate_command
from tangram.cli.estimate import estimate_command
from tangram.cli.groups import grouped
from tangram.cli.islands import islands_command
from tangram.cli.plan import plan_command
from tangram.cli.profile import profile_command
from tangram.cli.profiles import COMMANDS as _PROFILES_COMMANDS
from tangram.cli.run import run_command
from tangram.cli.tokenize import tokenize_command
from tangram.cli.validate import validate_command

_HELP = "Plans LLM training on clusters of mixed GPUs: islands of equal GPUs, joined by an uneven pipeline."

_COMMANDS = (
    ("plan", plan_command),
    ("compare", compare_command),
    ("show", show_command),
    ("check", check_command),
    ("simulate", simulate_command),
    ("estimate", estimate_command),
    ("validate", validate_command),
    ("calibrate", calibrate_command),
    ("islands", islands_command),
    ("models", models_command),
    ("gpus", gpus_command),
    ("schema", schema_command),
    ("profile", profile_command),
    ("tokenize", tokenize_command),
    ("run", run_command),
)


def build_app() -> typer.Typer:
    """Returns the application."""
    app = typer.Typer(
        help=_HELP,
        add_completion=False,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,  # plain help: nothing is cut at 80 columns, and rich need not be imported
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback()(_root)
    for name, command in _COMMANDS:
        app.command(name)(grouped(command))
    profiles = typer.Typer(rich_markup_mode=None, help="List, import and export measured profiles.")
    for name, part in _PROFILES_COMMANDS:
        profiles.command(name)(grouped(part))
    app.add_typer(profiles, name="profiles")
    return app


def build_command() -> Any:
    """Returns the application as a command that can be called."""
    return typer.main.get_command(build_app())


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
